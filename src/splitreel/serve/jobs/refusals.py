"""What the job service refuses beyond what a session does."""

from __future__ import annotations

from splitreel.errors import QueueFull, RequestError


class JobNotFound(RequestError):
    """No such job, or it belongs to another key. Detail: `job_id`."""


class JobBusy(RequestError):
    """The job still runs, so that it cannot be deleted. Detail: `job_id`."""


class NothingThere(RequestError):
    """The job has no film (yet), or no trace. Details: `job_id`, `state`."""


class KeyReused(RequestError):
    """An idempotency key came again with another request."""


class OverQuota(QueueFull):
    """One client's own bound is reached. Details: `queued`, `limit`."""


class NotReady(RequestError):
    """The server takes no jobs now: it loads, a role is away, or it is being stopped. Detail: `retry_after` in seconds."""
