"""How busy the DiT worker is, on real Ray nodes with fixed stage times, against a one-look-ahead loop. Prints JSON.

    python benchmarks/pipeline_share.py --requests 40 --unit 0.2

The baseline is the loop of FastVideo's pull request 1830, written for two plain Ray actors: encode of the next request is
ordered with the denoise of this one, the decode when that is done, and the next denoise at once; each film is fetched
before the loop goes on. The bound is the slower machine: max(encode + decode, denoise) per request. With a consumer, each
film is held for one denoise time before the next is taken. Engine and loop take turns; figures are of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import ray
from claims import Claim, report
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from clockwork import submitted
from engines import opened
from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode
from splitreel.engine.engine import Engine
from splitreel.engine.job import Job

# What `Session.stream` admits ahead: twice `max_in_flight`, which is 5 for one DiT worker.
WINDOW = 10
MIXES = {"1:2:1": (1, 2, 1), "2:2:1": (2, 2, 1)}


@ray.remote(num_cpus=0)
class Plain:
    """Stages that take their time and hand on what they got."""

    def stage(self, seconds: float, payload: object) -> object:
        time.sleep(seconds)
        return payload


async def baseline(nodes: tuple[str, ...], seconds: tuple[float, ...], requests: int, hold: float) -> float:
    """Seconds per request in the middle half."""
    side, dit = (
        Plain.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in nodes
    )
    encode, denoise, decode = seconds
    ends = []

    async def take(film: object) -> None:
        await film  # type: ignore[misc]
        ends.append(time.monotonic())
        await asyncio.sleep(hold)

    denoised = dit.stage.remote(denoise, side.stage.remote(encode, 0))
    for index in range(1, requests):
        following = side.stage.remote(encode, index)
        await asyncio.to_thread(ray.wait, [denoised], num_returns=1, fetch_local=False)
        film = side.stage.remote(decode, denoised)
        denoised = dit.stage.remote(denoise, following)
        await take(film)
    await take(side.stage.remote(decode, denoised))
    for actor in (side, dit):
        ray.kill(actor)
    return _per_request(ends)


async def product(engine: Engine, seconds: tuple[float, ...], requests: int, hold: float, name: str) -> float:
    """Likewise, through the engine; as many requests are admitted as `Session.stream` admits."""
    plan = dict(zip(("encode", "denoise", "decode"), ({"seconds": value} for value in seconds), strict=True))
    waiting: list[Job] = []
    ends = []

    async def films() -> AsyncIterator[float]:
        for index in range(requests):
            while len(waiting) >= WINDOW:
                await waiting.pop(0).result(120)
                yield time.monotonic()
            waiting.append(engine.submit(f"{name}{index}", "t2va", submitted(f"{name}{index}", **plan)))
        while waiting:
            await waiting.pop(0).result(120)
            yield time.monotonic()

    async for end in films():
        ends.append(end)
        await asyncio.sleep(hold)
    return _per_request(ends)


def _per_request(ends: list[float]) -> float:
    first, last = len(ends) // 4, len(ends) * 3 // 4
    return (ends[last] - ends[first]) / (last - first)


async def main(requests: int, unit: float, rounds: int) -> None:
    claims = []
    nodes = [EmbeddedNode(labels={"rack": name}) for name in ("left", "right")]
    roles = {"encoder_decoder": {"node": "rack=left"}, "dit": {"node": "rack=right"}}
    with EmbeddedCluster.start(nodes=nodes) as cluster, tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder), cluster.address, roles) as engine:
            for name, parts in MIXES.items():
                seconds = tuple(unit * part for part in parts)
                bound = max(seconds[0] + seconds[2], seconds[1])
                runs: dict[str, list[float]] = {"engine": [], "loop": []}
                for turn in range(rounds):
                    for kind in sorted(runs, reverse=bool(turn % 2)):
                        if kind == "engine":
                            took = await product(engine, seconds, requests, 0.0, f"{name}-{turn}-")
                        else:
                            took = await baseline(cluster.node_ids, seconds, requests, 0.0)
                        runs[kind].append(took)
                ours, theirs = statistics.median(runs["engine"]), statistics.median(runs["loop"])
                claims.append(
                    Claim(
                        4,
                        f"DiT busy share at {name}, of the bound",
                        "one look-ahead loop",
                        bound / ours,
                        0.97,
                        more_is_better=True,
                        details={
                            "busy": round(seconds[1] / ours, 4),
                            "baseline_busy": round(seconds[1] / theirs, 4),
                            "baseline_of_bound": round(bound / theirs, 4),
                            "by_baseline": round(theirs / ours, 4),
                            **{f"{kind}_seconds": [round(took, 4) for took in times] for kind, times in runs.items()},
                        },
                    )
                )
                if name == "1:2:1":
                    held = await product(engine, seconds, requests, seconds[1], "held-")
                    theirs_held = await baseline(cluster.node_ids, seconds, requests, seconds[1])
                    claims.append(
                        Claim(
                            5,
                            "throughput with a consumer that takes one denoise time per film",
                            "without consumer",
                            ours / held,
                            0.97,
                            more_is_better=True,
                            details={"baseline_loop": round(theirs / theirs_held, 4)},
                        )
                    )
    report(*claims, requests=requests, unit_seconds=unit, rounds=rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--unit", type=float, default=0.2, help="seconds of the unit of the stage times")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    asyncio.run(main(options.requests, options.unit, options.rounds))
