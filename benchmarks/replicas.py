"""Do K DiT workers reach the bound min(K / denoise, 1 / (encode + decode)) on real Ray nodes?

Stages take fixed times (they sleep), so that what is measured is the engine, Ray and the hops, not arithmetic. The
baseline is the bound itself. Prints JSON.

    python benchmarks/replicas.py [--requests 40] [--workers 1 2 4]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = str(Path(__file__).resolve().parents[1] / "tests")
sys.path.insert(0, TESTS)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH", "")]))

from clockwork import Clockwork, submitted
from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode
from splitreel.cluster.ray_backend import RayBackend
from splitreel.config import parse_config
from splitreel.engine.engine import Engine
from splitreel.engine.limits import Deadlines, Limits

ENCODE, DENOISE, DECODE = 0.2, 1.6, 0.2


async def measure(address: str, workers: int, requests: int, folder: Path) -> dict[str, Any]:
    """Requests per second in the steady part of one run."""
    config = parse_config(
        {
            "model": {"path": str(folder)},
            "cluster": {"address": address},
            "roles": {
                "encoder_decoder": {"node": "place=0"},
                "dit": {"nodes": [f"place={index + 1}" for index in range(workers)]},
            },
        }
    )
    limits = Limits(config.max_in_flight, requests, config.engine.retries, look_ahead=config.engine.look_ahead)
    engine = Engine(RayBackend(Clockwork(), config), limits, Deadlines())
    await engine.start()
    try:
        plan = {"encode": {"seconds": ENCODE}, "denoise": {"seconds": DENOISE}, "decode": {"seconds": DECODE}}
        await engine.submit("warm", "t2va", submitted("warm", **plan)).result(60)
        jobs = [engine.submit(f"r{index}", "t2va", submitted(f"r{index}", **plan)) for index in range(requests)]
        ends = []
        for job in jobs:
            await job.result(300)
            ends.append(time.monotonic())
        ends.sort()
    finally:
        await engine.close()
    first, last = workers, requests - workers - 1
    rate = (last - first) / (ends[last] - ends[first])
    bound = min(workers / DENOISE, 1 / (ENCODE + DECODE))
    gaps = [after - before for before, after in zip(ends[first:last], ends[first + 1 : last + 1], strict=True)]
    return {
        "workers": workers,
        "requests": requests,
        "rate_per_s": round(rate, 4),
        "bound_per_s": round(bound, 4),
        "share_of_bound": round(rate / bound, 4),
        "median_gap_s": round(statistics.median(gaps), 4),
    }


def main() -> None:
    """Measure each number of workers on one cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    nodes = [EmbeddedNode(labels={"place": str(index)}) for index in range(max(options.workers) + 1)]
    with tempfile.TemporaryDirectory() as folder, EmbeddedCluster.start(nodes=nodes, timeout_s=180) as cluster:
        Path(folder, "modular_model_index.json").write_text("{}")
        results = [
            asyncio.run(measure(cluster.address, count, options.requests, Path(folder))) for count in options.workers
        ]
    print(json.dumps({"stage_seconds": [ENCODE, DENOISE, DECODE], "results": results}, indent=2))


if __name__ == "__main__":
    main()
