"""Reading a finished film back: whole, or just its facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from av.video.reformatter import Interpolation

from splitreel.media.data import Clip, Sound
from splitreel.media.files import PathLike, open_media, refuse

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream


_WHERE, _EXPECTED = "film", "an mp4 with video"
# PyAV's default repeats chroma samples instead of interpolating them: mean error 5.5 of 255 on a colourful picture, 0.6
# with this.
_CHROMA = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT


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


def read_film(source: PathLike | bytes) -> Clip:
    """A whole mp4 as frames and sound; the encoder's padding after the end of the sound is cut off.

    Raises InvalidRequest with `field="film"` for what cannot be read.
    """
    with open_media(source, _WHERE, _EXPECTED) as container:
        video = _video(container)
        fps = float(video.average_rate or 0)
        frames = [frame.to_ndarray(format="rgb24", interpolation=_CHROMA) for frame in container.decode(video)]
        if not frames:
            refuse(_WHERE, _EXPECTED, "no frames", "Name a finished film.")
    sound = None
    with open_media(source, _WHERE, _EXPECTED) as container:
        if container.streams.audio:
            audio = container.streams.audio[0]
            samples = [frame.to_ndarray() for frame in container.decode(audio)]
            waveform = np.concatenate(samples, axis=1, dtype=np.float32)
            rate = int(audio.codec_context.sample_rate)
            sound = Sound(waveform[:, : round(_seconds(audio, audio.duration) * rate) or None], rate)
    return Clip(np.stack(frames, dtype=np.uint8), fps, sound)


def film_facts(source: PathLike | bytes) -> FilmFacts:
    """The facts of an mp4, from its header alone. Raises InvalidRequest with `field="film"`."""
    with open_media(source, _WHERE, _EXPECTED) as container:
        video = _video(container)
        audio = container.streams.audio[0] if container.streams.audio else None
        return FilmFacts(
            video_codec=video.codec_context.name,
            width=video.codec_context.width,
            height=video.codec_context.height,
            fps=float(video.average_rate or 0),
            frames=video.frames,
            video_start=_seconds(video, video.start_time),
            video_seconds=_seconds(video, video.duration),
            audio_codec=audio.codec_context.name if audio else None,
            sample_rate=int(audio.codec_context.sample_rate) if audio else None,
            channels=audio.codec_context.channels if audio else None,
            audio_start=_seconds(audio, audio.start_time) if audio else None,
            audio_seconds=_seconds(audio, audio.duration) if audio else None,
        )


def _video(container: InputContainer) -> VideoStream:
    if not container.streams.video:
        refuse(_WHERE, _EXPECTED, "no video", "Name a finished film.")
    return container.streams.video[0]


def _seconds(stream: VideoStream | AudioStream, ticks: int | None) -> float:
    return float((ticks or 0) * (stream.time_base or 0))
