"""Time until both roles are loaded, against the slower of them loaded alone. Prints JSON.

    python benchmarks/time_to_ready.py --size medium --rounds 5

Workers as the backends run them, each in a process of its own (`--threads`: both in one, as with `address: local`), with
everything imported and the files checked. Rounds alternate: both at once, encoder_decoder alone, dit alone; a fresh process
for each load. A checkpoint of random weights is made by `make-tiny --size` and read from the kernel's cache, so that this is
the processor's and the memory's time: on a disk of its own each machine would wait for that alone.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from claims import Claim, report, spread

from splitreel.cluster.host import NodeFacts, WorkerHost
from splitreel.cluster.replies import reply_value
from splitreel.config import parse_config
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.tiny import make_tiny

ROLES = ("encoder_decoder", "dit")


def prepared(path: str, role: str, dtype: str) -> WorkerHost:
    """A worker that has checked its files and loads next."""
    settings = {"device": "cpu", "dtype": dtype, "threads": 1}
    config = parse_config(
        {"model": {"path": path}, "cluster": {"address": "local"}, "roles": dict.fromkeys(ROLES, settings)}
    )
    host = WorkerHost(MiniMaxH3(), config.role_spec(role), role, NodeFacts(role, "here"))
    reply_value(host.prepare())
    # The libraries' modules that loading imports.
    for name in ("diffusers.modular_pipelines.minimax_h3", "transformers.models.qwen3_vl", "diffusers.models"):
        importlib.import_module(name)
    return host


def serve(path: str, dtype: str, roles: list[str]) -> None:
    """In a process of its own: say when ready, wait for a line, load the roles at once, say when done."""
    hosts = [prepared(path, role, dtype) for role in roles]
    print("ready", flush=True)
    sys.stdin.readline()
    with ThreadPoolExecutor(len(hosts)) as threads:
        for reply in threads.map(lambda host: host.load(), hosts):
            reply_value(reply)
    print("done", flush=True)


def seconds(path: str, dtype: str, processes: list[list[str]]) -> float:
    """Start the processes, let them load at once, and take the time until the last is done."""
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--dtype", dtype, "--serve", path, *roles],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for roles in processes
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        began = time.perf_counter()
        for process in started:
            process.stdin.write("go\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        for process in started:
            assert process.stdout.readline() == "done\n"  # type: ignore[union-attr]
        return time.perf_counter() - began
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=("tiny", "small", "medium"), default="medium")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", action="store_true", help="both roles in one process")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve[0], arguments.dtype, arguments.serve[1:])
        return
    together = [list(ROLES)] if arguments.threads else [[role] for role in ROLES]
    taken: dict[str, list[float]] = {"both": [], **{role: [] for role in ROLES}}
    with tempfile.TemporaryDirectory() as folder:
        path = str(make_tiny(Path(folder) / "model", size=arguments.size))
        for _ in range(arguments.rounds):
            taken["both"].append(seconds(path, arguments.dtype, together))
            for role in ROLES:
                taken[role].append(seconds(path, arguments.dtype, [[role]]))
    medians = {name: round(statistics.median(values), 3) for name, values in taken.items()}
    slower = max(ROLES, key=lambda role: medians[role])
    report(
        Claim(
            8,
            "time to ready, both roles at once",
            "the slower role loaded alone",
            medians["both"] / medians[slower],
            1.15,
            details={
                "seconds": {name: spread(values) for name, values in taken.items()},
                "slower": slower,
                "one_after_the_other": round(sum(medians[role] for role in ROLES) / medians[slower], 3),
            },
        ),
        size=arguments.size,
        dtype=arguments.dtype,
        processes=len(together),
    )


if __name__ == "__main__":
    main()
