"""Media files made with PyAV and PIL, some by hand, for tests of reading them."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from splitreel.errors import InvalidRequest

WHERE = "references[0]"


def shades(count: int, height: int = 32, width: int = 48) -> np.ndarray:
    """Frames whose grey level, 6 * index, says which one it is."""
    levels = (6 * np.arange(count, dtype=np.uint8)).reshape(-1, 1, 1, 1)
    return np.broadcast_to(levels, (count, height, width, 3)).copy()


def order(frames: np.ndarray) -> list[int]:
    """Which shades they are."""
    return [round(float(level) / 6) for level in frames.mean(axis=(1, 2, 3))]


def tone(hertz: float, seconds: float, rate: int) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def pitch(samples: np.ndarray, rate: int) -> float:
    """The strongest frequency, by the peak of the windowed spectrum."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * rate / len(samples))


def write_wav(path: Path, samples: np.ndarray, rate: int) -> Path:
    """16-bit PCM from float (channels, n)."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[0])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.T * 32767).astype("<i2").tobytes())
    return path


def mux(
    path: Path,
    frames: np.ndarray,
    *,
    rate: int | Fraction = 24,
    pts: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    rotation: int | None = None,
    codec: str = "libx264",
    container: str | None = None,
) -> Path:
    """A video file by hand, with the timestamps, the stated rate and the rotation that a test needs."""
    with av.open(str(path), "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        if time_base is not None:
            stream.codec_context.time_base = time_base
        if rotation is not None:
            stream.set_display_rotation(rotation)
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = index if pts is None else pts[index]
            frame.time_base = time_base or 1 / Fraction(rate)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def refused(call: Any, *words: str) -> None:
    """The call raises InvalidRequest that names the field and says each of the words."""
    with pytest.raises(InvalidRequest) as caught:
        call()
    assert caught.value.field == WHERE
    for word in (f"{WHERE}: expected ", ", found ", *words):
        assert word in str(caught.value)
