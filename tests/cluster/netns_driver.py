"""A driver inside a network namespace; prints one JSON object. Run by test_netns: CASE ADDRESS FOLDER DEVICE."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from clockwork import film_digest, submitted
from configs import roles_config
from engines import opened
from namespaces import UCX_PORTS
from splitreel.cluster.doctor.examine import examine
from splitreel.engine.engine import Engine
from splitreel.engine.job import Job
from splitreel.errors import SplitreelError
from splitreel.observe.timings import timings_of
from splitreel.request import Stage
from splitreel.wire import unpack

SLOW = {"denoise": {"steps": 20, "seconds": 0.1}}


async def film_of(job: Job, blocks: int = 1) -> bool:
    """Whether the film is what an undisturbed request makes."""
    film = await job.result(60)
    return bytes(unpack(film.payload).tensors["data"].numpy()) == film_digest(blocks=blocks)  # type: ignore[union-attr]


async def at_step(job: Job, stage: Stage, done: int) -> None:
    async for step in job.progress():
        if step.stage == stage and step.done >= done:
            return


def link(device: str, state: str) -> None:
    subprocess.run(["ip", "link", "set", device, state], check=True)


async def workers(engine: Engine) -> dict[str, Any]:
    return {
        report.worker: {"node": report.node, "state": report.state, "loads": report.loads, "pid": report.pid}
        for report in await engine.health()
    }


async def normal(address: str, folder: Path, device: str) -> dict[str, Any]:
    """Two requests, and a third during which the link is down for a moment."""
    roles = {"encoder_decoder": {"node": "10.77.0.1"}, "dit": {"node": "splitreel-1"}}
    began = time.monotonic()
    async with opened(folder, address, roles, lost_after=8.0) as engine:
        opening = time.monotonic() - began
        jobs = [engine.submit(name, "t2va", submitted(name, **SLOW)) for name in ("r1", "r2")]
        right = [await film_of(job) for job in jobs]
        before = await workers(engine)
        job = engine.submit("blip", "t2va", submitted("blip", **SLOW))
        await at_step(job, Stage.DENOISE, 3)
        link(device, "down")
        await asyncio.sleep(2)
        link(device, "up")
        right.append(await film_of(job))
        return {"opening": opening, "right": right, "before": before, "after": await workers(engine)}


async def blocked(address: str, folder: Path, device: str) -> dict[str, Any]:
    """A start over a link that lets only the head's port through."""
    roles = {"encoder_decoder": {"node": "10.77.0.1"}, "dit": {"node": "169.254.77.2"}}
    began = time.monotonic()
    try:
        async with opened(folder, address, roles, probe_timeout=3.0):
            return {"error": None}
    except SplitreelError as error:
        return {"error": type(error).__name__, "message": str(error), "seconds": time.monotonic() - began}


stuck = blocked


async def cut(address: str, folder: Path, device: str) -> dict[str, Any]:
    """The link is down in mid-denoise until the worker counts as lost, and then in mid-hop for good."""
    roles = {"encoder_decoder": {"node": "10.77.0.1"}, "dit": {"node": "169.254.77.2"}}
    async with opened(folder, address, roles, lost_after=2.0, restarts=1, worker_timeout=15.0) as engine:
        before = await workers(engine)
        job = engine.submit("denoise", "t2va", submitted("denoise", denoise={"steps": 40, "seconds": 0.1}))
        await at_step(job, Stage.DENOISE, 3)
        began = time.monotonic()
        link(device, "down")
        while (await workers(engine))["dit"]["state"] != "restarting":
            await asyncio.sleep(0.05)
        noticed = time.monotonic() - began
        link(device, "up")
        right = await film_of(job)
        resumed = time.monotonic() - began
        after = await workers(engine)
        hop = engine.submit("hop", "t2va", submitted("hop", encode={"steps": 3, "seconds": 0.1, "blocks": 500_000}))
        await at_step(hop, Stage.ENCODE, 3)
        began = time.monotonic()
        link(device, "down")
        try:
            await hop.result(60)
            outcome = "film"
        except SplitreelError as error:
            outcome = f"{type(error).__name__}: {error}"
        ended = time.monotonic() - began
        state = (await workers(engine))["dit"]["state"]
    link(device, "up")
    return {
        "before": before,
        "noticed": noticed,
        "right": right,
        "resumed": resumed,
        "after": after,
        "outcome": outcome,
        "ended": ended,
        "state": state,
    }


async def direct(address: str, folder: Path, device: str) -> dict[str, Any]:
    """Two requests whose payloads travel by nixl."""
    env = {"UCX_TLS": "tcp", "UCX_TCP_PORT_RANGE": UCX_PORTS}
    roles = {"encoder_decoder": {"node": "10.77.0.1", "env": env}, "dit": {"node": "169.254.77.2", "env": env}}
    plan = {"encode": {"blocks": 300_000}, "denoise": {"blocks": 100_000}}
    try:
        async with opened(folder, address, roles, transport="nixl", probe_timeout=5.0) as engine:
            films = [
                await engine.submit(name, "t2va", submitted(name, **plan)).result(60) for name in ("first", "second")
            ]
    except SplitreelError as error:
        return {"error": type(error).__name__, "message": str(error)}
    made = [bytes(unpack(film.payload).tensors["data"].numpy()) for film in films]  # type: ignore[union-attr]
    return {
        "right": [data == film_digest(**plan) for data in made],
        "transports": [[hop.transport for hop in timings_of(film.spans).hops] for film in films],
    }


async def doctor(address: str, folder: Path, device: str) -> dict[str, Any]:
    """What doctor says of the links and of who answers."""
    (folder / "modular_model_index.json").write_text("{}")
    config = roles_config(address, str(folder), encoder_decoder={"node": "10.77.0.1"}, dit={"node": "169.254.77.2"})
    report = await asyncio.to_thread(
        examine, "clockwork:Clockwork", (1, 0), config, output=folder / "films", total=100.0
    )
    return report.to_dict()


doctor_blocked = doctor


if __name__ == "__main__":
    case, head, where, veth = sys.argv[1:]
    print(json.dumps(asyncio.run(globals()[case](head, Path(where), veth))))
