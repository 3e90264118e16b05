"""Reading sound: real files, and every way in which one can be wrong."""

from __future__ import annotations

import math
import struct
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from media_files import WHERE, pitch, refused, shades, tone, write_wav
from splitreel.media import Clip, Sound, read_sound, write_film


@pytest.mark.parametrize("rate", [24_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_sound_keeps_its_rate_and_channels(tmp_path: Path, rate: int, channels: int) -> None:
    samples = np.repeat(tone(1000, 1, rate)[None], channels, axis=0)
    sound = read_sound(write_wav(tmp_path / "sine.wav", samples, rate), WHERE, max_seconds=67)
    assert sound.sample_rate == rate
    assert sound.waveform.shape == (channels, rate)
    assert sound.waveform.dtype == np.float32
    assert pitch(sound.waveform[0], rate) == pytest.approx(1000, abs=1)
    assert np.abs(sound.waveform - samples).max() < 1e-4


def test_sound_is_cut(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "sine.wav", tone(1000, 2, 8000)[None], 8000)
    assert read_sound(path, WHERE, max_seconds=0.75).waveform.shape == (1, 6000)
    source = Sound(np.zeros((2, 16_000), np.float64), 8000)  # type: ignore[arg-type]
    assert read_sound(source, WHERE, max_seconds=0.75).waveform.shape == (2, 6000)
    assert read_sound(source, WHERE, max_seconds=67).waveform.dtype == np.float32


def test_sound_of_six_channels(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "surround.wav", np.zeros((6, 800)), 8000)
    refused(lambda: read_sound(path, WHERE, max_seconds=67), "6", "surround.wav", "stereo")
    refused(lambda: read_sound(Sound(np.zeros((6, 800), np.float32), 8000), WHERE, max_seconds=67), "6")


@pytest.mark.parametrize("rate", [0, -44_100, 44_100.0, "44100", None, True, 10**9])
def test_sound_of_an_implausible_rate(rate: Any) -> None:
    refused(lambda: read_sound(Sound(np.zeros((1, 8), np.float32), rate), WHERE, max_seconds=67), repr(rate))


def test_sound_in_memory_that_is_none() -> None:
    def read(waveform: np.ndarray) -> Any:
        return lambda: read_sound(Sound(waveform, 8000), WHERE, max_seconds=67)

    refused(read(np.zeros(8, np.float32)), "(8,)")
    refused(read(np.zeros((1, 2, 8), np.float32)), "(1, 2, 8)")
    refused(read(np.zeros((1, 8), np.int16)), "int16")
    refused(read(np.zeros((1, 0), np.float32)), "no samples")
    refused(read(np.array([[0.0, math.nan]], np.float32)), "NaN")
    refused(read(np.array([[0.0, math.inf]], np.float32)), "NaN or infinity")


def test_sound_files_that_are_none(tmp_path: Path) -> None:
    write_wav(tmp_path / "nothing.wav", np.zeros((1, 0)), 8000)
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("no sound\n" * 100)
    write_film(tmp_path / "silent.mp4", Clip(shades(3), 24.0))
    for name in ("nothing.wav", "empty.wav", "text.wav", "silent.mp4", "gone.wav"):
        refused(lambda name=name: read_sound(tmp_path / name, WHERE, max_seconds=67), name)


def wav_header(kind: int, rate: int, bits: int, size: int) -> bytes:
    """The header of a mono wav: kind 1 is PCM, 3 is float."""
    form = struct.pack("<HHIIHH", kind, 1, rate, rate * bits // 8, bits // 8, bits)
    return b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt \x10\0\0\0" + form + b"data" + struct.pack("<I", size)


def test_sound_float_wav_that_is_not_finite(tmp_path: Path) -> None:
    samples = np.array([0.0, math.nan, 0.0], "<f4").tobytes()
    (tmp_path / "nan.wav").write_bytes(wav_header(3, 8000, 32, len(samples)) + samples)
    refused(lambda: read_sound(tmp_path / "nan.wav", WHERE, max_seconds=67), "NaN", "nan.wav")


def test_sound_of_two_hours_costs_what_is_asked(tmp_path: Path) -> None:
    # A wav of zeros, sparse on the disk, and a mono AAC stream of few bits, ten seconds of it 720 times over.
    with (tmp_path / "sparse.wav").open("wb") as file:
        size = 2 * 8000 * 7200
        file.write(wav_header(1, 8000, 16, size))
        file.truncate(44 + size)
    with av.open(str(tmp_path / "ten.aac"), "w", format="adts") as output:
        stream: Any = output.add_stream("aac", rate=8000, layout="mono")
        stream.bit_rate = 8000
        frame = av.AudioFrame.from_ndarray(tone(440, 10, 8000)[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 8000, 0
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    (tmp_path / "long.aac").write_bytes((tmp_path / "ten.aac").read_bytes() * 720)
    for name in ("sparse.wav", "long.aac"):
        began = time.monotonic()
        sound = read_sound(tmp_path / name, WHERE, max_seconds=67)
        assert time.monotonic() - began < 3
        assert sound.waveform.shape == (1, 67 * 8000)
