"""Requests on real workers: overlap, cancel, failure, loss and return. Stages take fixed times (`clockwork`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import PlasmaObjectNotAvailable

from clockwork import film_digest, submitted
from splitreel.cluster.embedded import EmbeddedCluster
from splitreel.cluster.ray_backend import RayBackend
from splitreel.engine.backend import PayloadGone, WorkerHealth, WorkerInfo
from splitreel.engine.engine import Engine
from splitreel.engine.job import Film, Job
from splitreel.errors import QueueFull, RequestCancelled, RequestTimeout, StageError, WorkerLost
from splitreel.observe.progress import Progress
from splitreel.request import Stage
from splitreel.wire import unpack

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


def submit(engine: Engine, request_id: str, **plan: Any) -> Job:
    return engine.submit(request_id, "t2va", submitted(request_id, **plan))


def digest(film: Film) -> bytes:
    return bytes(unpack(film.payload).tensors["data"].numpy())  # type: ignore[union-attr]


async def until(job: Job, stage: Stage, done: int) -> None:
    """Wait until the stage has done so many steps."""
    async with asyncio.timeout(30):
        async for step in job.progress():
            if step.stage == stage and step.done >= done:
                return
    raise AssertionError(f"{job.request_id} ended before {stage} {done}")


async def test_three_requests_overlap(cluster: EmbeddedCluster, open_engine: Any) -> None:
    """At some moment encode of N+1, denoise of N and decode of N-1 have all started and not all finished."""
    even = {stage: {"steps": 2, "seconds": 0.4} for stage in ("encode", "denoise", "decode")}
    roles = {"encoder": {"node": "rack=left"}, "dit": {"node": "rack=right"}, "decoder": {"node": "rack=spare"}}
    running: dict[str, tuple[float, float]] = {}

    def note(progress: Progress) -> None:
        key = f"{progress.request_id} {progress.stage}"
        now = time.monotonic()
        first = running.get(key, (now - progress.seconds, now))[0]
        running[key] = (first, now)

    async with open_engine(cluster.address, roles, look_ahead=1) as engine:
        jobs = [submit(engine, f"r{index}", **even) for index in range(5)]
        admitted = []
        for job in jobs:
            job.listeners.append(note)
            job.listeners.append(lambda progress: admitted.append(engine.in_flight))
        films = [await job.result(60) for job in jobs]
    assert [digest(film) for film in films] == [film_digest()] * 5
    assert max(admitted) <= 3
    overlaps = [
        index
        for index in range(1, 4)
        if max(running[f"r{index + 1} encode"][0], running[f"r{index} denoise"][0], running[f"r{index - 1} decode"][0])
        < min(running[f"r{index + 1} encode"][1], running[f"r{index} denoise"][1], running[f"r{index - 1} decode"][1])
    ]
    assert overlaps, running


async def test_health_answers_while_stages_compute(engine: Engine) -> None:
    asleep = submit(engine, "asleep", denoise={"steps": 600, "seconds": 0.1})
    await until(asleep, Stage.DENOISE, 1)
    for _ in range(3):
        began = time.monotonic()
        health = await engine.health()
        assert time.monotonic() - began < 1.0
        assert [worker.state for worker in health] == ["ready", "ready"]
    assert {worker.role: worker.running for worker in health}["dit"] == "denoise of asleep"
    asleep.cancel()


async def test_health_answers_while_python_computes(engine: Engine) -> None:
    busy = submit(engine, "busy", denoise={"steps": 30, "seconds": 0.1, "hold_gil": True})
    await until(busy, Stage.DENOISE, 1)
    began = time.monotonic()
    health = await engine.health()
    assert time.monotonic() - began < 1.0
    assert {worker.role: worker.state for worker in health} == {"encoder_decoder": "ready", "dit": "ready"}
    await busy.result(30)


@pytest.mark.parametrize("found", ["nonsense", PlasmaObjectNotAvailable])
async def test_what_is_no_payload_is_named(cluster: EmbeddedCluster, open_engine: Any, found: Any) -> None:
    """Ray was seen to give its class PlasmaObjectNotAvailable as an object's value: like a lost payload."""
    async with open_engine(cluster.address, hop_timeout=1.0) as engine:
        backend = engine.backend
        assert isinstance(backend, RayBackend)
        encoder = next(worker.name for worker in backend.workers if Stage.ENCODE in worker.stages)
        with pytest.raises(
            PayloadGone, match=r"expected a payload in the object store, found .*(nonsense|NotAvailable)"
        ):
            await backend.run_stage(encoder, Stage.ENCODE, "wrong", ray.put(found))


@pytest.mark.parametrize("stage", list(Stage))
async def test_cancel_stops_at_the_next_step(engine: Engine, stage: Stage) -> None:
    job = submit(engine, "long", **{stage: {"steps": 50, "seconds": 0.2}})
    await until(job, stage, 2)
    began = time.monotonic()
    job.cancel()
    with pytest.raises(RequestCancelled) as caught:
        await job.result(10)
    assert time.monotonic() - began < 1.0
    assert caught.value.stage == stage
    assert 2 <= caught.value.done < 50
    assert f"{stage} stopped after step {caught.value.done} of 50" in str(caught.value)
    assert job.state == "cancelled"
    assert digest(await submit(engine, "next").result(10)) == film_digest()


async def test_cancel_of_queued_requests_is_immediate(engine: Engine) -> None:
    first = submit(engine, "first", encode={"steps": 20, "seconds": 0.1})
    second = submit(engine, "second")
    assert second.status().state == "queued"
    assert second.status().position == 0
    began = time.monotonic()
    second.cancel()
    with pytest.raises(RequestCancelled, match="cancelled before it started"):
        await second.result(5)
    assert time.monotonic() - began < 0.2
    await first.result(20)


async def test_bad_requests_fail_alone(engine: Engine) -> None:
    """Ok, bad at encode, bad at denoise (an error that does not unpickle, and one that is no Exception), ok."""
    jobs = [
        submit(engine, "ok1"),
        submit(engine, "bad1", encode={"trouble": {"1": "value error"}}),
        submit(engine, "bad2", denoise={"steps": 3, "trouble": {"2": "awkward error"}}),
        submit(engine, "bad3", denoise={"trouble": {"1": "panic"}}),
        submit(engine, "ok2"),
    ]
    assert digest(await jobs[0].result(30)) == film_digest()
    with pytest.raises(
        StageError, match=r"encode of request bad1 failed on node 127.* ValueError: the film tore"
    ) as caught:
        await jobs[1].result(30)
    assert (caught.value.stage, caught.value.role, caught.value.request_id) == ("encode", "encoder_decoder", "bad1")
    assert "clockwork.py" in caught.value.remote_traceback
    with pytest.raises(StageError, match="AwkwardError: HTTP 403 Forbidden") as caught:
        await jobs[2].result(30)
    assert caught.value.error_type == "AwkwardError"
    with pytest.raises(StageError, match="Panic: the thread pool has not been initialized"):
        await jobs[3].result(30)
    assert digest(await jobs[4].result(30)) == film_digest()
    assert {worker.loads for worker in await engine.health()} == {1}


KILLS = [(Stage.DENOISE, "dit"), (Stage.ENCODE, "encoder_decoder"), (Stage.DECODE, "encoder_decoder")]


@pytest.mark.parametrize(("stage", "role"), KILLS)
async def test_a_killed_worker_comes_back_and_its_request_resumes(
    engine: Engine, stage: Stage, role: str, tmp_path: Path
) -> None:
    """Killed in step 3 of 8: restarted, resumed from the last payload, the other role untouched, the result the same."""
    plan = {stage: {"steps": 8, "seconds": 0.05, "trouble": {"3": "kill"}, "once": str(tmp_path / "killed")}}
    health = await engine.health()
    before = {worker.role: worker.pid for worker in health}
    done_before = {worker.role: worker.stages_done for worker in health}
    began = time.monotonic()
    job = submit(engine, "hit", **plan)
    film = await job.result(60)
    assert digest(film) == film_digest()
    assert time.monotonic() - began < 30
    after = {worker.role: worker for worker in await engine.health()}
    assert after[role].pid != before[role]
    other = next(name for name in before if name != role)
    assert (after[other].pid, after[other].loads) == (before[other], 1)
    path = unpack(film.payload).header.values["path"]
    assert [step.split("@")[0] for step in path] == ["encode", "denoise", "decode"]
    if stage is not Stage.ENCODE:
        assert path[0] == f"encode@{before['encoder_decoder']}", "the encode before the loss was kept"
    if stage is Stage.DECODE:
        assert path[1] == f"denoise@{before['dit']}", "so was the denoise"
    assert after[other].stages_done - done_before[other] == (1 if other == "dit" else 2), "nothing ran twice"


async def test_a_request_that_kills_its_worker_again_and_again_fails_by_name(
    cluster: EmbeddedCluster, open_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when the worker cannot be brought back, with the first cause and the last."""

    def fails(backend: RayBackend, member: Any) -> None:
        raise RuntimeError("the nodes do not answer")

    async with open_engine(cluster.address, retries=1) as engine:
        job = submit(engine, "poison", denoise={"trouble": {"1": "kill"}})
        with pytest.raises(
            WorkerLost, match=r"request poison: denoise: expected to finish within 2 runs.*worker dit was lost"
        ):
            await job.result(60)
        assert digest(await submit(engine, "well").result(60)) == film_digest()
        monkeypatch.setattr(RayBackend, "_node_again", fails)
        with pytest.raises(
            WorkerLost,
            match=r"worker dit was lost and not brought back in 3 tries\. First: role dit on .* was lost: .*"
            r"Last: RuntimeError: the nodes do not answer",
        ):
            await submit(engine, "last", denoise={"trouble": {"1": "kill"}}).result(60)


async def test_a_restart_that_fails_is_tried_again(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it fails with; also when the worker is lost while it is made ready, and that returns as if all were well."""
    backend = engine.backend
    assert isinstance(backend, RayBackend)
    tries: list[int] = []

    async def dit() -> WorkerHealth:
        return next(worker for worker in await backend.health() if worker.role == "dit")

    async def before_serving(worker: WorkerInfo) -> None:
        tries.append((await dit()).pid)
        if len(tries) == 1:
            raise RuntimeError("the object store is full")
        if len(tries) == 2:
            os.kill(tries[-1], signal.SIGKILL)
            member = backend._members["dit"]
            async with asyncio.timeout(20):
                with contextlib.suppress(WorkerLost):
                    while member.reached():
                        await asyncio.sleep(0.05)

    monkeypatch.setattr(backend, "before_serving", before_serving)
    plan = {"denoise": {"trouble": {"1": "kill"}, "once": str(tmp_path / "killed")}}
    assert digest(await submit(engine, "hit", **plan).result(90)) == film_digest()
    assert len(set(tries)) == 3
    assert (await dit()).pid == tries[-1]


async def test_without_restarts_what_waits_fails_by_name(cluster: EmbeddedCluster, open_engine: Any) -> None:
    async with open_engine(cluster.address, restarts=0) as engine:
        jobs = [submit(engine, "hit", denoise={"trouble": {"1": "kill"}}), submit(engine, "waits")]
        for job in jobs:
            with pytest.raises(WorkerLost, match=r"role dit on 127\.0\.0\.\d: worker dit was lost"):
                await job.result(30)
        assert {worker.role: worker.state for worker in await engine.health()}["dit"] == "lost"


async def test_a_stopped_worker_is_noticed_while_it_works(engine: Engine, tmp_path: Path) -> None:
    """SIGSTOP in mid-stage: Ray says nothing, so the silence itself is the sign, within heartbeat + lost_after."""
    plan = {"denoise": {"steps": 4, "seconds": 0.05, "trouble": {"2": "stop"}, "once": str(tmp_path / "stopped")}}
    began = time.monotonic()
    assert digest(await submit(engine, "hit", **plan).result(60)) == film_digest()
    assert time.monotonic() - began < 30


async def test_an_idle_worker_may_be_silent_for_a_while(cluster: EmbeddedCluster, open_engine: Any) -> None:
    async with open_engine(cluster.address, lost_after=1.0) as engine:
        pid = {worker.role: worker.pid for worker in await engine.health()}["dit"]
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(4)
            assert {worker.role: worker.state for worker in await engine.health()}["dit"] == "silent"
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.5)
        health = {worker.role: worker for worker in await engine.health()}
        assert (health["dit"].state, health["dit"].pid) == ("ready", pid)
        assert digest(await submit(engine, "next").result(20)) == film_digest()


async def test_deadlines(cluster: EmbeddedCluster, open_engine: Any) -> None:
    async with open_engine(cluster.address, stage_timeout=1.0) as engine:
        job = submit(engine, "slow", denoise={"steps": 100, "seconds": 0.1})
        with pytest.raises(
            RequestTimeout, match=r"denoise was not done within 1 s \(engine\.stage_timeout\)"
        ) as caught:
            await job.result(20)
        assert caught.value.stage == Stage.DENOISE
        assert digest(await submit(engine, "next").result(20)) == film_digest()
    async with open_engine(cluster.address, request_timeout=1.0) as engine:
        job = submit(engine, "slow", denoise={"steps": 100, "seconds": 0.1})
        with pytest.raises(RequestTimeout, match=r"denoise was not done within 1 s \(engine\.request_timeout\)"):
            await job.result(20)


async def test_a_stage_that_does_not_stop_costs_its_worker(cluster: EmbeddedCluster, open_engine: Any) -> None:
    async with open_engine(cluster.address, stage_timeout=1.0, stop_timeout=1.0, restarts=1) as engine:
        before = {worker.role: worker.pid for worker in await engine.health()}
        for name in ("hangs", "hangs too"):  # more often than the worker is restarted after one loss
            job = submit(engine, name, denoise={"trouble": {"1": "hang"}})
            with pytest.raises(RequestTimeout):
                await job.result(60)
        assert digest(await submit(engine, "next").result(60)) == film_digest()
        after = {worker.role: worker.pid for worker in await engine.health()}
        assert after["dit"] != before["dit"]
        assert after["encoder_decoder"] == before["encoder_decoder"]


async def test_a_full_queue_says_so_at_once(cluster: EmbeddedCluster, open_engine: Any) -> None:
    async with open_engine(cluster.address, max_waiting=1, max_in_flight=1) as engine:
        first = submit(engine, "r0", encode={"steps": 10, "seconds": 0.1})
        second = submit(engine, "r1")
        with pytest.raises(QueueFull, match="found 1 waiting of 1 allowed") as caught:
            submit(engine, "r2")
        assert (caught.value.queued, caught.value.limit) == (1, 1)
        await first.result(20)
        await second.result(20)


async def test_twenty_cancels_leave_nothing_in_the_store(engine: Engine) -> None:
    import ray

    def used() -> float:
        return float(ray.cluster_resources()["object_store_memory"]) - float(
            ray.available_resources().get("object_store_memory", 0.0)
        )

    size = 4_000_000
    await engine.submit("warm", "t2va", submitted("warm", size=size)).result(30)
    for index in range(20):
        stage = list(Stage)[index % 3]
        packed = submitted(f"r{index}", size=size, **{stage: {"steps": 50, "seconds": 0.05}})
        job = engine.submit(f"r{index}", "t2va", packed)
        await until(job, stage, 1)
        job.cancel()
        with pytest.raises(RequestCancelled):
            await job.result(10)
        del packed, job
    async with asyncio.timeout(10):
        while used() > 1_000_000:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("workers", [1, 2])
async def test_replicas_keep_the_rate(cluster: EmbeddedCluster, open_engine: Any, workers: int) -> None:
    """K DiT workers reach 0.95 of min(K / denoise, 1 / (encode + decode))."""
    plan = {"encode": {"seconds": 0.1}, "denoise": {"seconds": 0.6}, "decode": {"seconds": 0.1}}
    roles = {
        "encoder_decoder": {"node": "rack=left"},
        "dit": {"nodes": ["rack=right", "rack=spare"][:workers]},
    }
    count = 12
    async with open_engine(cluster.address, roles, look_ahead=1) as engine:
        await submit(engine, "warm", **plan).result(20)
        jobs = [submit(engine, f"r{index}", **plan) for index in range(count)]
        finished = []
        for job in jobs:
            await job.result(60)
            finished.append(time.monotonic())
    rate = (count - workers - 1) / (finished[-1] - finished[workers])
    bound = min(workers / 0.6, 1 / 0.2)
    assert rate >= 0.9 * bound, (rate, bound)


async def test_close_is_bounded_and_gives_gpus_back(cluster: EmbeddedCluster, open_engine: Any) -> None:
    gpus = {"encoder_decoder": {"num_gpus": 1.0}, "dit": {"num_gpus": 1.0}}
    for _ in range(3):
        async with open_engine(cluster.address, gpus) as engine:
            submit(engine, "abandoned", denoise={"steps": 1000, "seconds": 0.1})
            began = time.monotonic()
            await engine.close()
            await engine.close()
            assert time.monotonic() - began < 15
