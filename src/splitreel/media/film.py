"""Reading a finished film back: whole, or just its facts."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from splitreel.media.data import Clip, Sound
from splitreel.media.files import OPEN_OPTIONS


@dataclass(frozen=True)
class FilmFacts:
    """What a film file holds. Starts and durations in seconds; the sound's are None in a silent film."""

    video_codec: str
    width: int
    height: int
    fps: float
    frames: int
    video_start: float
    video_seconds: float
    audio_codec: str | None
    sample_rate: int | None
    channels: int | None
    audio_start: float | None
    audio_seconds: float | None


def read_film(source: str | os.PathLike[str] | bytes) -> Clip:
    """A whole mp4 as frames and sound; the encoder's padding after the end of the sound is cut off."""
    with _open(source) as container:
        video = container.streams.video[0]
        fps = float(video.average_rate or 0)
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video)])
    sound = None
    with _open(source) as container:
        if container.streams.audio:
            audio = container.streams.audio[0]
            waveform = np.concatenate([frame.to_ndarray() for frame in container.decode(audio)], axis=1)
            rate = int(audio.codec_context.sample_rate)
            end = round(audio.duration * audio.time_base * rate) if audio.duration else waveform.shape[1]
            sound = Sound(waveform[:, :end].astype(np.float32), rate)
    return Clip(frames, fps, sound)


def film_facts(source: str | os.PathLike[str] | bytes) -> FilmFacts:
    """The facts of an mp4, from its header alone."""
    with _open(source) as container:
        video = container.streams.video[0]
        audio = container.streams.audio[0] if container.streams.audio else None
        return FilmFacts(
            video_codec=video.codec_context.name,
            width=video.codec_context.width,
            height=video.codec_context.height,
            fps=float(video.average_rate or 0),
            frames=video.frames,
            video_start=float((video.start_time or 0) * video.time_base),
            video_seconds=float((video.duration or 0) * video.time_base),
            audio_codec=audio.codec_context.name if audio else None,
            sample_rate=int(audio.codec_context.sample_rate) if audio else None,
            channels=audio.codec_context.channels if audio else None,
            audio_start=float((audio.start_time or 0) * audio.time_base) if audio else None,
            audio_seconds=float((audio.duration or 0) * audio.time_base) if audio else None,
        )


def _open(source: str | os.PathLike[str] | bytes) -> av.container.InputContainer:
    if isinstance(source, bytes):
        return av.open(io.BytesIO(source), format="mp4")
    return av.open(f"file:{Path(source)}", options=OPEN_OPTIONS)
