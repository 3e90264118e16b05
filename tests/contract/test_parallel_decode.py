"""A film that several workers decode together is the film that one makes, bit for bit, whatever becomes of the helpers."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from splitreel import GenerateRequest, GenerateResult, Session
from splitreel.cluster.host import WorkerHost
from splitreel.config import parse_config
from splitreel.errors import RequestCancelled
from splitreel.h3.decoding import DecodeProgram
from splitreel.observe.spans import SpanRecord
from splitreel.request import Stage
from splitreel.roles.control import StageControl

ROLE = {"device": "cpu", "dtype": "float32", "threads": 1}
WORKERS = 3


def opened(workers: int) -> Session:
    return Session(
        parse_config(
            {
                "model": {"path": "tiny"},
                "cluster": {"address": "local"},
                "roles": {"encoder": ROLE, "dit": ROLE, "decoder": {**ROLE, "nodes": ["here"] * WORKERS}},
                "engine": {"parallel_decode": workers},
            }
        )
    )


@pytest.fixture(scope="module")
def alone() -> dict[str, GenerateResult]:
    """The films as one worker decodes them."""
    found = {}
    with opened(1) as session:
        for output in ("mp4", "tensor"):
            found[output], spans = film(session, output)
            assert not helpers(spans)
    return found


@pytest.fixture(scope="module")
def together() -> Iterator[Session]:
    with opened(WORKERS) as session:
        yield session


def film(session: Session, output: str) -> tuple[GenerateResult, list[SpanRecord]]:
    """It, and the spans of its decode."""
    job = session.submit(GenerateRequest(prompt="A lake.", steps=2, seed=3, output=output))
    return job.result(60), [span for span in job.spans if span.stage == Stage.DECODE]


def same(made: GenerateResult, wanted: GenerateResult, output: str) -> bool:
    if output == "mp4":
        return made.video_bytes == wanted.video_bytes
    np.testing.assert_array_equal(made.waveform, wanted.waveform)
    return bool(np.array_equal(getattr(made, output), getattr(wanted, output)))


def helpers(spans: list[SpanRecord]) -> set[str]:
    """Who made a part."""
    return {span.worker for span in spans if span.name == "decode.part"}


@pytest.mark.parametrize("output", ["mp4", "tensor"])
def test_the_same_film(alone: dict[str, GenerateResult], together: Session, output: str) -> None:
    made, spans = film(together, output)
    assert same(made, alone[output], output)
    assert len(helpers(spans)) == WORKERS - 1
    assert made.timings[2].worker not in helpers(spans)
    chunks = Counter(span.worker for span in spans if span.name == "decode.chunk")
    assert sorted(chunks.values()) == [3, 3, 3]  # seven clips, and one once more for each helper


def test_a_helper_that_fails_costs_nothing_but_time(
    alone: dict[str, GenerateResult],
    together: Session,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(program: Any, payload: Any, control: Any) -> Any:
        raise ValueError("the reel tore")

    monkeypatch.setattr(DecodeProgram, "_part", fail)
    with caplog.at_level(logging.WARNING):
        made, spans = film(together, "tensor")
    assert same(made, alone["tensor"], "tensor")
    assert {span.status for span in spans if span.name == "decode.part"} == {"error"}
    assert "did not make its part" in caplog.text
    assert "a part of decode did not come and is made here" in caplog.text
    monkeypatch.undo()
    assert len(helpers(film(together, "mp4")[1])) == WORKERS - 1


def test_a_part_that_ray_cannot_bring_is_made_here() -> None:
    """Such as one for which the helper's node had no room: Ray raises its own error with the store's as its cause."""

    def arrive(error: Exception) -> Any:
        def raises(control: StageControl) -> Any:
            raise error

        return raises

    control = StageControl("r", Stage.DECODE)
    assert WorkerHost._take_part(arrive(OSError("no room")), control) is None
    with pytest.raises(RequestCancelled):
        WorkerHost._take_part(arrive(RequestCancelled("cancelled")), control)


def test_cancel_stops_the_helpers_too(together: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers are held in their part until they are told to stop; then all three are free for the next film."""
    helping, stopped = threading.Semaphore(0), threading.Semaphore(0)

    def wait(program: Any, payload: Any, control: Any) -> Any:
        helping.release()
        try:
            while not control._stopping.wait(10):
                raise AssertionError("nobody stopped it")
            control.check()
        finally:
            stopped.release()

    monkeypatch.setattr(DecodeProgram, "_part", wait)
    job = together.submit(GenerateRequest(prompt="A lake.", steps=2, seed=4))
    assert all(helping.acquire(timeout=30) for _ in range(WORKERS - 1))
    job.cancel()
    with pytest.raises(RequestCancelled) as caught:
        job.result(20)
    assert caught.value.stage == Stage.DECODE
    assert all(stopped.acquire(timeout=10) for _ in range(WORKERS - 1))
    monkeypatch.undo()
    assert len(helpers(film(together, "mp4")[1])) == WORKERS - 1


def test_films_at_once(alone: dict[str, GenerateResult], together: Session) -> None:
    """Two films, which take turns at what helps: each is what it is alone."""
    requests = [GenerateRequest(prompt="A lake.", steps=2, seed=3, output="tensor") for _ in range(2)]
    for job in [together.submit(request) for request in requests]:
        assert same(job.result(60), alone["tensor"], "tensor")
