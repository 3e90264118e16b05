"""Many clients at once on `splitreel serve` with stages of test durations: is any job lost or made twice, does memory stay
flat, does /health answer?

    PYTHONPATH=tests python benchmarks/serve_load.py [--clients 200] [--jobs 5] [--queue 256] [--step-seconds 0.002]

The server runs in a process of its own, the clients in this one, on one loop. Each client asks for its jobs one after the
other; refused with 429 it waits as `Retry-After` says, three times at most. Every film is compared with its request's seed.
/health is asked from a process of its own, so that busy clients do not count as a slow server.
The baseline of /health is measured in the same run, before the load. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from servers import timed_server
from timed_h3 import marked

FIELDS = {"prompt": "A lake.", "steps": 3}


def health(address: str, stop: Any, waits: Any) -> None:
    """In a process of its own: seconds of each answer until told to stop."""
    found = []
    with httpx.Client(base_url=address, timeout=120) as http:
        while not stop.is_set():
            began = time.monotonic()
            assert http.get("/health").status_code == 200
            found.append(time.monotonic() - began)
            stop.wait(0.02)
    waits.put(found)


@contextmanager
def probed(address: str, into: list[float]) -> Iterator[None]:
    """What /health took meanwhile."""
    forks = multiprocessing.get_context("forkserver")
    stop, waits = forks.Event(), forks.Queue()
    process = forks.Process(target=health, args=(address, stop, waits))
    process.start()
    try:
        yield
    finally:
        stop.set()
        into.extend(waits.get(timeout=150))
        process.join(20)


async def ask(http: httpx.AsyncClient, outcomes: Counter[str], method: str, path: str, **more: Any) -> httpx.Response:
    """Again on a broken connection, as clients do; the idempotency key makes that safe."""
    while True:
        try:
            return await http.request(method, path, **more)
        except httpx.TransportError:
            outcomes["broken connections"] += 1
            assert outcomes["broken connections"] < 1000


async def client(http: httpx.AsyncClient, index: int, jobs: int, outcomes: Counter[str], films: dict[str, int]) -> None:
    """One client's jobs."""
    for turn in range(jobs):
        seed = index * 1000 + turn
        for _ in range(4):
            key = {"Idempotency-Key": f"job-{seed}"}
            answer = await ask(http, outcomes, "POST", "/v1/videos", json={**FIELDS, "seed": seed}, headers=key)
            if answer.status_code != 429:
                break
            outcomes["answers 429"] += 1
            await asyncio.sleep(float(answer.headers["retry-after"]))
        if answer.status_code != 200:
            outcomes[f"refused {answer.status_code}"] += 1
            continue
        video = answer.json()
        pause = 0.2
        while video["status"] not in ("completed", "failed"):
            await asyncio.sleep(pause)
            pause = min(2.0, pause * 1.5)
            video = (await ask(http, outcomes, "GET", f"/v1/videos/{video['id']}")).json()
        outcomes[video["status"]] += 1
        film = await ask(http, outcomes, "GET", f"/v1/videos/{video['id']}/content")
        outcomes["right films"] += int(film.content.endswith(marked(seed)))
        films[video["id"]] = seed


async def load(address: str, pid: int, options: argparse.Namespace) -> dict[str, object]:
    """The run and its figures."""
    server = psutil.Process(pid)
    outcomes: Counter[str] = Counter()
    films: dict[str, int] = {}
    before: list[float] = []
    during: list[float] = []
    limits = httpx.Limits(max_connections=options.clients + 8)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as http:
        with probed(address, before):
            await asyncio.sleep(5)
        await client(http, 900, 20, Counter(), {})  # caches and pools are warm
        memory = [server.memory_info().rss]
        began = time.monotonic()
        with probed(address, during):
            work = asyncio.gather(
                *(client(http, index, options.jobs, outcomes, films) for index in range(options.clients))
            )
            while not work.done():
                await asyncio.wait({work}, timeout=1.0)
                memory.append(server.memory_info().rss)
            await work
            seconds = time.monotonic() - began
        figures = (await http.get("/metrics")).text
    states = {
        line.split('"')[1]: int(float(line.split()[-1]))
        for line in figures.splitlines()
        if line.startswith("splitreel_jobs{")
    }
    asked = options.clients * options.jobs
    half = len(memory) // 2
    return {
        "asked": asked,
        "outcomes": dict(outcomes),
        "lost": asked
        - outcomes["completed"]
        - outcomes["failed"]
        - sum(n for k, n in outcomes.items() if k.startswith("refused")),
        "ledger": states,
        "doubled": states["completed"] - 20 - outcomes["completed"],
        "seconds": round(seconds, 1),
        "jobs_per_second": round(outcomes["completed"] / seconds, 1),
        "health_ms_before": quantiles(before),
        "health_ms_during": quantiles(during),
        "memory_mb": {
            "start": memory[0] >> 20,
            "half": memory[half] >> 20,
            "end": memory[-1] >> 20,
            "peak": max(memory) >> 20,
        },
        "load_average": os.getloadavg()[0],
    }


def quantiles(waits: list[float]) -> dict[str, float]:
    """Median, p99 and most, in milliseconds."""
    ordered = sorted(waits)
    return {
        "p50": round(statistics.median(ordered) * 1e3, 1),
        "p99": round(ordered[int(len(ordered) * 0.99)] * 1e3, 1),
        "max": round(ordered[-1] * 1e3, 1),
        "count": len(ordered),
    }


def main() -> None:
    """Read options, start the server, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--queue", type=int, default=256)
    parser.add_argument("--step-seconds", type=float, default=0.002)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        timed_server(Path(folder), step_seconds=options.step_seconds, max_queued=options.queue) as server,
    ):
        server.until_ready(120)
        assert server.process.pid is not None
        print(json.dumps(asyncio.run(load(server.address, server.process.pid, options)), indent=2))


if __name__ == "__main__":
    main()
