"""A session among threads: calls from its own, calls while it closes and after, and what it holds when something failed.

Stages take fixed times (`timed_h3`, `clockwork`).
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clockwork import Clockwork, submitted
from splitreel import ClusterError, GenerateRequest, RequestCancelled, Session, WorkerLost
from splitreel.cluster.local import LocalBackend
from splitreel.cluster.replies import Failure, Reply, reply_value
from splitreel.config import parse_config
from splitreel.engine import adapters
from splitreel.engine.backend import PayloadGone, StageReceipt
from splitreel.engine.engine import Engine
from splitreel.engine.limits import Deadlines, Limits
from splitreel.observe.progress import LoadProgress
from splitreel.observe.spans import SpanRecorder
from splitreel.request import Stage
from splitreel.wire import Packed
from timed_h3 import TimedH3, settings

pytestmark = pytest.mark.timeout(60)


def request(index: int = 0, **fields: Any) -> GenerateRequest:
    return GenerateRequest(**{"prompt": f"Lake {index}.", "steps": 3, "seed": index, **fields})


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Session(parse_config(settings(tmp_path)), model=TimedH3()) as opened:
        yield opened


def test_its_own_thread_is_not_made_to_wait_for_itself(session: Session) -> None:
    """What waits is refused by name from on_progress, what does not is done, and the film is made."""
    refused: dict[str, str] = {}
    jobs = []

    def ask(step: object) -> None:
        calls = {
            "health": session.health,
            "submit": lambda: session.submit(request(1)),
            "lora": lambda: session.lora.set([]),
            "status": jobs[0].status,
            "close": session.close,
        }
        for name, call in calls.items():
            try:
                call()
            except ClusterError as error:
                refused[name] = str(error)
        jobs[1].cancel()

    jobs.append(session.submit(request(steps=30), on_progress=ask))
    jobs.append(session.submit(request(2, steps=900)))
    assert jobs[0].result(30).video_bytes
    assert set(refused) == {"health", "submit", "lora", "status", "close"}
    assert all("session: expected a call from a thread of the caller's" in text for text in refused.values())
    with pytest.raises(RequestCancelled):
        jobs[1].result(30)
    assert len(session.health()) == 2


def test_a_fault_of_on_load_is_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(progress: object) -> None:
        raise ValueError("no screen to draw on")

    with Session(parse_config(settings(tmp_path)), model=TimedH3(), on_load=fail) as session:
        session._engine.backend._on_load(LoadProgress("dit", "here", "transformer", 1, 1, 0, 0))  # type: ignore[attr-defined]
    assert "no screen to draw on" in caplog.text


def test_who_waits_when_the_session_closes_is_told(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a download that goes on in its thread, from a thread and from a loop; and of a request."""
    downloading, over = threading.Semaphore(0), threading.Event()

    def download(source: str) -> None:
        downloading.release()
        over.wait(30)

    monkeypatch.setattr(adapters, "read_adapter", download)
    told: dict[str, BaseException] = {}

    def note(name: str, call: Any, *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:
            told[name] = error

    async def from_a_loop() -> None:
        await session.aio.lora.load("owner/other")

    threads = [
        threading.Thread(target=note, args=("load", session.lora.load, "owner/name")),
        threading.Thread(target=note, args=("aio load", asyncio.run, from_a_loop())),
        threading.Thread(target=note, args=("film", session.submit(request(steps=900)).result)),
    ]
    for thread in threads:
        thread.start()
    assert downloading.acquire(timeout=10)  # the other one waits for the lock
    began = time.monotonic()
    session.close()
    for thread in threads:
        thread.join(10)
    over.set()
    assert time.monotonic() - began < 10
    assert {name: type(error) for name, error in told.items()} == {
        "load": ClusterError,
        "aio load": ClusterError,
        "film": RequestCancelled,
    }
    assert "session: expected an open one, found it closed" in str(told["aio load"])


def test_the_coroutines_of_a_closed_session_say_so(session: Session) -> None:
    """And its streams are alike: errors are yielded in their turn when they are asked for."""

    async def streamed() -> list[str]:
        requests = [request(0), request(1, num_frames=1), request(2)]
        return [type(item).__name__ async for item in session.aio.stream(requests, return_errors=True)]

    assert asyncio.run(streamed()) == ["GenerateResult", "InvalidRequest", "GenerateResult"]
    session.close()
    with pytest.raises(ClusterError, match="session: expected an open one, found it closed"):
        asyncio.run(session.aio.health())


# What failed holds nothing ------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Troubled(LocalBackend):
    """Fails in one place as a cluster does, and remembers what payload that was."""

    def __init__(self, folder: Path, trouble: str) -> None:
        (folder / "modular_model_index.json").write_text("{}")
        config = {"path": str(folder), "workflow": "t2va"}
        cluster = {"address": "local"}
        roles: dict[str, Any] = {"encoder_decoder": {}, "dit": {}}
        super().__init__(Clockwork(), parse_config({"model": config, "cluster": cluster, "roles": roles}))
        self.payload: weakref.ref[Packed] | None = None
        self._trouble = trouble

    async def forgotten(self) -> None:
        """Return when nobody holds that payload; its thread may have to come to an end first."""
        assert self.payload is not None
        async with asyncio.timeout(5):
            while self.payload() is not None:
                await asyncio.sleep(0.01)

    async def fetch(self, payload: Any, spans: SpanRecorder) -> Any:
        if self._trouble == "fetch":
            self.payload = weakref.ref(payload)
            raise PayloadGone("hop.fetch: expected the payload within 60 s, found nothing.")
        return await super().fetch(payload, spans)

    async def run_stage(
        self, worker: str, stage: Stage, request_id: str, payload: Any, parts: Any = ()
    ) -> tuple[Any, StageReceipt]:
        if self._trouble == stage:
            self.payload = weakref.ref(payload)
            raise WorkerLost(f"worker {worker} was lost")
        return await super().run_stage(worker, stage, request_id, payload, parts)


@pytest.mark.usefixtures("_no_collection")
def test_a_film_that_does_not_arrive_is_a_named_loss(tmp_path: Path) -> None:
    async def main() -> None:
        backend = Troubled(tmp_path, "fetch")
        engine = Engine(backend, Limits(3, 8, 1), Deadlines())
        await engine.start()
        try:
            job = engine.submit("r", "t2va", submitted("r"))
            with pytest.raises(WorkerLost, match=r"request r: the film did not arrive from .*, where encoder_decoder"):
                await job.result(20)
            error = job.future.exception()
            assert isinstance(error, WorkerLost)
            assert (error.request_id, error.stage) == ("r", Stage.DECODE)
            await backend.forgotten()
        finally:
            await engine.close()

    asyncio.run(main())


@pytest.mark.usefixtures("_no_collection")
def test_a_lost_worker_keeps_no_payload(tmp_path: Path) -> None:
    """For as long as it stays lost, its error is kept; what its last run started from is not."""

    async def main() -> None:
        backend = Troubled(tmp_path, "denoise")
        engine = Engine(backend, Limits(3, 8, 1), Deadlines())
        await engine.start()
        try:
            job = engine.submit("r", "t2va", submitted("r"))
            with pytest.raises(WorkerLost):
                await job.result(20)
            assert "dit" in engine._losses
            await backend.forgotten()
        finally:
            await engine.close()

    asyncio.run(main())


@pytest.mark.usefixtures("_no_collection")
def test_a_reply_that_failed_is_not_held_by_its_error() -> None:
    class Content:
        pass

    def asked(content: Content) -> None:
        reply = Reply(failure=Failure.of(WorkerLost("gone", node="here")))
        reply_value(reply)

    content = Content()
    held = weakref.ref(content)
    with pytest.raises(WorkerLost, match="gone") as caught:
        asked(content)
    assert caught.value.node == "here"
    del caught, content
    assert held() is None


def test_a_reader_that_leaves_takes_its_wait_along(tmp_path: Path) -> None:
    """Nothing is left on the loop by a progress iterator that is closed while it waits."""

    async def main() -> None:
        engine = Engine(Troubled(tmp_path, ""), Limits(3, 8, 1), Deadlines())
        await engine.start()
        try:
            job = engine.submit("r", "t2va", submitted("r", encode={"seconds": 0.5}))
            before = asyncio.all_tasks()
            reading = asyncio.ensure_future(anext(job.progress()))
            await asyncio.sleep(0.05)
            reading.cancel()
            await asyncio.wait({reading})
            await asyncio.sleep(0)
            assert asyncio.all_tasks() <= before
        finally:
            await engine.close()

    asyncio.run(main())
