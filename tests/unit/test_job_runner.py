"""The runner's loops on a real ledger and folder, with a session that ends each request as the test says."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from splitreel.config import ServeConfig
from splitreel.errors import QueueFull, RequestCancelled, WorkerLost
from splitreel.media import Clip, Sound, film_bytes
from splitreel.serve.jobs import runner as runner_module
from splitreel.serve.jobs.bell import Bell
from splitreel.serve.jobs.folder import JobFolder
from splitreel.serve.jobs.ledger import open_ledger
from splitreel.serve.jobs.pace import Pace
from splitreel.serve.jobs.previews import Previews
from splitreel.serve.jobs.runner import Runner
from splitreel.serve.jobs.store import JobStore
from splitreel.serve.jobs.table import Job
from splitreel.session import Session

pytestmark = pytest.mark.timeout(60)
LOOK = 0.05


@dataclass(eq=False)
class Asked:
    """A request that a session was given; ends when it is told to."""

    request_id: str
    ended: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    spans: tuple[()] = ()

    def cancel(self) -> None:
        if not self.ended.done():
            self.ended.set_exception(RequestCancelled("denoise stopped after step 1 of 2."))


class Requests:
    """What the runner uses of a session."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(max_in_flight=2)
        self.aio = self
        self.asked: list[Asked] = []

    async def submit(self, request: Any, *, on_progress: Any) -> Asked:
        self.asked.append(Asked(request.request_id))
        return self.asked[-1]

    async def result(self, asked: Asked) -> Any:
        return await asked.ended


@dataclass
class World:
    store: JobStore
    runner: Runner
    requests: Requests

    def start(self) -> None:
        self.runner.start(cast(Session, self.requests))

    def add(self, job_id: str, **fields: Any) -> None:
        now = time.time()
        request = {"prompt": "A lake.", "references": []}
        values = {
            "id": job_id,
            "owner": "",
            "state": "queued",
            "created": now,
            "rank": now,
            "priority": 0,
            "digest": "d",
        }
        self.store.add(
            Job(**{**values, "request": request, "effective": {}, "num_bytes": 0, **fields}),
            max_queued=9,
            max_active=None,
        )


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(LOOK / 10)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(runner_module, "_LOOK_SECONDS", LOOK)
    monkeypatch.setattr(runner_module, "_JANITOR_SECONDS", LOOK)
    settings = ServeConfig(folder=str(tmp_path / "jobs"))
    folder, store = open_ledger(settings)
    threads = ThreadPoolExecutor(4)
    runner = Runner(store, folder, Pace(), Bell(), settings, threads, lambda: True)
    yield World(store, runner, Requests())
    await runner.drain(0.0)
    threads.shutdown()
    store.close()


@pytest.mark.parametrize("error", [WorkerLost("dit: it died."), QueueFull("queue: full.")])
async def test_a_job_that_was_put_back_is_one_run_in_the_books(world: World, error: Exception) -> None:
    world.add("video_a")
    world.start()
    for turn in range(3):
        await until(lambda turn=turn: len(world.requests.asked) == turn + 1)  # type: ignore[misc]
        world.requests.asked[turn].ended.set_exception(error)
        await until(lambda: world.store.get("video_a").state == "queued" or len(world.requests.asked) > turn + 1)  # noqa: B023
        world.runner.wake()
    await until(lambda: len(world.requests.asked) == 4)
    await asyncio.sleep(3 * LOOK)  # whatever the earlier runs still do
    assert list(world.runner.running) == ["video_a"]
    assert len(world.requests.asked) == 4, "it runs once at a time"
    assert await world.runner.drain(0.0) == 1, "draining knows of it"
    row = world.store.get("video_a")
    assert (row.state, row.attempts) == ("queued", 3 if isinstance(error, WorkerLost) else 0)


async def test_a_job_that_comes_back_while_it_runs_goes_on_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a suspended machine: another server put it back, and this one was the next to take it."""
    monkeypatch.setattr(runner_module, "_LOOK_SECONDS", 60.0)  # before it looks for its leases
    world.add("video_a")
    world.start()
    await until(lambda: world.requests.asked)
    assert world.store.recover(time.time(), lambda name: True, 5) == ["video_a"]
    world.runner.wake()
    await until(lambda: world.store.get("video_a").attempts == 2)
    await asyncio.sleep(3 * LOOK)
    assert len(world.requests.asked) == 1
    assert not world.requests.asked[0].ended.done()
    assert world.store.get("video_a").lease_owner == world.runner.name


async def test_a_job_that_comes_back_while_it_is_being_given_up_begins_anew(world: World) -> None:
    world.add("video_a")
    world.start()
    await until(lambda: world.requests.asked)
    first = world.requests.asked[0]
    first.cancel = lambda: None  # type: ignore[method-assign]  # it takes a while to reach its next step
    assert world.store.recover(time.time(), lambda name: True, 5) == ["video_a"]
    world.runner.running["video_a"].stop("lease")
    await until(lambda: len(world.requests.asked) == 2)
    first.ended.set_exception(RequestCancelled("denoise stopped after step 1 of 2."))
    await asyncio.sleep(3 * LOOK)
    assert list(world.runner.running) == ["video_a"]
    assert (world.store.get("video_a").state, world.store.get("video_a").attempts) == ("in_progress", 2)


async def test_a_step_of_the_clock_takes_nothing_from_who_is_here(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_LOOK_SECONDS", 60.0)  # before it renews its leases by the new clock
    world.add("video_a")
    world.start()
    await until(lambda: world.requests.asked)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 7200.0)
    await asyncio.sleep(6 * LOOK)
    assert world.store.get("video_a").attempts == 1
    assert len(world.requests.asked) == 1


async def test_housekeeping_outlives_its_mistakes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.runner._settings = world.runner._settings.model_copy(update={"keep_gb": math.inf})
    world.start()
    await until(lambda: caplog.text.count("housekeeping failed: cannot convert float infinity") > 1)


# Previews -------------------------------------------------------------------------------------------------------------------


class Watched(JobFolder):
    """Counts the pictures that are made, and makes them when the test lets it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.made: list[str] = []
        self.go = threading.Event()

    def preview(self, job_id: str, film: str, variant: str) -> Path:
        self.made.append(variant)
        assert self.go.wait(20)
        return super().preview(job_id, film, variant)


@pytest.fixture
def films(tmp_path: Path) -> Iterator[Watched]:
    folder = Watched(tmp_path / "films")
    (folder.root / "video_a").mkdir()
    picture = Clip(np.zeros((24, 32, 64, 3), np.uint8), 24.0, Sound(np.zeros((2, 32_000), np.float32), 32_000))
    folder.write("video_a", "film.mp4", film_bytes(picture))
    yield folder
    folder.go.set()


async def test_a_picture_is_made_once_for_all_who_ask(films: Watched) -> None:
    previews = Previews(films)
    asked = [asyncio.ensure_future(previews.get("video_a", "film.mp4", "thumbnail")) for _ in range(6)]
    sheet = asyncio.ensure_future(previews.get("video_a", "film.mp4", "spritesheet"))
    await until(lambda: len(films.made) == 2)
    asked[0].cancel()  # one goes away, and takes it from nobody
    films.go.set()
    assert {path.name for path in await asyncio.gather(*asked[1:])} == {"thumbnail.webp"}
    assert (await sheet).name == "spritesheet.jpg"
    assert sorted(films.made) == ["spritesheet", "thumbnail"]
    with pytest.raises(FileNotFoundError):
        await previews.get("video_b", "film.mp4", "thumbnail")
    previews.close()
