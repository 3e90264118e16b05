"""AdaLN as tables: the same film bit for bit, made on demand or at load, bounded, and refused when it cannot be."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs import roles_config
from samples import Samples
from splitreel import AudioReference, GenerateRequest, ImageReference, Session, StageError, VideoReference
from splitreel.config import MemorySpec, RoleSpec
from splitreel.errors import ConfigError, MissingComponent
from splitreel.h3.adaln import Step, Tables
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.tiny import cached_tiny
from splitreel.request import Stage
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.loading import load_module

WORKFLOWS = ["t2va", "fl2va", "ref2va"]
CASES = ["t2va", "fl2va", "ref2va picture and clip", "ref2va picture"]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def sessions(request: pytest.FixtureRequest) -> Iterator[dict[str, Session]]:
    opened = {}
    for name, memory in {"plain": {}, "tables": {"adaln": "tables", "adaln_steps": [4]}}.items():
        config = roles_config("local", "tiny", WORKFLOWS, dit={"memory": memory, "dtype": request.param})
        opened[name] = Session(config).__enter__()
    yield opened
    for session in opened.values():
        session.close()


def request_of(case: str, samples: Samples, steps: int) -> GenerateRequest:
    media: dict[str, Any] = {}
    if case == "fl2va":
        media["image"] = samples.first
    if case.startswith("ref2va"):
        media["references"] = [ImageReference(samples.first)]
    if case.endswith("clip"):
        media["references"] += [VideoReference(samples.clip), AudioReference(samples.mono)]
    return GenerateRequest(prompt="A lake.", steps=steps, seed=3, output="tensor", **media)


@pytest.mark.parametrize("case", CASES)
def test_the_film_is_the_same_and_expected_schedules_are_ready(
    sessions: dict[str, Session], samples: Samples, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = request_of(case, samples, steps=4)
    with caplog.at_level(logging.INFO, logger="splitreel"):
        result = sessions["tables"].generate(request)
    assert "made AdaLN tables" not in caplog.text
    expected = sessions["plain"].generate(request)
    np.testing.assert_array_equal(result.tensor, expected.tensor)
    np.testing.assert_array_equal(result.waveform, expected.waveform)


def test_a_new_schedule_is_made_once_and_its_cost_is_a_span(sessions: dict[str, Session], samples: Samples) -> None:
    request = request_of("t2va", samples, steps=3)
    results = [sessions["tables"].generate(request) for _ in range(2)]
    names = [[name for stage in result.timings for name, _ in stage.spans] for result in results]
    assert names[0].count("load.adaln") == 1
    assert "load.adaln" not in names[1]
    np.testing.assert_array_equal(results[0].tensor, sessions["plain"].generate(request).tensor)


def test_health_shows_what_is_saved(sessions: dict[str, Session]) -> None:
    held = {
        name: {worker.role: worker.components for worker in session.health()}["dit"]
        for name, session in sessions.items()
    }
    for component in ("transformer", "transformer_ref"):
        assert held["tables"][component] < held["plain"][component]


def transformer(root: Path, **memory: Any) -> Any:
    dtypes = (("default", "float32"),)
    spec = RoleSpec(
        "dit",
        (Stage.DENOISE,),
        ("t2va",),
        str(root),
        None,
        "cpu",
        dtypes,
        1,
        memory=MemorySpec(adaln="tables", **memory),
    )
    checkpoint = Checkpoint(root, "")
    return load_module(
        MiniMaxH3().recipe("transformer", checkpoint, spec), checkpoint, "transformer", torch.device("cpu")
    )


def steps_of(number: int) -> list[Step]:
    return [Step(torch.tensor([0.1 + index / 50, 0.9]), (0, 1, 5)) for index in range(number)]


def test_kept_schedules_are_bounded_and_the_least_used_goes() -> None:
    tables: Tables = transformer(cached_tiny(), adaln_schedules=2).adaln_tables
    schedules = {number: steps_of(number) for number in (2, 3, 4)}
    for number in (2, 3, 2, 4):
        tables.use(schedules[number])
    assert tables.schedules == (2, 4)
    # Per step: 3 blocks of 3 used rows (of 6) of 6 x 64 values, 2 rows of 2 x 64 for the output, 6 places.
    assert tables.num_bytes == 6 * (3 * 3 * 6 * 64 * 4 + 2 * 128 * 4 + 6 * 8)


def test_a_checkpoint_that_is_gone_is_named(tmp_path: Path) -> None:
    root = tmp_path / "model"
    shutil.copytree(cached_tiny(), root)
    memory = {"memory": {"adaln": "tables", "adaln_steps": [3]}}
    with Session(roles_config("local", str(root), dit=memory)) as session:
        shutil.rmtree(root / "transformer")
        with pytest.raises(StageError, match=r"found: .*No such file.* ask for a number of steps that is kept \(3\)"):
            session.generate(GenerateRequest(prompt="A lake.", steps=4, seed=1))
        session.generate(GenerateRequest(prompt="A lake.", steps=3, seed=2, output="frames"))


def test_a_checkpoint_that_was_replaced_is_not_mixed_in(tmp_path: Path) -> None:
    root = tmp_path / "model"
    shutil.copytree(cached_tiny(), root)
    tables: Tables = transformer(root).adaln_tables
    for file in (root / "transformer").glob("*.safetensors"):
        os.utime(file, ns=(0, 0))
    with pytest.raises(MissingComponent, match=r"found: .* changed since the role loaded"):
        tables.use(steps_of(2))


def test_steps_without_tables_are_refused() -> None:
    with pytest.raises(ConfigError, match="adaln_steps: expected adaln: tables beside it, found projections"):
        roles_config("local", dit={"memory": {"adaln_steps": [5]}})
