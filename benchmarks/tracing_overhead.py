"""What tracing costs: the same requests with and without, in turns. Prints JSON.

    python benchmarks/tracing_overhead.py --requests 30

Two sessions are open at once, each with its roles resident: `on` records every span and writes a trace file, `off` has
`trace.record: false` and no file. Requests alternate, and which goes first alternates too, so that a machine that slows
down slows both. The figure is the median of the differences of neighbours, by the median of `off`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from splitreel import Config, GenerateRequest, Session
from splitreel.config import parse_config
from splitreel.observe.files import read_spans


def config(address: str, trace: dict[str, Any]) -> Config:
    """Two roles on the CPU."""
    role = {"device": "cpu", "dtype": "float32", "threads": 1}
    return parse_config(
        {
            "model": {"path": "tiny"},
            "cluster": {"address": address},
            "roles": {"encoder_decoder": role, "dit": role},
            "trace": trace,
        }
    )


def seconds_of(session: Session, steps: int, output: str) -> float:
    request = GenerateRequest(prompt="An alpine lake at sunrise.", steps=steps, seed=1, output=output)  # type: ignore[arg-type]
    began = time.perf_counter()
    session.generate(request)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=30, help="of each kind")
    parser.add_argument("--steps", type=int, default=20, help="sigma points of each request")
    parser.add_argument("--output", default="tensor", help="mp4, frames or tensor")
    parser.add_argument("--address", default="local", help="cluster.address")
    options = parser.parse_args()
    taken: dict[str, list[float]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.jsonl")
        with (
            Session(config(options.address, {"file": file})) as on,
            Session(config(options.address, {"record": False})) as off,
        ):
            sessions = {"on": on, "off": off}
            for session in sessions.values():
                seconds_of(session, options.steps, options.output)
            for index in range(options.requests):
                for name in ("on", "off") if index % 2 else ("off", "on"):
                    taken[name].append(seconds_of(sessions[name], options.steps, options.output))
        spans = len(read_spans(file))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    differences = [on - off for on, off in zip(taken["on"], taken["off"], strict=True)]
    json.dump(
        {
            "requests_each": options.requests,
            "steps": options.steps,
            "address": options.address,
            "spans_per_request": round(spans / (options.requests + 1)),
            "median_seconds": {name: round(value, 4) for name, value in medians.items()},
            "median_difference_percent": round(100 * statistics.median(differences) / medians["off"], 3),
            "difference_of_medians_percent": round(100 * (medians["on"] - medians["off"]) / medians["off"], 3),
            "quartiles_of_off_percent": [
                round(100 * (value / medians["off"] - 1), 2) for value in statistics.quantiles(taken["off"], n=4)
            ],
            "load_average": os.getloadavg()[0],
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
        sys.stdout,
        indent=2,
    )
    print()


if __name__ == "__main__":
    main()
