"""A scheduler whose stages a test ends by hand."""

from __future__ import annotations

from splitreel.engine.events import (
    Command,
    Event,
    RunStage,
    StageDone,
    StageFailed,
    StageStopped,
    Submitted,
    WorkerUp,
)
from splitreel.engine.limits import Limits
from splitreel.engine.scheduler import Scheduler
from splitreel.engine.tickets import State
from splitreel.request import Stage

ENCODE, DENOISE, DECODE = Stage
PLAIN, REFERENCE = frozenset({"t2va", "fl2va"}), frozenset({"ref2va"})
EVERY = PLAIN | REFERENCE


def up(worker: str, *stages: Stage, workflows: frozenset[str] = EVERY) -> WorkerUp:
    return WorkerUp(worker, frozenset(stages), workflows)


SIDE, DIT = up("side", ENCODE, DECODE), up("dit", DENOISE)


class Studio:
    """A scheduler and what it ordered; `done` and the like end the run that a request has."""

    def __init__(self, *workers: WorkerUp, **limits: int) -> None:
        self.scheduler = Scheduler(Limits(**limits))
        self.runs: dict[str, RunStage] = {}
        for worker in workers:
            self.tell(worker)

    def tell(self, event: Event) -> list[Command]:
        commands = self.scheduler.handle(event)
        self.runs.update({command.request: command for command in commands if isinstance(command, RunStage)})
        return commands

    def submit(self, *requests: str, workflow: str = "t2va", priority: int = 0) -> list[Command]:
        return [command for name in requests for command in self.tell(Submitted(name, workflow, priority))]

    def done(self, request: str) -> list[Command]:
        run = self.runs[request]
        return self.tell(StageDone(request, run.stage, run.worker, run.attempt))

    def failed(self, request: str, reason: object) -> list[Command]:
        run = self.runs[request]
        return self.tell(StageFailed(request, run.stage, run.worker, reason, run.attempt))

    def stopped(self, request: str) -> list[Command]:
        run = self.runs[request]
        return self.tell(StageStopped(request, run.stage, run.worker, run.attempt))

    def states(self, *requests: str) -> list[State | None]:
        return [self.scheduler.state(request) for request in requests]
