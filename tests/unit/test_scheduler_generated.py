"""The laws of `scheduler_world`, in generated lives of `scheduler_life`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_life import play

from splitreel.engine.events import Fail, RunStage

SEQUENCES = 10_000  # random lives in all, each of about EVENTS events and a way to rest
EVENTS = 40
PARTS = 10
SHRINKABLE = 200  # lives more, drawn by hypothesis, which reduces one that breaks a law to its shortest form


@pytest.mark.parametrize("part", range(PARTS))
def test_laws_hold_in_random_lives(part: int) -> None:
    endings: Counter[str] = Counter()
    for seed in range(part * SEQUENCES // PARTS, (part + 1) * SEQUENCES // PARTS):
        try:
            world = play(Random(seed), EVENTS)
        except Exception as broken:
            broken.add_note(f"seed {seed}")
            raise
        endings["help"] += sum(
            len(command.helpers) for answer in world.answers for command in answer if isinstance(command, RunStage)
        )
        for ending in world.ended.values():
            endings[type(ending).__name__] += 1
            if isinstance(ending, Fail):
                endings[type(ending.reason).__name__] += 1
    assert (
        min(endings[kind] for kind in ("Deliver", "Fail", "Cancelled", "Refuse", "Unserved", "LostTooOften", "help"))
        > 50
    )


@settings(max_examples=SHRINKABLE, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.integers(1, EVENTS))
def test_laws_hold_in_lives_that_can_be_reduced(random: Random, events: int) -> None:
    play(random, events)


def test_answers_do_not_depend_on_the_hash_seed() -> None:
    script = "from random import Random; from scheduler_life import play; print([play(Random(9), 300).answers])"
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(printed) == 1
