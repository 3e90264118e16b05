"""What is true of any request and result, whatever the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from splitreel import Effective, GenerateRequest, GenerateResult, ImageReference, InvalidRequest
from splitreel.errors import ConfigError
from splitreel.media import check_output, film_facts
from splitreel.request import Stage

EFFECTIVE = Effective("t2va", 24, 24.0, 32, 64, 5, 4, 7, 32000)


def test_half_a_character_is_no_text() -> None:
    with pytest.raises(InvalidRequest, match="prompt: expected valid Unicode"):
        GenerateRequest(prompt="\ud800 x")


def test_one_reference_is_no_list() -> None:
    for value in (ImageReference("a.png"), "a.png"):
        with pytest.raises(InvalidRequest, match="references: expected a list"):
            GenerateRequest(prompt="x", references=value)  # type: ignore[arg-type]


def test_numpy_numbers_are_numbers() -> None:
    request = GenerateRequest(prompt="x", seed=np.int64(7), steps=np.int32(5))
    assert (request.seed, type(request.seed), request.steps) == (7, int, 5)
    with pytest.raises(InvalidRequest, match="seed: expected a whole number"):
        GenerateRequest(prompt="x", seed=np.float64(7.0))


def test_requests_with_arrays_compare_by_identity() -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    request = GenerateRequest(prompt="x", image=pixels)
    assert request == request
    assert request != GenerateRequest(prompt="x", image=pixels)


def test_every_request_has_its_own_id_and_seed() -> None:
    first, second = GenerateRequest(prompt="x"), GenerateRequest(prompt="x")
    assert first.request_id != second.request_id
    assert first.with_seed().seed is not None
    assert dataclasses.replace(first, seed=3).with_seed().seed == 3


def test_stages_know_their_neighbours() -> None:
    assert [stage.previous for stage in Stage] == [None, Stage.ENCODE, Stage.DENOISE]
    assert [stage.following for stage in Stage] == [Stage.DENOISE, Stage.DECODE, None]


def result(**contents: object) -> GenerateResult:
    return GenerateResult("r1", EFFECTIVE, **contents)  # type: ignore[arg-type]


def test_save_writes_whole_files_only(tmp_path: Path) -> None:
    tensor = np.random.default_rng(0).random((24, 3, 32, 64), np.float32)
    waveform = np.zeros((2, 32000), np.float32)
    path = result(tensor=tensor, waveform=waveform).save(tmp_path / "new" / "film.mp4")
    assert film_facts(path).frames == 24
    long = tmp_path / ("x" * 249 + ".mp4")
    assert result(video_bytes=path.read_bytes()).save(long).read_bytes() == path.read_bytes()
    with pytest.raises(InvalidRequest, match=r"path: expected a name that ends in \.mp4, found 'film\.avi'"):
        result(video_bytes=b"x").save(tmp_path / "film.avi")
    with pytest.raises(InvalidRequest, match="drift apart"):
        result(video_bytes=b"x").save(tmp_path / "slow.mp4", fps=16)
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted(["new", long.name])


def test_output_places_that_cannot_be_are_refused_early(tmp_path: Path) -> None:
    (tmp_path / "loop_a").symlink_to(tmp_path / "loop_b")
    (tmp_path / "loop_b").symlink_to(tmp_path / "loop_a")
    for bad in (tmp_path / "loop_a" / "x.mp4", tmp_path / ("x" * 300 + ".mp4"), tmp_path / ("d" * 300) / "x.mp4"):
        with pytest.raises(ConfigError, match=r"expected .*found "):
            check_output(bad)
    assert check_output(tmp_path / ("x" * 249 + ".mp4"))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["loop_a", "loop_b"]
