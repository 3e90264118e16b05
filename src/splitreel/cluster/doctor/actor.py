"""The process that looks at a node: pinned there, in the interpreter and environment that a worker would have."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from typing import Any

import numpy as np
import ray
import ray._private.worker as ray_worker

from splitreel.cluster.doctor.context import Context
from splitreel.cluster.doctor.families import FAMILIES
from splitreel.cluster.doctor.files import facts
from splitreel.cluster.doctor.finding import CHECK_S, Finding, run_checks
from splitreel.cluster.replies import WorkerFacts


# A check that hangs must not keep the link's from being answered.
@ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=8)  # type: ignore[call-overload]
class Examiner:
    """Runs families of checks, and takes part in the test of the links."""

    def __init__(self, context: Context, secrets: dict[str, str]) -> None:
        """`secrets`: variables that Ray must not write into its logs."""
        os.environ.update(secrets)
        node = ray_worker.global_worker.node
        assert node is not None
        self._context = replace(context, session_folder=node.get_session_dir_path())

    def look(self, family: str, scale: float) -> list[Finding]:
        """What one family of checks finds, in its time multiplied by `scale`."""
        checks, seconds = FAMILIES[family]
        place = self._context.address
        return run_checks(checks, self._context, node=place, seconds=seconds * scale, each=CHECK_S * scale)

    def facts(self) -> list[WorkerFacts]:
        """Geometry and memory of the roles whose files are here."""
        return facts(self._context)

    def clock(self) -> float:
        """This machine's time, in seconds since 1970."""
        return time.time()

    def offer(self, num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """An object of this node's store."""
        return np.ones(num_bytes, np.uint8)

    def accept(self, nested: list[Any], timeout: float) -> float:
        """Seconds in which an object came here from another store; negative when it did not in time."""
        # Made first, so that only the way is timed.
        if not ray.wait(nested, timeout=timeout, fetch_local=False)[0]:
            return -1.0
        began = time.perf_counter()
        ready, _ = ray.wait(nested, timeout=timeout, fetch_local=True)
        return time.perf_counter() - began if ready else -1.0

    def round_trip(self, address: str, port: int, timeout: float) -> float:
        """The least of five times, in seconds, in which a connection was made; negative when none was."""
        times = []
        for _ in range(5):
            began = time.perf_counter()
            try:
                socket.create_connection((address, port), timeout).close()
            except OSError:
                break
            times.append(time.perf_counter() - began)
        return min(times, default=-1.0)
