"""`transport: nixl` between two raylets, over TCP: the same films, and what its failures do. Needs the extra nixl."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray

from clockwork import film_digest, submitted
from engines import opened, stored
from splitreel.cluster.embedded import SOURCES, EmbeddedCluster
from splitreel.cluster.ray_backend import RayBackend
from splitreel.engine.backend import WorkerHealth
from splitreel.engine.engine import Engine
from splitreel.engine.job import Job
from splitreel.errors import RequestCancelled, WorkerNotReady
from splitreel.observe.timings import timings_of
from splitreel.wire import unpack

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

HOP_TIMEOUT = 3.0
# What a film of random bits needs: 9.6 MB to denoise, 3.2 MB to decode.
PLAN: dict[str, Any] = {"encode": {"blocks": 300_000}, "denoise": {"blocks": 100_000}}


def digest(film: Any) -> bytes:
    data = unpack(film.payload).tensors["data"]
    return bytes(data.numpy())  # type: ignore[union-attr]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def direct(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """The film's stages on two nodes, one worker each. Memory shared between processes is not what is tested."""
    pytest.importorskip("nixl", reason='needs NIXL: pip install "splitreel[nixl]"', exc_type=ImportError)
    a, b, _ = cluster.node_ids
    roles = {
        name: {"node": node, "env": {"UCX_TLS": "tcp"}} for name, node in (("encoder", a), ("dit", b), ("decoder", a))
    }
    folder = tmp_path_factory.mktemp("nothing")
    async with opened(folder, cluster.address, roles, transport="nixl", hop_timeout=HOP_TIMEOUT) as engine:
        yield engine


async def test_nixl_that_cannot_be_imported_is_refused(
    cluster: EmbeddedCluster, open_engine: Any, tmp_path: Path
) -> None:
    """Before anything loads, by the worker's own interpreter; nothing else is taken instead."""
    broken = tmp_path / "broken" / "nixl"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libucp.so.0: cannot open shared object file')")
    env = {"PYTHONPATH": os.pathsep.join([str(broken.parent), os.environ["PYTHONPATH"], str(SOURCES)])}
    roles = {"encoder_decoder": {"env": env}, "dit": {"env": env}}
    with pytest.raises(WorkerNotReady) as caught:
        async with open_engine(cluster.address, roles, transport="nixl"):
            raise AssertionError("opened")
    found = str(caught.value)
    where = r"node 127\.0\.0\.\d, role \w+, cluster\.transport: expected nixl to work in worker (encoder_decoder|dit) "
    assert re.match(where, found), found
    assert f"({sys.executable}), found ImportError: libucp.so.0: cannot open shared object file" in found
    assert 'on every node (pip install "splitreel[nixl]"), or set cluster.transport: object_store' in found


async def workers(engine: Engine) -> dict[str, WorkerHealth]:
    return {report.worker: report for report in await engine.health()}


async def one_waits(engine: Engine, name: str) -> tuple[Job, Job]:
    """A request that denoises for a second and a half, and the next one, encoded: its payload is with the encoder."""
    done = (await workers(engine))["encoder"].stages_done
    slow = engine.submit(f"{name}-slow", "t2va", submitted(name, denoise={"steps": 15, "seconds": 0.1}))
    waiting = engine.submit(name, "t2va", submitted(name, **PLAN))
    while (await workers(engine))["encoder"].stages_done < done + 2:
        await asyncio.sleep(0.02)
    return slow, waiting


async def kept(engine: Engine) -> int:
    """Payloads in the memory of all workers."""

    def count(worker: Any) -> int:
        return int(ray._private.worker.global_worker.rdt_manager.rdt_store.get_num_objects())

    assert isinstance(engine.backend, RayBackend)
    actors = [member.actor for member in engine.backend._members.values()]
    return sum(await asyncio.gather(*(actor.__ray_call__.remote(count) for actor in actors)))


async def test_films_are_the_same_and_say_how_they_travelled(direct: Engine) -> None:
    jobs = [direct.submit(f"r{number}", "t2va", submitted(f"r{number}", **PLAN)) for number in range(4)]
    films = [await job.result(60) for job in jobs]
    assert [digest(film) for film in films] == [film_digest(**PLAN)] * 4
    for film in films:
        hops = timings_of(film.spans).hops
        assert [hop.transport for hop in hops] == ["inline", "nixl", "nixl", "object_store"]
        assert hops[1].payload is not None
        assert hops[1].payload.logical_bytes == 9_600_000
    assert {report.transport for report in (await workers(direct)).values()} == {"nixl"}
    assert stored() < 1_000_000, "no tensor went through the object store"
    del films, film, jobs
    deadline = time.monotonic() + 10
    while await kept(direct):
        assert time.monotonic() < deadline, "memory is given back with the payload"
        await asyncio.sleep(0.05)


async def test_a_stopped_producer_holds_nobody_up(direct: Engine) -> None:
    """The bytes do not come: a cancel is heard at once, the wait ends in time, and nobody is lost."""
    before = await workers(direct)
    slow, waiting = await one_waits(direct, "stopped")
    os.kill(before["encoder"].pid, signal.SIGSTOP)
    try:
        await slow.result(30)
        while (await workers(direct))["dit"].running != "denoise of stopped":
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)  # its transfer is under way now, and cannot end
        began = time.monotonic()
        waiting.cancel()
        with pytest.raises(RequestCancelled):
            await waiting.result(10)
        assert time.monotonic() - began < HOP_TIMEOUT - 0.5
    finally:
        os.kill(before["encoder"].pid, signal.SIGCONT)
    film = await direct.submit("after", "t2va", submitted("after", **PLAN)).result(60)
    assert digest(film) == film_digest(**PLAN)
    assert {name: report.pid for name, report in (await workers(direct)).items()} == {
        name: report.pid for name, report in before.items()
    }


async def test_a_dead_producer_costs_another_encode(direct: Engine) -> None:
    """Its payloads die with it; the receiver does not."""
    before = await workers(direct)
    slow, waiting = await one_waits(direct, "orphan")
    os.kill(before["encoder"].pid, signal.SIGKILL)
    await slow.result(30)
    film = await waiting.result(60)
    assert digest(film) == film_digest(**PLAN)
    assert [span.status for span in film.spans if span.name == "hop.fetch" and span.stage == "denoise"][-2:] == [
        "error",
        "ok",
    ]
    after = await workers(direct)
    assert after["encoder"].pid != before["encoder"].pid
    assert (after["dit"].pid, after["decoder"].pid) == (before["dit"].pid, before["decoder"].pid)
