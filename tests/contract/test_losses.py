"""What the engine makes of losses: told by the local backend, which has none of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from clockwork import Clockwork, submitted
from splitreel.cluster.local import LocalBackend
from splitreel.config import parse_config
from splitreel.engine.backend import PayloadGone, StageReceipt
from splitreel.engine.engine import Engine
from splitreel.engine.limits import Deadlines, Limits
from splitreel.errors import ClusterError, StageError, WorkerLost, WorkerNotReady
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.tiny import cached_tiny
from splitreel.observe.progress import LoadProgress
from splitreel.request import Stage
from splitreel.roles.definition import ModelDefinition

pytestmark = pytest.mark.timeout(60)


class Unlucky(LocalBackend):
    """Every denoise ends with the same error, of which nobody is told."""

    error: Exception | None = None

    async def run_stage(
        self, worker: str, stage: Stage, request_id: str, payload: Any, parts: Sequence[Any] = ()
    ) -> tuple[Any, StageReceipt]:
        if stage is Stage.DENOISE and self.error is not None:
            raise self.error
        return await super().run_stage(worker, stage, request_id, payload, parts)


@asynccontextmanager
async def opened(path: Path, model: ModelDefinition, **options: Any) -> AsyncIterator[Engine]:
    config = parse_config(
        {
            "model": {"path": str(path), "workflow": "t2va"},
            "cluster": {"address": "local"},
            "roles": {"encoder": {}, "dit": {}, "decoder": {}},
        }
    )
    engine = Engine(Unlucky(model, config), Limits(), Deadlines())
    await engine.start(**options)
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    (tmp_path / "modular_model_index.json").write_text("{}")
    return tmp_path


async def ended(engine: Engine, error: Exception | None = None) -> BaseException:
    """How a request ends, in bounded time."""
    assert isinstance(engine.backend, Unlucky)
    engine.backend.error = error
    with pytest.raises(ClusterError) as caught:
        await engine.submit("r", "t2va", submitted("r")).result(20)
    return caught.value


async def test_a_worker_that_is_gone_without_a_word_leaves_no_request_behind(nothing: Path) -> None:
    async with opened(nothing, Clockwork()) as engine:
        error = await ended(engine, WorkerLost("role dit on n: worker dit was lost: it left"))
    assert isinstance(error, WorkerLost)
    assert str(error).startswith(
        "request r: denoise: expected to finish within 2 runs, found run 2 lost with worker dit."
    )
    assert str(error).endswith("Last: role dit on n: worker dit was lost: it left")


async def test_the_worker_that_is_missing_is_blamed(nothing: Path) -> None:
    """And not another one that is away as well, and was lost later."""
    async with opened(nothing, Clockwork()) as engine:
        encoder, dit, _ = engine.backend.workers
        engine.on_worker_down(dit, WorkerLost("dit, first"), returning=True)
        engine.on_worker_down(encoder, WorkerLost("encoder"), returning=True)
        engine.on_worker_down(dit, WorkerLost("dit, for good"), returning=False)
        assert str(await ended(engine)) == "dit, for good"
        engine.on_worker_down(encoder, WorkerLost("encoder, again"), returning=True)
        assert str(await ended(engine)) == "dit, for good"


async def test_a_payload_that_never_arrives_is_named(nothing: Path) -> None:
    gone = "hop.fetch: expected the payload within 120 s, found nothing. The link between the nodes is cut."
    async with opened(nothing, Clockwork()) as engine:
        error = await ended(engine, PayloadGone(gone))
    assert not isinstance(error, WorkerLost), "no worker was"
    assert str(error).startswith(f"request r: denoise did not get the payload of encode: {gone} See that link")
    assert (error.request_id, error.stage) == ("r", Stage.DENOISE)  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [RuntimeError("the listener broke"), SystemExit(1)], ids=["error", "exit"])
async def test_a_listener_of_loading_that_raises_ends_nothing(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    loaded: set[str] = set()
    seen = asyncio.Event()

    def raises(progress: LoadProgress) -> None:
        if progress.done == progress.total:
            loaded.add(progress.worker)
        if loaded == {"encoder", "dit", "decoder"}:
            seen.set()
        raise error

    with caplog.at_level(logging.ERROR):
        async with opened(cached_tiny(), MiniMaxH3(), on_load=raises):
            await asyncio.wait_for(seen.wait(), 20)
    assert "load: a progress listener failed" in caplog.text


async def test_a_panic_of_a_library_is_a_failed_stage(nothing: Path) -> None:
    """It is no Exception, and a request whose stage nobody saw end would wait for ever."""
    async with opened(nothing, Clockwork()) as engine:
        job = engine.submit("bad", "t2va", submitted("bad", denoise={"trouble": {"1": "panic"}}))
        with pytest.raises(
            StageError, match=r"denoise of request bad failed on .*, role dit: Panic: the thread pool has"
        ):
            await job.result(10)
        await engine.submit("good", "t2va", submitted("good")).result(10)


async def test_a_panic_while_loading_ends_the_start(nothing: Path) -> None:
    with pytest.raises(WorkerNotReady, match=r"role dit .* to load, found Panic: the thread pool has"):
        async with opened(nothing, Clockwork(trouble_at_load={"denoise": "panic"})):
            pass
