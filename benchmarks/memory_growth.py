"""Resident memory of driver and workers after many requests, against that after a few. Prints JSON.

    python benchmarks/memory_growth.py --few 20 --many 200

Real Ray nodes and the tiny checkpoint, 2 steps each. Resident memory is what /proc says of each process without the pages
of files and shared memory (RssAnon), while no stage runs and after a garbage collection in the driver. The object stores are
asked for what they still hold for somebody.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from claims import Claim, report

from configs import roles_config
from engines import stored
from splitreel import GenerateRequest, Session


def anonymous_bytes(pid: int) -> int:
    """Memory of the process that no file backs."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon in /proc: not Linux")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--few", type=int, default=20)
    parser.add_argument("--many", type=int, default=200)
    options = parser.parse_args()
    with Session(roles_config("embedded")) as session:
        empty = stored()
        pids = {"driver": os.getpid()} | {worker.worker: worker.pid for worker in session.health()}

        def memory() -> dict[str, int]:
            gc.collect()
            return {name: anonymous_bytes(pid) for name, pid in pids.items()}

        def films(numbers: range) -> dict[str, int]:
            """Memory after these films, when no stage runs."""
            requests = (GenerateRequest(prompt=f"Lake number {index}.", steps=2, seed=index) for index in numbers)
            for _ in session.stream(requests):
                pass
            return memory()

        after_few = films(range(options.few))
        after_many = films(range(options.few, options.many))
        deadline = time.monotonic() + 10
        while stored() != empty and time.monotonic() < deadline:
            time.sleep(0.05)
        left = stored() - empty
    claims = [
        Claim(
            13,
            f"memory of {name} after {options.many} requests",
            f"after {options.few}",
            after_many[name] / after_few[name],
            1.02,
            details={"bytes": after_many[name], "baseline_bytes": after_few[name]},
        )
        for name in pids
    ]
    report(*claims, Claim(13, "bytes left in the object stores", "before the first request", float(left), 0.0))


if __name__ == "__main__":
    main()
