"""What `splitreel plan` predicts from stage times, against the engine on real Ray nodes with stages of these times.

    python benchmarks/prediction.py --workers 1 2 4 --requests 40

Stages sleep, so that two cores can stand in for five machines. The prediction knows the stage times that were asked for
and nothing of this run; the measurement is the same backlog of requests through a real session of K DiT workers. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from claims import Claim, report

from clockwork import submitted
from engines import opened
from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode
from splitreel.plan.simulate import Hand, Outcome, simulate
from splitreel.request import Stage

ENCODE, DENOISE, DECODE = Stage


def predicted(seconds: dict[Stage, float], workers: int, requests: int) -> Outcome:
    """The split layout with so many DiT workers, all requests there from the start."""
    hands = [Hand("encoder_decoder", {ENCODE: seconds[ENCODE], DECODE: seconds[DECODE]})]
    hands += [Hand(f"dit {index}", {DENOISE: seconds[DENOISE]}) for index in range(workers)]
    return simulate([hands], requests, backlog=requests)


async def measured(address: str, seconds: dict[Stage, float], workers: int, requests: int) -> tuple[float, float]:
    """Films per hour in the middle half, as the prediction counts them, and mean latency in seconds."""
    roles = {
        "encoder_decoder": {"node": "place=0"},
        "dit": {"nodes": [f"place={index + 1}" for index in range(workers)]},
    }
    plan = {stage.value: {"seconds": value} for stage, value in seconds.items()}
    with tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder), address, roles, max_waiting=requests) as engine:

            async def one(name: str) -> float:
                await engine.submit(name, "t2va", submitted(name, **plan)).result(300)
                return time.monotonic()

            await asyncio.gather(*(one(f"warm {index}") for index in range(workers)))
            began = time.monotonic()
            ends = sorted(await asyncio.gather(*(one(f"film {index}") for index in range(requests))))
    first, last = max(1, requests // 4), max(2, requests * 3 // 4)
    per_hour = (last - first) / (ends[last - 1] - ends[first - 1]) * 3600
    return per_hour, sum(ends) / requests - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, nargs=3, default=[0.3, 2.0, 0.5], help="of encode, denoise, decode")
    options = parser.parse_args()
    seconds = dict(zip(Stage, options.seconds, strict=True))
    nodes = [EmbeddedNode(labels={"place": str(index)}) for index in range(max(options.workers) + 1)]
    rows: list[dict[str, Any]] = []
    with EmbeddedCluster.start(nodes=nodes, timeout_s=180) as cluster:
        for workers in options.workers:
            expected = predicted(seconds, workers, options.requests)
            per_hour, latency = asyncio.run(measured(cluster.address, seconds, workers, options.requests))
            rows.append(
                {
                    "dit_workers": workers,
                    "per_hour": {"measured": round(per_hour, 1), "predicted": round(expected.per_hour, 1)},
                    "per_hour_error": round(expected.per_hour / per_hour - 1, 4),
                    "latency": {"measured": round(latency, 3), "predicted": round(expected.latency_mean, 3)},
                    "latency_error": round(expected.latency_mean / latency - 1, 4),
                }
            )
    claims = [
        Claim(
            15,
            f"plan's {what}, largest error for {', '.join(map(str, options.workers))} DiT workers",
            f"{options.requests} requests on real Ray nodes",
            max(abs(row[f"{name}_error"]) for row in rows),
            target,
        )
        for what, name, target in (("films per hour", "per_hour", 0.03), ("mean latency", "latency", 0.05))
    ]
    report(*claims, stage_seconds=options.seconds, requests=options.requests, results=rows)


if __name__ == "__main__":
    main()
