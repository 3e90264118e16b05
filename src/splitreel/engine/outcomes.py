"""How a request ends, in words: the errors that its owner gets for what the scheduler decided."""

from __future__ import annotations

import socket
from collections.abc import Collection

from splitreel.engine.backend import WorkerInfo
from splitreel.engine.events import Unserved
from splitreel.engine.job import Film
from splitreel.errors import QueueFull, RequestCancelled, RequestTimeout, SplitreelError, StageError, WorkerLost
from splitreel.observe.spans import Place
from splitreel.request import Stage


def as_error(request: str, reason: object, stage: Stage, lost: Collection[WorkerLost]) -> Exception:
    """The error for a `Fail`. `lost`: the workers that are away, the latest last."""
    latest = list(lost)[-1] if lost else None
    if isinstance(reason, SplitreelError):
        return reason
    if isinstance(reason, Unserved) and latest is not None:
        return latest
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


def queue_full(waiting: int, limit: int) -> QueueFull:
    """The error for a `Refuse`."""
    return QueueFull(
        f"queue: expected room for one more request, found {waiting} waiting of {limit} allowed. Try again later, or raise "
        "engine.max_waiting.",
        queued=waiting,
        limit=limit,
    )


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


def bare(error: Exception) -> Exception:
    """The error without its local frames: they hold the payload's reference, and with it its memory, until the garbage
    collector comes by. The traceback that matters is the worker's, in the error's details.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
