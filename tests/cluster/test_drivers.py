"""Drivers come and go on a cluster that stays: killed, two at once, from any kind of code, with other environments."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import state as ray_state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from clockwork import film_digest, submitted
from engines import raylets, stored, unopened
from splitreel.cluster.connection import connect
from splitreel.cluster.embedded import SOURCES, EmbeddedCluster, EmbeddedNode
from splitreel.cluster.ray_backend import RayBackend
from splitreel.engine.engine import Engine
from splitreel.engine.job import Job
from splitreel.observe.spans import Place, SpanRecorder
from splitreel.request import Stage
from splitreel.wire import unpack

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

DRIVER = Path(__file__).with_name("driver.py")


@contextmanager
def started(task: str, address: str, folder: Path, *script: str) -> Iterator[subprocess.Popen[str]]:
    """A driver, which does not outlive the test."""
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join([str(DRIVER.parents[1]), str(SOURCES)])
    command = [sys.executable, *(script or [str(DRIVER)]), task, address, str(folder)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True) as driver:
        try:
            yield driver
        finally:
            driver.kill()


def says(driver: subprocess.Popen[str]) -> Any:
    """Its next JSON line; Ray itself may print others."""
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise AssertionError(f"the driver ended with {driver.wait()}")


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_killed_driver_leaves_nothing_behind(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """And the next one, started at once, does not collide with what was there. Its model is known to `__main__` only."""
    with started("hang", cluster.address, tmp_path / "a") as killed:
        pids = says(killed)["pids"]
        killed.kill()
        began = time.monotonic()
        with started("run", cluster.address, tmp_path / "b") as following:
            while any(running(pid) for pid in pids):
                assert time.monotonic() - began < 5
                await asyncio.sleep(0.05)
            assert not set(says(following)["pids"]) & set(pids)
            assert says(following) == {"right": [True, True, True]}
            assert following.wait(30) == 0


async def test_two_drivers_at_once(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """One from a script, one from code that was exec'd, as notebooks do; each has workers of its own."""
    as_exec = "import sys; path = sys.argv.pop(1); exec(compile(open(path).read(), '<cell>', 'exec'))"
    with (
        started("run", cluster.address, tmp_path / "a") as one,
        started("run", cluster.address, tmp_path / "b", "-c", as_exec, str(DRIVER)) as two,
    ):
        assert len({*says(one)["pids"], *says(two)["pids"]}) == 4
        for driver in (one, two):
            assert says(driver) == {"right": [True, True, True]}
            assert driver.wait(30) == 0


async def test_an_environment_lasts_as_long_as_its_session(
    cluster: EmbeddedCluster, open_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run does not see the first one's flag; health lists what is in force, secrets masked."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret-of-this-test")
    flag = {"env": {"SPLITREEL_TEST_FLAG": "1"}}
    seen = {"denoise": {"reads": ["SPLITREEL_TEST_FLAG", "HF_TOKEN"]}}
    async with open_engine(cluster.address, {"encoder_decoder": {}, "dit": flag}) as engine:
        film = await engine.submit("with", "t2va", submitted("with", **seen)).result(20)
        assert unpack(film.payload).header.values["read"] == {
            "SPLITREEL_TEST_FLAG": "1",
            "HF_TOKEN": "hf_secret-of-this-test",
        }
        shown = {worker.role: worker.environment for worker in await engine.health()}
        assert shown["dit"]["SPLITREEL_TEST_FLAG"] == "1"
        assert shown["dit"]["HF_TOKEN"] == shown["encoder_decoder"]["HF_TOKEN"] == "***"
        assert "SPLITREEL_TEST_FLAG" not in shown["encoder_decoder"]
    monkeypatch.delenv("HF_TOKEN")
    async with open_engine(cluster.address) as engine:
        film = await engine.submit("without", "t2va", submitted("without", **seen)).result(20)
        assert unpack(film.payload).header.values["read"] == {"SPLITREEL_TEST_FLAG": None, "HF_TOKEN": None}
        for worker in await engine.health():
            assert not {"SPLITREEL_TEST_FLAG", "HF_TOKEN"} & set(worker.environment)


async def test_open_and_close_again_and_again(cluster: EmbeddedCluster, open_engine: Any) -> None:
    """Without pause, GPUs and object store are each time as they were. benchmarks/open_close.py does it twenty times.

    Who came first leaves first: that ends nothing for those that are still there.
    """
    gpus = {"encoder_decoder": {"num_gpus": 1.0}, "dit": {"num_gpus": 1.0}}
    connection = await asyncio.to_thread(connect, cluster.address, nodes=2)
    try:

        def free_gpus() -> list[float]:
            free = ray_state.available_resources_per_node()
            return [free[node_id].get("GPU", 0.0) for node_id in cluster.node_ids]

        gpus_before, stored_before = free_gpus(), stored()
        for index in range(3):
            async with open_engine(cluster.address, gpus) as engine:
                await asyncio.to_thread(connection.close)
                packed = submitted(f"r{index}", size=4_000_000, denoise={"blocks": 100_000})
                await engine.submit(f"r{index}", "t2va", packed).result(30)
                del packed
                connection = await asyncio.to_thread(connect, cluster.address, nodes=2)
            assert free_gpus() == gpus_before, "at once"
            deadline = time.monotonic() + 2
            while stored() != stored_before and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            assert stored() == stored_before
        assert not [
            row for row in ray_state.actors().values() if row["State"] != "DEAD" and "Worker" in row["ActorClassName"]
        ]
    finally:
        await asyncio.to_thread(connection.close)
    assert not ray.is_initialized()


async def test_close_while_a_film_is_on_its_way(cluster: EmbeddedCluster, nothing: Path) -> None:
    """Its node's store does not answer; the thread that waits for it is gone when the cluster is left."""
    backend = unopened(nothing, cluster.address).backend
    assert isinstance(backend, RayBackend)
    backend._connection = await asyncio.to_thread(connect, cluster.address, nodes=2)
    away = NodeAffinitySchedulingStrategy(cluster.node_ids[1], soft=False)
    film = ray.remote(num_cpus=0)(lambda: bytes(4_000_000)).options(scheduling_strategy=away).remote()
    await asyncio.to_thread(ray.wait, [film], fetch_local=False)
    stores = raylets(cluster.node_addresses[1])
    for store in stores:
        store.suspend()
    try:
        fetching = asyncio.ensure_future(backend.fetch(film, SpanRecorder(Place("driver", "driver", ""))))
        del film
        await asyncio.sleep(0.5)
        fetching.cancel()
        began = time.monotonic()
        await backend.close()
        assert time.monotonic() - began < 5
        assert fetching.cancelled()
        assert not backend._asking, "or its thread would ask a Ray that was left"
        assert stores
        assert not ray.is_initialized()
    finally:
        for store in stores:
            store.resume()


# A node that dies --------------------------------------------------------------------------------------------------------


async def test_a_node_dies_and_returns(cluster: EmbeddedCluster, open_engine: Any) -> None:
    """SIGKILL of all of a node in mid-denoise: said so, and resumed when one of the same label is there again."""
    first = cluster.add_node(EmbeddedNode(labels={"rack": "attic"}))
    roles = {"encoder_decoder": {"node": "rack=left"}, "dit": {"node": "rack=attic"}}
    async with open_engine(cluster.address, roles, restarts=8, restart_pause=0.5) as engine:
        pids = {worker.role: worker.pid for worker in await engine.health()}
        job = engine.submit("hit", "t2va", submitted("hit", denoise={"steps": 20, "seconds": 0.1}))
        await at_step(job, Stage.DENOISE, 3)
        began = time.monotonic()
        cluster.kill_node(first)
        while (await state_of(engine, "dit")) != "restarting":
            await asyncio.sleep(0.05)
        assert time.monotonic() - began < 5
        second = cluster.add_node(EmbeddedNode(labels={"rack": "attic"}))
        film = await job.result(60)
        assert bytes(unpack(film.payload).tensors["data"].numpy()) == film_digest()  # type: ignore[union-attr]
        health = {worker.role: worker for worker in await engine.health()}
        assert (health["encoder_decoder"].pid, health["encoder_decoder"].loads) == (pids["encoder_decoder"], 1)
        assert (health["dit"].state, health["dit"].node_id) == ("ready", second)
    cluster.kill_node(second)


async def at_step(job: Job, stage: Stage, done: int) -> None:
    async for step in job.progress():
        if step.stage == stage and step.done >= done:
            return


async def state_of(engine: Engine, role: str) -> str:
    return {worker.role: worker.state for worker in await engine.health()}[role]


# A small store, and a driver that has no GPU ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Iterator[EmbeddedCluster]:
    """A head without GPU for the driver, two nodes with one; the smallest stores that Ray starts with."""
    nodes = [EmbeddedNode(), EmbeddedNode(gpus=1), EmbeddedNode(gpus=1)]
    with EmbeddedCluster.start(nodes=nodes, object_store_bytes=80_000_000) as started:
        yield started


async def test_payloads_larger_than_the_store(small: EmbeddedCluster, open_engine: Any) -> None:
    """Ten requests of 60 MB payloads, back to back, in stores of 80 MB: Ray spills, all finish, nothing stays."""
    gpus = {"encoder_decoder": {"num_gpus": 1.0}, "dit": {"num_gpus": 1.0}}
    blocks = 60_000_000 // 32
    plan = {"encode": {"blocks": blocks}, "denoise": {"blocks": blocks}}
    connection = await asyncio.to_thread(connect, small.address, nodes=2)
    try:
        async with open_engine(small.address, gpus) as engine:
            assert small.node_ids[0] not in {worker.node_id for worker in engine.backend.workers}
            jobs = [engine.submit(f"r{index}", "t2va", submitted(f"r{index}", **plan)) for index in range(10)]
            films = [await job.result(60) for job in jobs]
            for film in films:
                packed = film.payload
                assert [type(buffer).__module__ for buffer in packed.buffers] == ["numpy"], (
                    "CPU data, without a GPU here"
                )
            assert len({bytes(unpack(film.payload).tensors["data"].numpy()) for film in films}) == 1  # type: ignore[union-attr]
            del films, jobs
        deadline = time.monotonic() + 5
        while stored() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert stored() == 0
    finally:
        await asyncio.to_thread(connection.close)
