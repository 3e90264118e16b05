"""The scheduler's laws under generated event sequences. The laws and the world are in `scheduler_world`."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_world import play

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
        endings.update(type(command).__name__ for command in world.ended.values())
        endings.update(
            type(command.reason).__name__ for command in world.ended.values() if type(command).__name__ == "Fail"
        )
    assert min(endings[kind] for kind in ("Deliver", "Fail", "Cancelled", "Refuse", "Unserved", "LostTooOften")) > 50


@settings(max_examples=SHRINKABLE, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.integers(1, EVENTS))
def test_laws_hold_in_lives_that_can_be_reduced(random: Random, events: int) -> None:
    play(random, events)
