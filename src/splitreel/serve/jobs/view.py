"""What the service says of a job and of itself: plain, unchanging data for any door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from splitreel.engine.backend import WorkerHealth
from splitreel.serve.jobs.table import Job, JobState

Condition = Literal["loading", "ready", "degraded", "draining", "failed"]


@dataclass(frozen=True)
class JobView:
    """A job. Times are seconds since 1970.

    `progress`: percent, from the steps of all stages. `stage`, `unit`, `done`, `total`: the stage that runs and its
    steps. `eta`: seconds until the film. `position`: jobs before it while queued. `request`: the fields of
    GenerateRequest as plain data, media by their names. `effective`: what is really made. `seconds`: what it took.
    """

    id: str
    owner: str
    state: JobState
    created: float
    started: float | None
    ended: float | None
    deadline: float | None
    priority: int
    request: Mapping[str, Any]
    effective: Mapping[str, Any]
    progress: int
    attempts: int
    expires: float | None = None
    stage: str | None = None
    unit: str | None = None
    done: int | None = None
    total: int | None = None
    eta: float | None = None
    position: int | None = None
    seconds: float | None = None
    error_code: str | None = None
    error_message: str | None = None
    cancelling: bool = False

    @property
    def has_ended(self) -> bool:
        """Nothing will change any more."""
        return self.state not in ("queued", "in_progress")


@dataclass(frozen=True)
class ServiceStats:
    """The service at a moment. `condition` and `detail`: whether jobs are taken, and why not. `jobs`: by state.

    `seconds_per_film`: measured; None before the first. `workers`: as they last answered.
    """

    condition: Condition
    detail: str
    jobs: Mapping[str, int]
    seconds_per_film: float | None
    workers: Sequence[WorkerHealth]
    max_in_flight: int
    uptime: float


def view_of(job: Job, *, keep_seconds: float, **live: Any) -> JobView:
    """A row as a view; `live`: what only this process knows."""
    values: dict[str, Any] = {
        "id": job.id,
        "owner": job.owner,
        "state": job.state,
        "created": job.created,
        "started": job.started,
        "ended": job.ended,
        "deadline": job.deadline,
        "priority": job.priority,
        "request": job.request,
        "effective": job.effective,
        "progress": job.progress,
        "attempts": job.attempts,
        "expires": job.ended + keep_seconds if job.ended is not None else None,
        "stage": job.stage,
        "seconds": job.seconds,
        "error_code": job.error_code,
        "error_message": job.error_message,
        "cancelling": job.cancel and job.state == "in_progress",
    }
    return JobView(**{**values, **{name: value for name, value in live.items() if value is not None}})
