"""Reading media: real files, made with PyAV and PIL, and every way in which one can be wrong."""

from __future__ import annotations

import math
import os
import struct
import time
import wave
import zlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from splitreel.errors import InvalidRequest
from splitreel.media import Clip, FilmWriter, Sound, probe_video, read_image, read_sound, read_video, write_film
from splitreel.media.files import MAX_PIXELS
from splitreel.media.grid import Grid

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


# Pictures


def test_image_array_and_pil_and_path_agree(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for source in (pixels, Image.fromarray(pixels), tmp_path / "a.png", str(tmp_path / "a.png")):
        assert np.array_equal(read_image(source, WHERE), pixels)


def test_image_exif_orientation_is_applied(tmp_path: Path) -> None:
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned a quarter clockwise
    Image.fromarray(pixels).save(tmp_path / "phone.jpg", exif=exif, quality=95)
    upright = read_image(tmp_path / "phone.jpg", WHERE)
    assert upright.shape == (32, 16, 3)
    assert upright[:16].min() > 240
    assert upright[16:].max() < 15


def test_image_alpha_is_dropped_not_composited(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (200, 100, 50, 0)).save(tmp_path / "clear.png")
    assert (read_image(tmp_path / "clear.png", WHERE) == (200, 100, 50)).all()


@pytest.mark.parametrize("transparency", [None, 0, b"\x00\xff"])
def test_image_palette(tmp_path: Path, transparency: int | bytes | None) -> None:
    image = Image.new("P", (4, 2), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    options = {} if transparency is None else {"transparency": transparency}
    image.save(tmp_path / "palette.png", **options)
    assert (read_image(tmp_path / "palette.png", WHERE) == (200, 100, 50)).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "CMYK", "YCbCr", "HSV", "PA"])
def test_image_modes_convert(mode: str) -> None:
    assert read_image(Image.new("L", (3, 2), 255).convert(mode), WHERE).shape == (2, 3, 3)


def test_image_sixteen_bits_that_would_be_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save(tmp_path / "deep.png")
    refused(lambda: read_image(tmp_path / "deep.png", WHERE), "8-bit", "40000", "deep.png")
    refused(lambda: read_image(Image.new("F", (2, 2), 300.5), WHERE), "8-bit")
    assert (read_image(Image.new("I", (2, 2), 77), WHERE) == 77).all()


def test_image_one_pixel(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "dot.png")
    assert read_image(tmp_path / "dot.png", WHERE).tolist() == [[[1, 2, 3]]]


def test_image_arrays_of_another_kind() -> None:
    refused(lambda: read_image(np.zeros((4, 4, 3), np.float32), WHERE), "uint8", "float32")  # type: ignore[arg-type]
    refused(lambda: read_image(np.zeros((4, 4, 4), np.uint8), WHERE), "(4, 4, 4)")
    refused(lambda: read_image(np.zeros((4, 4), np.uint8), WHERE), "(4, 4)")
    refused(lambda: read_image(np.zeros((0, 4, 3), np.uint8), WHERE), "4 x 0")
    refused(lambda: read_image(Image.new("RGB", (0, 3)), WHERE), "0 x 3")
    refused(lambda: read_image(None, WHERE), "NoneType")  # type: ignore[arg-type]


def png_header(width: int, height: int) -> bytes:
    """A PNG that states a size and holds one pixel's worth of data."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 4)) + chunk(b"IEND", b"")
    )


# PIL warns from 89 million pixels and raises from 179 million; neither may escape as it is.
@pytest.mark.parametrize(("width", "height"), [(10_001, 10_000), (60_000, 60_000)])
def test_image_too_large_is_refused_before_decoding(tmp_path: Path, width: int, height: int) -> None:
    (tmp_path / "huge.png").write_bytes(png_header(width, height))
    began = time.monotonic()
    refused(lambda: read_image(tmp_path / "huge.png", WHERE), str(MAX_PIXELS), "huge.png")
    assert time.monotonic() - began < 1


def test_image_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no picture\n" * 100)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name in ("cut.png", "cut.jpg"):
        Image.fromarray(noise).save(tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        refused(lambda name=name: read_image(tmp_path / name, WHERE), name)
    refused(lambda: read_image(tmp_path / "empty.png", WHERE), "empty file", "empty.png")
    refused(lambda: read_image(tmp_path / "text.png", WHERE), "text.png")
    refused(lambda: read_image(tmp_path / "gone.png", WHERE), "no file", "gone.png")
    refused(lambda: read_image(tmp_path, WHERE), "not a file")


# The grid


@given(
    count=st.integers(1, 200),
    rate=st.sampled_from([24.0, 30.0, 12.0, 60.0, 23.976, 29.97, 30000 / 1001, 25.0, 7.0, 120.0, 1.0, 14.985]),
    target=st.sampled_from([24.0, 30.0, 16.0]),
    tick=st.sampled_from([0.0, 1 / 1000, 1 / 600, 1 / 90_000]),
)
def test_grid_of_a_constant_rate_is_the_closed_formula(count: int, rate: float, target: float, tick: float) -> None:
    scale = target / rate
    expected = np.floor(np.arange(count) * scale + 0.5).astype(np.int64).tolist()
    times = [None if tick == 0 else round((index / rate + 0.7) / tick) * tick for index in range(count)]
    grid = Grid(target, rate, tick)
    assert [grid.start_of(at) for at in times] == expected
    assert grid.end() == math.floor(count * scale + 0.5)


@given(steps=st.lists(st.floats(-0.5, 2.0), min_size=1, max_size=60), rate=st.sampled_from([None, 24.0, 1000.0]))
def test_grid_never_goes_back(steps: list[float], rate: float | None) -> None:
    grid = Grid(24.0, rate, 0.001)
    slots = [grid.start_of(at) for at in np.cumsum(steps).tolist()]
    assert slots == sorted(slots)
    assert grid.end() >= slots[-1] >= slots[0] == 0


# Video


@pytest.mark.parametrize(("fps", "expected"), [(60.0, [1, 3, 6, 8]), (30.0, [0, 1, 2, 3, 5, 6, 7, 8, 9])])
def test_video_of_a_higher_rate_loses_whole_frames(tmp_path: Path, fps: float, expected: list[int]) -> None:
    write_film(tmp_path / "fast.mp4", Clip(shades(10 if fps == 60 else 11), fps))
    clip = read_video(tmp_path / "fast.mp4", WHERE, max_frames=len(expected))
    assert clip.fps == 24.0
    assert clip.sound is None
    scale = 24 / fps
    starts = [math.floor(index * scale + 0.5) for index in range(12)]
    assert order(clip.frames) == [max(i for i, s in enumerate(starts) if s <= slot) for slot in range(len(expected))]


def test_video_of_a_lower_rate_repeats_frames(tmp_path: Path) -> None:
    write_film(tmp_path / "slow.mp4", Clip(shades(24), 12.0))
    clip = read_video(tmp_path / "slow.mp4", WHERE, max_frames=100)
    assert order(clip.frames) == [index // 2 for index in range(48)]


def test_video_ntsc_film_rate_is_exact(tmp_path: Path) -> None:
    write_film(tmp_path / "ntsc.mp4", Clip(shades(40), 23.976))
    facts = probe_video(tmp_path / "ntsc.mp4", WHERE)
    assert facts.fps == 24000 / 1001
    assert (facts.width, facts.height, facts.frames, facts.rotation) == (48, 32, 40, 0)
    assert order(read_video(tmp_path / "ntsc.mp4", WHERE, max_frames=100).frames) == list(range(40))


def test_video_of_variable_rate_is_placed_by_its_timestamps(tmp_path: Path) -> None:
    # 12 frames at 24 per second, then 12 at 12 per second, in ticks of 1/600 s; the container states about 16.
    pts = [25 * index for index in range(12)] + [300 + 50 * index for index in range(12)]
    mux(tmp_path / "vfr.mp4", shades(24), pts=pts, time_base=Fraction(1, 600))
    clip = read_video(tmp_path / "vfr.mp4", WHERE, max_frames=100)
    expected = list(range(12)) + [12 + index // 2 for index in range(24)]
    assert order(clip.frames) == expected[:35]  # the last frame's own duration is one slot: the muxer states 1/24 s


def test_video_whose_stated_rate_is_wrong_is_placed_by_its_timestamps(tmp_path: Path) -> None:
    pts = [round(index * 1000 / 24) for index in range(40)]
    mux(tmp_path / "wrong.mkv", shades(40), rate=30, pts=pts, time_base=Fraction(1, 1000))
    with av.open(str(tmp_path / "wrong.mkv")) as container:
        assert container.streams.video[0].average_rate == 30
    assert order(read_video(tmp_path / "wrong.mkv", WHERE, max_frames=100).frames) == list(range(40))
    # Told otherwise, the caller is believed: 40 frames at 12 fill 80 slots.
    assert len(read_video(tmp_path / "wrong.mkv", WHERE, max_frames=100, source_fps=12).frames) == 80


def test_video_avi_is_placed_by_its_index(tmp_path: Path) -> None:
    mux(tmp_path / "old.avi", shades(40), rate=24)
    assert order(read_video(tmp_path / "old.avi", WHERE, max_frames=100).frames) == list(range(40))


def test_video_without_any_rate_needs_one(tmp_path: Path) -> None:
    mux(tmp_path / "raw.h264", shades(12), rate=12, container="h264")
    refused(lambda: read_video(tmp_path / "raw.h264", WHERE, max_frames=40), "Pass fps", "raw.h264")
    assert len(read_video(tmp_path / "raw.h264", WHERE, max_frames=40, source_fps=12).frames) == 24
    assert probe_video(tmp_path / "raw.h264", WHERE).fps is None


@pytest.mark.parametrize("rotation", [90, 180, -90])
def test_video_rotation_is_undone(tmp_path: Path, rotation: int) -> None:
    frames = np.zeros((4, 32, 64, 3), np.uint8)
    frames[:, :16, :32] = 255
    mux(tmp_path / "turned.mp4", frames, rotation=rotation)
    sizes: list[tuple[int, int]] = []

    def canvas(width: int, height: int) -> tuple[int, int]:
        sizes.append((width, height))
        return height, width

    clip = read_video(tmp_path / "turned.mp4", WHERE, max_frames=4, canvas=canvas)
    expected = np.rot90(frames[0], k=-rotation // 90)
    assert sizes == [(expected.shape[1], expected.shape[0])]
    assert np.abs(clip.frames[0].astype(int) - expected).mean() < 8
    facts = probe_video(tmp_path / "turned.mp4", WHERE)
    assert (facts.height, facts.width) == expected.shape[:2]


def test_video_canvas_is_asked_once_and_resizes_as_lanczos(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 32, 48, 3), dtype=np.uint8)
    clip = read_video(noise, WHERE, max_frames=5, source_fps=24, canvas=lambda width, height: (height * 2, width // 2))
    expected = [np.asarray(Image.fromarray(frame).resize((24, 64), Image.Resampling.LANCZOS)) for frame in noise[:5]]
    assert np.array_equal(clip.frames, np.stack(expected))
    same = read_video(noise, WHERE, max_frames=5, source_fps=24, canvas=lambda width, height: (height, width))
    assert np.array_equal(same.frames, noise[:5])


def test_video_in_memory_takes_the_same_grid() -> None:
    frames = shades(10)
    assert order(read_video(frames, WHERE, max_frames=100, source_fps=12).frames) == [i // 2 for i in range(20)]
    sound = Sound(np.zeros((1, 48_000), np.float32), 48_000)
    clip = read_video(Clip(frames, 24.0, sound), WHERE, max_frames=6)
    assert np.array_equal(clip.frames, frames[:6])
    assert clip.sound is not None
    assert clip.sound.waveform.shape == (1, 12_000)
    assert read_video(Clip(frames, 24.0, sound), WHERE, max_frames=6, with_sound=False).sound is None


def test_video_in_memory_that_is_none() -> None:
    refused(lambda: read_video(shades(4), WHERE, max_frames=4), "fps")
    refused(lambda: read_video(shades(4).astype(np.float32), WHERE, max_frames=4, source_fps=24), "float32")
    refused(lambda: read_video(shades(4)[0], WHERE, max_frames=4, source_fps=24), "(32, 48, 3)")
    refused(lambda: read_video(shades(0), WHERE, max_frames=4, source_fps=24), "(0, 32, 48, 3)")
    refused(lambda: read_video(shades(1), WHERE, max_frames=4, source_fps=60), "or half of one")
    for fps in (0, -1, math.nan, math.inf):
        refused(lambda fps=fps: read_video(shades(4), WHERE, max_frames=4, source_fps=fps), "positive")


def test_video_sound_is_cut_with_the_frames(tmp_path: Path) -> None:
    sound = Sound(tone(440, 2, 44_100)[None], 44_100)
    write_film(tmp_path / "talk.mp4", Clip(shades(40), 20.0, sound))
    clip = read_video(tmp_path / "talk.mp4", WHERE, max_frames=24)
    assert clip.sound is not None
    assert clip.sound.waveform.shape == (2, 44_100)
    assert clip.sound.waveform.dtype == np.float32
    assert pitch(clip.sound.waveform[0], 44_100) == pytest.approx(440, abs=2)
    assert read_video(tmp_path / "talk.mp4", WHERE, max_frames=24, with_sound=False).sound is None
    assert probe_video(tmp_path / "talk.mp4", WHERE).has_sound


@pytest.mark.parametrize("name", ["http:clip.mp4", "-clip.mp4", "clïp %20.mp4", "clip.txt"])
def test_video_names_are_names(tmp_path: Path, name: str) -> None:
    write_film(tmp_path / "clip.mp4", Clip(shades(3), 24.0))
    os.rename(tmp_path / "clip.mp4", tmp_path / name)
    assert len(read_video(tmp_path / name, WHERE, max_frames=3).frames) == 3


def test_video_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("no video\n" * 100)
    (tmp_path / "text.txt").write_text("libav can render text as video\n" * 100)
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXTINF:1,\nclip.mp4\n#EXT-X-ENDLIST\n")
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile clip.mp4\n")
    Image.new("RGB", (8, 8)).save(tmp_path / "still.jpg")
    write_film(tmp_path / "clip.mp4", Clip(shades(3), 24.0))
    write_wav(tmp_path / "sound.wav", tone(440, 0.2, 8000)[None], 8000)
    for name in ("text.mp4", "text.txt", "list.m3u8", "list.mp4", "still.jpg", "sound.wav", "gone.mp4", "empty.mp4"):
        refused(lambda name=name: read_video(tmp_path / name, WHERE, max_frames=9), name)
        refused(lambda name=name: probe_video(tmp_path / name, WHERE), name)
    refused(lambda: read_video(7, WHERE, max_frames=9), "int")  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [0.3, 0.6, 0.8])
def test_video_cut_short(tmp_path: Path, part: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (48, 32, 48, 3), dtype=np.uint8)
    sound = Sound(np.random.default_rng(0).uniform(-0.5, 0.5, (2, 64_000)).astype(np.float32), 32_000)
    write_film(tmp_path / "whole.mp4", Clip(noise, 24.0, sound))
    whole = (tmp_path / "whole.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: int(len(whole) * part)])
    refused(lambda: read_video(tmp_path / "cut.mp4", WHERE, max_frames=100), "cut.mp4")
    refused(lambda: read_sound(tmp_path / "cut.mp4", WHERE, max_seconds=67), "cut.mp4")


def test_video_of_two_hours_costs_what_is_asked(tmp_path: Path) -> None:
    mux(tmp_path / "long.mp4", np.zeros((7200, 16, 16, 3), np.uint8), rate=1, codec="mpeg4")
    began = time.monotonic()
    assert len(read_video(tmp_path / "long.mp4", WHERE, max_frames=345).frames) == 345
    assert time.monotonic() - began < 2


# Sound


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


def test_film_writer_and_reader_share_a_clock(tmp_path: Path) -> None:
    with FilmWriter(tmp_path / "a.mp4", width=48, height=32, fps=30000 / 1001, sample_rate=None) as film:
        film.write_frames(shades(30))
    assert len(read_video(tmp_path / "a.mp4", WHERE, max_frames=100).frames) == 24
