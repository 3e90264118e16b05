"""How fast `splitreel plan` simulates: requests over many denoise workers on a virtual clock. Prints JSON.

    python benchmarks/plan.py --requests 1000000 --denoise-workers 64

The baseline is the same number of events through the heap alone, measured in the same run: what a simulation without a
scheduler would take.
"""

from __future__ import annotations

import argparse
import heapq
import json
import platform
import random
import resource
import sys
import time

from splitreel.engine.limits import Limits
from splitreel.plan.simulate import Hand, simulate
from splitreel.request import Stage


def heap_alone(events: int, depth: int) -> float:
    """Seconds for so many pushes and pops at this depth."""
    draw = random.Random(7)
    due = [(draw.random(), index) for index in range(depth)]
    heapq.heapify(due)
    began = time.process_time()
    for index in range(events):
        at, _ = heapq.heappop(due)
        heapq.heappush(due, (at + draw.uniform(0.8, 1.2), index))
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--denoise-workers", type=int, default=64)
    parser.add_argument("--backlog", type=int, default=4_000, help="requests unfinished at any time")
    options = parser.parse_args()
    dits = options.denoise_workers
    hands = [Hand(f"dit {index}", {Stage.DENOISE: 60.0}) for index in range(dits)]
    hands += [Hand(f"side {index}", {Stage.ENCODE: 2.0, Stage.DECODE: 8.0}) for index in range(max(1, dits // 4))]
    limits = Limits(max_in_flight=3 * dits, max_waiting=options.backlog)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    found = simulate([hands], options.requests, backlog=options.backlog, limits=limits, spread=0.2)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    report = {
        "claim": "a million requests over 64 denoise workers in under a minute, in memory that does not grow with them",
        "requests": options.requests,
        "denoise_workers": dits,
        "wall_seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 2),
        "requests_per_cpu_second": round(options.requests / cpu),
        "baseline_heap_alone_seconds": round(heap_alone(3 * options.requests, dits), 2),
        "films_per_hour": round(found.per_hour, 1),
        "films_per_hour_at_most": dits * 60,
        "memory_grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
