"""What the engine and Ray cost per request when stages take no time, against a plain chain of three actor calls. Prints JSON.

    python benchmarks/call_overhead.py --requests 1000

The chain hands one object through two actors on two nodes and fetches the end; it has no cancel, no deadline, no receipt,
no spans, no progress, and a lost reference would block it for ever. All requests are submitted at once, in turns of 100.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import ray
from claims import Claim, report, spread
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from clockwork import submitted
from engines import opened
from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode

TURN = 100


@ray.remote(num_cpus=0)
class Plain:
    """Hands on what it gets."""

    def stage(self, payload: object) -> object:
        return payload


async def main(requests: int) -> None:
    nodes = [EmbeddedNode(labels={"rack": name}) for name in ("left", "right")]
    roles = {"encoder_decoder": {"node": "rack=left"}, "dit": {"node": "rack=right"}}
    taken: dict[str, list[float]] = {"engine": [], "chain": []}
    with EmbeddedCluster.start(nodes=nodes) as cluster, tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder), cluster.address, roles, max_waiting=2 * TURN) as engine:
            side, dit = (
                Plain.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
                for node in cluster.node_ids
            )
            payload = submitted("plain")

            async def chain(_: str) -> None:
                await side.stage.remote(dit.stage.remote(side.stage.remote(ray.put(payload))))

            async def through(name: str) -> None:
                await engine.submit(name, "t2va", submitted(name)).result(120)

            runs = {"engine": through, "chain": chain}
            for turn in range(-1, requests // TURN):
                for kind in sorted(runs, reverse=bool(turn % 2)):
                    began = time.perf_counter()
                    await asyncio.gather(*(runs[kind](f"{kind} {turn} {index}") for index in range(TURN)))
                    if turn >= 0:  # the first turn warms up
                        taken[kind].append((time.perf_counter() - began) / TURN)
    report(
        Claim(
            12,
            "time per request with empty stages",
            "plain Ray actor chain of three calls",
            statistics.median(taken["engine"]) / statistics.median(taken["chain"]),
            1.3,
            details={f"{name}_seconds": spread(values) for name, values in taken.items()},
        ),
        requests_each=requests // TURN * TURN,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=1000)
    asyncio.run(main(parser.parse_args().requests))
