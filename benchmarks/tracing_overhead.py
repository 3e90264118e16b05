"""What tracing costs: the same requests with and without, in turns. Prints JSON.

    python benchmarks/tracing_overhead.py --requests 30

`on` records every span and writes a trace file, `off` is what `trace.record: false` sets. Requests alternate, and which
goes first alternates too, so that a machine that slows down slows both. The figure is the median of the differences of
neighbours, by the median of `off`.

With `--address local` both run in one session, whose recording is switched between requests: two sessions hold their
weights at different addresses, and for that alone two sessions that were both `off` differed by -0.3 % to 8 %.
Elsewhere there are two sessions, and that noise with them.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from splitreel import Config, GenerateRequest, Session
from splitreel.config import parse_config
from splitreel.observe.files import read_spans
from splitreel.observe.spans import Place, SpanRecorder


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


Take = Callable[[str], tuple[float, float]]  # "on" or "off": seconds by the clock and of CPU of one request


@contextmanager
def one_session(file: str, steps: int, output: str) -> Iterator[Take]:
    """The same models and weights for both."""
    with Session(config("local", {"file": file})) as session:

        def take(name: str) -> tuple[float, float]:
            session._engine.observer.enabled = name == "on"
            for host in session._engine.backend._hosts.values():  # type: ignore[attr-defined]
                host._spec = replace(host._spec, trace_record=name == "on")
            return seconds_of(session, steps, output)

        yield take


@contextmanager
def two_sessions(address: str, file: str, steps: int, output: str) -> Iterator[Take]:
    """Both resident at once."""
    with Session(config(address, {"file": file})) as on, Session(config(address, {"record": False})) as off:
        sessions = {"on": on, "off": off}
        yield lambda name: seconds_of(sessions[name], steps, output)


def seconds_of(session: Session, steps: int, output: str) -> tuple[float, float]:
    """Seconds by the clock, and seconds of CPU that this process used (of all of it, where the address is `local`)."""
    request = GenerateRequest(prompt="An alpine lake at sunrise.", steps=steps, seed=1, output=output)  # type: ignore[arg-type]
    began, used = time.perf_counter(), time.process_time()
    session.generate(request)
    return time.perf_counter() - began, time.process_time() - used


def microseconds_per_span(repeat: int = 20_000) -> float:
    """What recording one span costs, less what the empty block costs."""

    def run(enabled: bool) -> float:
        spans = SpanRecorder(Place("dit", "dit", "here"), request_id="r", stage="denoise", enabled=enabled)
        began = time.perf_counter()
        for index in range(repeat):
            with spans.span("denoise.step", index=index):
                pass
        return time.perf_counter() - began

    return (run(True) - run(False)) / repeat * 1e6


def compared(taken: dict[str, list[tuple[float, float]]], which: int) -> dict[str, Any]:
    """Medians in seconds, the median difference of neighbours, and how much `off` itself varies (quartiles)."""
    on, off = ([pair[which] for pair in taken[name]] for name in ("on", "off"))
    median = statistics.median(off)
    differences = [one - other for one, other in zip(on, off, strict=True)]
    return {
        "median_on": round(statistics.median(on), 4),
        "median_off": round(median, 4),
        "median_difference_percent": round(100 * statistics.median(differences) / median, 3),
        "quartiles_of_off_percent": [round(100 * (value / median - 1), 2) for value in statistics.quantiles(off, n=4)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=30, help="of each kind")
    parser.add_argument("--steps", type=int, default=20, help="sigma points of each request")
    parser.add_argument("--output", default="tensor", help="mp4, frames or tensor")
    parser.add_argument("--address", default="local", help="cluster.address")
    options = parser.parse_args()
    taken: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.jsonl")
        local = options.address == "local"
        opened = (
            one_session(file, options.steps, options.output)
            if local
            else two_sessions(options.address, file, options.steps, options.output)
        )
        with opened as take:
            for name in taken:
                take(name)
            for index in range(options.requests):
                for name in ("on", "off") if index % 2 else ("off", "on"):
                    taken[name].append(take(name))
        spans = len(read_spans(file))
    each = round(spans / (options.requests + 1))
    cost = microseconds_per_span()
    json.dump(
        {
            "requests_each": options.requests,
            "steps": options.steps,
            "address": options.address,
            "wall": compared(taken, 0),
            "cpu": compared(taken, 1),
            "spans_per_request": each,
            "microseconds_per_span": round(cost, 2),
            "recording_percent_of_wall": round(
                100 * each * cost / 1e6 / statistics.median(w for w, _ in taken["off"]), 4
            ),
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
