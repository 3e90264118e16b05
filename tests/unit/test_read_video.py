"""Reading videos: real files, their rates and timestamps, and every way in which one can be wrong."""

from __future__ import annotations

import math
import os
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from media_files import WHERE, mux, order, pitch, refused, shades, tone, write_wav
from splitreel.media import Clip, FilmWriter, Sound, probe_video, read_sound, read_video, write_film
from splitreel.media.grid import Grid


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


def test_film_writer_and_reader_share_a_clock(tmp_path: Path) -> None:
    with FilmWriter(tmp_path / "a.mp4", width=48, height=32, fps=30000 / 1001, sample_rate=None) as film:
        film.write_frames(shades(30))
    assert len(read_video(tmp_path / "a.mp4", WHERE, max_frames=100).frames) == 24
