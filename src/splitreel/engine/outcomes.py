"""How a request ends: the errors that its owner gets for what the scheduler decided, and who is told."""

from __future__ import annotations

import copy
import logging
import socket
from dataclasses import replace
from typing import TypeVar

from splitreel.engine.backend import PayloadGone, StageReceipt, WorkerInfo
from splitreel.engine.events import Unserved
from splitreel.engine.job import Film, Job
from splitreel.errors import (
    ClusterError,
    QueueFull,
    RequestCancelled,
    RequestTimeout,
    SplitreelError,
    StageError,
    WorkerLost,
)
from splitreel.observe.logs import get_logger
from splitreel.observe.spans import Place
from splitreel.request import Stage

E = TypeVar("E", bound=BaseException)
logger = get_logger(__name__)


class Losses:
    """The workers that are away, and why."""

    def __init__(self) -> None:
        self._lost: dict[str, tuple[WorkerInfo, WorkerLost]] = {}

    def __contains__(self, worker: str) -> bool:
        return worker in self._lost

    def add(self, worker: WorkerInfo, error: WorkerLost) -> None:
        """It is away, or for another reason than before."""
        self.back(worker)  # a key that is set again would keep its place
        self._lost[worker.name] = worker, error

    def back(self, worker: WorkerInfo) -> None:
        """It serves again."""
        self._lost.pop(worker.name, None)

    def latest(self, stage: Stage, workflow: str) -> WorkerLost | None:
        """Of the workers that would serve the stage, why the one is away that was lost last."""
        errors = [
            error for worker, error in self._lost.values() if stage in worker.stages and workflow in worker.workflows
        ]
        return errors[-1] if errors else None


def as_error(request: str, reason: object, stage: Stage, latest: WorkerLost | None) -> Exception:
    """The error for a `Fail`. `latest`: of `Losses`, for the stage."""
    if isinstance(reason, SplitreelError):
        return reason
    if isinstance(reason, Unserved) and latest is not None:
        return copy.copy(latest)  # without a traceback; who gets it adds frames of its own
    if isinstance(reason, BaseException):
        return StageError(f"{stage} of request {request}: {reason}", request_id=request, stage=stage)
    return WorkerLost(
        f"request {request}: {reason}{f' Last: {latest}' if latest else ''}", request_id=request, stage=stage
    )


def as_cancel(request: str, stage: Stage | None, reason: object, stopped: Exception | None) -> Exception:
    """The error for a `Cancelled`. `stopped`: what the stage itself said of where it stopped."""
    if isinstance(reason, SplitreelError):
        return reason
    if stopped is not None:
        return stopped
    where = "before it started" if stage is None else f"before or during {stage}"
    return RequestCancelled(f"request {request}: cancelled {where}.", request_id=request, stage=stage)


def without_input(request: str, stage: Stage, error: PayloadGone) -> ClusterError:
    """Why a stage did not run, when its input cannot be made again."""
    return ClusterError(
        f"request {request}: {stage} did not get the payload of {stage.previous}: {error} See that link and the node that "
        "made the payload, or raise engine.retries.",
        request_id=request,
        stage=stage,
    )


def overdue(request: str, limited: Stage | None, running: Stage | None, seconds: float) -> RequestTimeout:
    """The reason of a cancel by deadline: of the stage `limited`, or with None of the whole request."""
    setting = "engine.request_timeout" if limited is None else "engine.stage_timeout"
    stage = limited or running
    return RequestTimeout(
        f"request {request}: {stage} was not done within {seconds:g} s ({setting}).",
        request_id=request,
        stage=stage,
        seconds=seconds,
    )


def stuck(worker: WorkerInfo, request: str, stage: Stage, seconds: float) -> WorkerLost:
    """Why a worker is given up that does not stop when asked to."""
    return WorkerLost(
        f"role {worker.role} on {worker.node}: expected {stage} of request {request} to stop within {seconds:g} s, found it "
        "still running. The worker is replaced.",
        role=worker.role,
        node=worker.node,
    )


def undelivered(request: str, made: StageReceipt, error: Exception) -> WorkerLost:
    """The error of a film that was made, and did not come here from the worker that made it."""
    return WorkerLost(
        f"request {request}: the film did not arrive from {made.node}, where {made.worker} made it: {error}",
        request_id=request,
        stage=Stage.DECODE,
        node=made.node,
    )


def queue_full(waiting: int, limit: int) -> QueueFull:
    """The error for a `Refuse`."""
    return QueueFull(
        f"queue: expected room for one more request, found {waiting} waiting of {limit} allowed. Try again later, or raise "
        "engine.max_waiting.",
        queued=waiting,
        limit=limit,
    )


def conclude(job: Job, outcome: Film | Exception, place: Place) -> None:
    """Tell the job's owner and the log how it ended."""
    extra = {"request_id": job.request_id, "role": place.role, "node": place.node}
    if isinstance(outcome, Film):
        job.future.set_result(replace(outcome, spans=job.spans))
        logger.info("request %s: done in %.2f s", job.request_id, outcome.seconds, extra=extra)
        return
    job.future.set_exception(outcome)
    level = logging.INFO if isinstance(outcome, RequestCancelled | QueueFull) else logging.ERROR
    logger.log(level, "request %s: %s", job.request_id, outcome, extra=extra)


def outcome_of(outcome: Film | Exception) -> str:
    """One word for counters and traces."""
    match outcome:
        case Film():
            return "completed"
        case QueueFull():
            return "refused"
        case RequestCancelled():
            return "cancelled"
        case _:
            return "failed"


def driver_place() -> Place:
    """What this process is called in spans."""
    return Place("driver", "driver", socket.gethostname())


def bare(error: E) -> E:
    """The error without its local frames: they hold the payload's reference, and with it its memory, until the garbage
    collector comes by. The traceback that matters is the worker's, in the error's details.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
