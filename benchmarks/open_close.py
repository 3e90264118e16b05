"""Opens and closes an engine on a real cluster again and again, without pause. Prints JSON.

Each time one request runs, with payloads of 3 MB; afterwards all GPUs are free at once and the object stores are empty
within 2 s, or this fails. Model: the tests' `clockwork`, so that what is timed is Ray and splitreel.

    python benchmarks/open_close.py [TIMES]
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "src")]

import ray
from ray._private import state as ray_state

from clockwork import submitted
from engines import opened, stored
from splitreel.cluster.connection import connect
from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode


def free_gpus(node_ids: tuple[str, ...]) -> list[float]:
    """Of each node."""
    free = ray_state.available_resources_per_node()
    return [free[node_id].get("GPU", 0.0) for node_id in node_ids]


async def main(times: int) -> None:
    gpus = {"encoder_decoder": {"num_gpus": 1.0}, "dit": {"num_gpus": 1.0}}
    opening, closing, emptying = [], [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedCluster.start(nodes=[EmbeddedNode(gpus=1), EmbeddedNode(gpus=1)]) as cluster,
    ):
        connection = connect(cluster.address, nodes=2)
        gpus_before, stored_before = free_gpus(cluster.node_ids), stored()
        for index in range(times):
            began = time.monotonic()
            async with opened(Path(folder), cluster.address, gpus) as engine:
                opening.append(time.monotonic() - began)
                job = engine.submit(f"r{index}", "t2va", submitted(f"r{index}", denoise={"blocks": 100_000}))
                await job.result(60)
                del job
                began = time.monotonic()
            closing.append(time.monotonic() - began)
            assert free_gpus(cluster.node_ids) == gpus_before, "a GPU was not given back"
            began = time.monotonic()
            while stored() != stored_before:
                assert time.monotonic() - began < 2, "the object store was not emptied"
                await asyncio.sleep(0.02)
            emptying.append(time.monotonic() - began)
        living = [row for row in ray_state.actors().values() if row["State"] != "DEAD"]
        assert not living, living
        connection.close()
    print(
        json.dumps(
            {
                "times": times,
                "cores": os.cpu_count(),
                "ray": ray.__version__,
                **{
                    name: {"median_s": round(statistics.median(values), 2), "max_s": round(max(values), 2)}
                    for name, values in (("open", opening), ("close", closing), ("store_empty", emptying))
                },
                "drift_s": round(statistics.mean(opening[-3:]) - statistics.mean(opening[:3]), 2),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
