"""What the job service refuses beyond what a session does, and what clients are told of any error."""

from __future__ import annotations

import re

from splitreel.errors import QueueFull, RequestError, SplitreelError


class JobNotFound(RequestError):
    """No such job, or it belongs to another key. Detail: `job_id`."""


class JobBusy(RequestError):
    """The job still runs, so that it cannot be deleted. Detail: `job_id`."""


class NotFinished(RequestError):
    """The job has no film or trace yet. Details: `job_id`, `state`, `retry_after` in seconds."""


class VideoFailed(RequestError):
    """The job has no film and will have none: it failed or was cancelled. Details: `job_id`, `state`, `reason` (a code)."""


class NothingThere(RequestError):
    """What the job had is no longer there, or was never recorded. Details: `job_id`, `state`."""


class KeyReused(RequestError):
    """An idempotency key came again with another request."""


class OverQuota(QueueFull):
    """One client's own bound is reached. Details: `queued`, `limit`."""


class NotReady(RequestError):
    """The server takes no jobs now: it loads, a role is away, or it is being stopped. Detail: `retry_after` in seconds."""


def no_such_job(job_id: str) -> JobNotFound:
    """The error for an id that belongs to no job of the asker's; long ones are cut."""
    return JobNotFound(
        f"video {job_id[:64]!r}: expected the id of one of your videos, found none with it. It may have expired.",
        job_id=job_id[:64],
    )


def code_of(error: BaseException) -> str:
    """A machine's word for an error: the class's name, `worker_lost`; `internal_error` for what is none of ours."""
    if not isinstance(error, SplitreelError) or type(error) is SplitreelError:
        return "internal_error"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def message_of(error: BaseException) -> str:
    """What clients may read: our own messages; of anything else only that it happened."""
    if isinstance(error, SplitreelError):
        return error.message
    return f"The server made a mistake ({type(error).__name__}); its log says more."
