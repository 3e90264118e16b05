"""How fast the scheduler thinks: requests over many denoise workers, on a virtual clock. Prints JSON.

    python benchmarks/scheduler.py --requests 1000000 --denoise-workers 64

The cluster is simulated with a heap of finish times, so what is measured is the scheduler and the heap. The baseline is
the same simulation with a scheduler that knows only first come, first served per stage: no bounds, no priorities, no
losses, no payloads. `scheduler` is ours on the same smooth day; `trouble` adds priorities, cancels and lost workers.
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
from collections import deque
from collections.abc import Callable

from splitreel.engine.events import (
    Cancelled,
    CancelRequested,
    Command,
    Deliver,
    Event,
    Fail,
    Refuse,
    ReleasePayload,
    RunStage,
    StageDone,
    StageStopped,
    StopStage,
    Submitted,
    WorkerDown,
    WorkerUp,
)
from splitreel.engine.limits import Limits
from splitreel.engine.scheduler import Scheduler
from splitreel.request import Stage

SECONDS = {Stage.ENCODE: 2.0, Stage.DENOISE: 60.0, Stage.DECODE: 8.0}  # virtual; about the released model's proportions
CASES = ("baseline", "scheduler", "trouble")
WORKFLOWS = ("t2va", "fl2va", "ref2va")


def crew(denoise: int) -> list[WorkerUp]:
    """Denoise workers, three quarters of them for `transformer`, and enough encoders and decoders to keep them busy."""
    plain, reference, every = frozenset({"t2va", "fl2va"}), frozenset({"ref2va"}), frozenset(WORKFLOWS)
    sides = max(1, denoise // 4)
    both = frozenset({Stage.ENCODE, Stage.DECODE})
    denoisers = [
        WorkerUp(f"dit-{i}", frozenset({Stage.DENOISE}), reference if i % 4 == 3 else plain) for i in range(denoise)
    ]
    return denoisers + [WorkerUp(f"side-{i}", both, every) for i in range(sides)]


class FirstComeFirstServed:
    """The least that keeps workers busy; the baseline."""

    def __init__(self) -> None:
        self.idle: dict[tuple[Stage, str], deque[WorkerUp]] = {}
        self.lines: dict[tuple[Stage, str], deque[str]] = {}
        self.workers: dict[str, WorkerUp] = {}
        self.free: set[str] = set()
        self.workflow: dict[str, str] = {}

    def handle(self, event: Event) -> list[Command]:
        commands: list[Command] = []
        match event:
            case StageDone(request, stage, worker):
                following = stage.following
                if following is None:
                    commands.append(Deliver(request))
                    del self.workflow[request]
                else:
                    self._line(following, self.workflow[request]).append(request)
                    self._start(following, self.workflow[request], commands)
                self._offer(worker, commands)
            case Submitted(request, workflow):
                self.workflow[request] = workflow
                self._line(Stage.ENCODE, workflow).append(request)
                self._start(Stage.ENCODE, workflow, commands)
            case WorkerUp(worker):
                self.workers[worker] = event
                self._offer(worker, commands)
        return commands

    def _line(self, stage: Stage, workflow: str) -> deque[str]:
        return self.lines.setdefault((stage, workflow), deque())

    def _offer(self, worker: str, commands: list[Command]) -> None:
        up = self.workers[worker]
        self.free.add(worker)
        for stage in reversed(Stage):
            if stage in up.stages:
                for workflow in up.workflows:
                    if line := self._line(stage, workflow):
                        self.free.discard(worker)
                        commands.append(RunStage(line.popleft(), stage, worker, 1))
                        return
        for stage in up.stages:
            for workflow in up.workflows:
                self.idle.setdefault((stage, workflow), deque()).append(up)

    def _start(self, stage: Stage, workflow: str, commands: list[Command]) -> None:
        idle, line = self.idle.get((stage, workflow), deque()), self._line(stage, workflow)
        while idle and line:
            up = idle.popleft()
            if up.worker in self.free:
                self.free.discard(up.worker)
                commands.append(RunStage(line.popleft(), stage, up.worker, 1))


def simulate(
    handle: Callable[[Event], list[Command]], requests: int, workers: list[WorkerUp], backlog: int, trouble: bool
) -> dict[str, float | int]:
    """Submit whenever fewer than `backlog` requests are unfinished, until all have ended; return counts and seconds.

    `trouble`: priorities 0 to 2, one run in 500 loses its worker for a while, one request in 50 is cancelled.
    """
    draw = random.Random(7)
    up = {worker.worker: worker for worker in workers}
    clock, order, submitted, unfinished = 0.0, 0, 0, 0
    counts = {"events": 0, "commands": 0, "delivered": 0, "cancelled": 0, "failed": 0, "refused": 0}
    due: list[tuple[float, int, Event]] = [(0.0, index, worker) for index, worker in enumerate(workers)]
    order = len(due)
    spent = 0.0

    def later(seconds: float, event: Event) -> None:
        nonlocal order
        order += 1
        heapq.heappush(due, (clock + seconds, order, event))

    while due or submitted < requests:
        if submitted < requests and unfinished < backlog and (not due or due[0][0] > 0.0):
            priority = draw.randrange(3) if trouble else 0
            event: Event = Submitted(f"r{submitted}", WORKFLOWS[(0, 0, 1, 2)[submitted % 4]], priority)
            if trouble and draw.random() < 0.02:
                later(draw.uniform(0.0, 600.0), CancelRequested(f"r{submitted}"))
            submitted += 1
            unfinished += 1
        else:
            clock, _, event = heapq.heappop(due)
        began = time.perf_counter()
        commands = handle(event)
        spent += time.perf_counter() - began
        counts["events"] += 1
        counts["commands"] += len(commands)
        for command in commands:
            match command:
                case RunStage(request, stage, worker):
                    seconds = SECONDS[stage] * draw.uniform(0.8, 1.25)
                    if trouble and draw.random() < 0.002:
                        later(seconds / 2, WorkerDown(worker, returning=True))
                        later(seconds / 2 + 30.0, up[worker])
                    else:
                        later(seconds, StageDone(request, stage, worker))
                case StopStage(request, stage, worker):
                    later(0.5, StageStopped(request, stage, worker))
                case Deliver():
                    counts["delivered"] += 1
                    unfinished -= 1
                case Cancelled():
                    counts["cancelled"] += 1
                    unfinished -= 1
                case Fail():
                    counts["failed"] += 1
                    unfinished -= 1
                case Refuse():
                    counts["refused"] += 1
                    unfinished -= 1
                case ReleasePayload():
                    pass
    assert unfinished == 0, f"{unfinished} requests never ended"
    return {**counts, "seconds": spent, "virtual_hours": clock / 3600}


def measured(name: str, requests: int, denoise: int, backlog: int) -> dict[str, object]:
    """One simulation by name; adds what matters."""
    limits = Limits(max_in_flight=3 * denoise, max_waiting=backlog)
    handle = FirstComeFirstServed().handle if name == "baseline" else Scheduler(limits).handle
    began = time.perf_counter()
    counts = simulate(handle, requests, crew(denoise), backlog, trouble=name == "trouble")
    return {
        **counts,
        "wall_seconds": round(time.perf_counter() - began, 3),
        "seconds": round(counts["seconds"], 3),
        "microseconds_per_event": round(counts["seconds"] / counts["events"] * 1e6, 3),
        "events_per_second": round(counts["events"] / counts["seconds"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--denoise-workers", type=int, default=64)
    parser.add_argument("--backlog", type=int, default=4_000, help="requests unfinished at any time")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    options = parser.parse_args()
    report = {
        "claim": "the scheduler decides in microseconds with 64 denoise workers and thousands of waiting requests",
        "requests": options.requests,
        "denoise_workers": options.denoise_workers,
        "backlog": options.backlog,
        **{name: measured(name, options.requests, options.denoise_workers, options.backlog) for name in options.cases},
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
