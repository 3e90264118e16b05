"""Small media files with known contents, made with PyAV and PIL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from PIL import Image

from splitreel.media import Clip, Sound, write_film


@dataclass(frozen=True)
class Samples:
    """Paths of: two pictures of different shapes, a clip with sound, a silent clip, a mono sound."""

    first: Path
    last: Path
    clip: Path
    silent_clip: Path
    mono: Path


def make_samples(folder: Path) -> Samples:
    """Write all samples into `folder`."""
    picture(folder / "first.png", 96, 48, seed=1)
    picture(folder / "last.png", 60, 60, seed=2)
    write_film(
        folder / "clip.mp4", Clip(frames=moving(40, 64, 128), fps=24.0, sound=tone((440.0, 880.0), 40 / 24, 44100))
    )
    write_film(folder / "silent.mp4", Clip(frames=moving(30, 64, 96), fps=30.0, sound=None))
    write_wav(folder / "mono.wav", tone((1000.0,), 1.5, 24000))
    return Samples(*(folder / name for name in ("first.png", "last.png", "clip.mp4", "silent.mp4", "mono.wav")))


def picture(path: Path, width: int, height: int, *, seed: int) -> Path:
    """A picture of smooth colour ramps and noise."""
    noise = np.random.default_rng(seed).integers(0, 64, (height, width, 3))
    ramp = np.linspace(0, 190, width)[None, :, None] * np.array([1.0, 0.6, 0.3])
    Image.fromarray((noise + ramp).clip(0, 255).astype(np.uint8)).save(path)
    return path


def moving(num_frames: int, height: int, width: int) -> np.ndarray:
    """A bright bar that moves over a ramp, (F, H, W, 3) uint8."""
    frames = np.zeros((num_frames, height, width, 3), np.uint8)
    frames[..., 1] = np.linspace(0, 200, height, dtype=np.uint8)[None, :, None]
    for index in range(num_frames):
        at = index * width // num_frames
        frames[index, :, at : at + 8] = 250
    return frames


def tone(frequencies: tuple[float, ...], seconds: float, sample_rate: int) -> Sound:
    """One sine per channel, half of full scale."""
    time = np.arange(round(seconds * sample_rate)) / sample_rate
    waveform = np.stack([0.5 * np.sin(2 * np.pi * frequency * time) for frequency in frequencies])
    return Sound(waveform.astype(np.float32), sample_rate)


def write_wav(path: Path, sound: Sound) -> Path:
    """A 16-bit wav file."""
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(sound.waveform)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=sound.sample_rate, layout=layout)
        samples = (sound.waveform.T.reshape(1, -1) * 32767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout=layout)
        frame.sample_rate = sound.sample_rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path
