"""The requests of a stream that are under way: how many at once, in what order they end, which waits for room."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from splitreel.errors import QueueFull
from splitreel.request import GenerateRequest

if TYPE_CHECKING:
    from splitreel.session_job import JobHandle


class Window:
    """What `Session.stream` and `AsyncSession.stream` share: everything but the waiting.

    While `wanted()` gives a request it is submitted, and `admitted` or `refused` says how that went; then the outcome
    of `first` is waited for, and `passed`.
    """

    def __init__(self, requests: Iterable[GenerateRequest], size: int) -> None:
        """`requests` is read only as far as there is room for."""
        if isinstance(requests, GenerateRequest):
            raise TypeError("stream: expected several requests, found one. Use generate for it, or stream([request]).")
        self._source = iter(requests)
        self._taken = 0
        self._size = size
        self._jobs: deque[JobHandle | Exception] = deque()
        self._held_back: GenerateRequest | None = None
        self._full = False

    def wanted(self) -> GenerateRequest | None:
        """The next one to submit, None while there is no room or when none is left."""
        if self._full or len(self._jobs) >= self._size:
            return None
        if self._held_back is not None:
            request, self._held_back = self._held_back, None
            return request
        self._taken += 1
        return next(self._source, None)

    def admitted(self, job: JobHandle) -> None:
        """It is under way."""
        self._jobs.append(job)

    def refused(self, request: GenerateRequest, error: Exception) -> None:
        """It is not: its error comes when its turn does, but one for which the queue had no room waits until one of ours
        has ended.
        """
        if isinstance(error, QueueFull) and self._jobs:
            self._held_back, self._full = request, True
        else:
            error.add_note(f"It is request {self._taken} of the stream.")
            self._jobs.append(error)

    def first(self) -> JobHandle | None:
        """Whose turn it is, or its error raised; None at the end."""
        job = self._jobs[0] if self._jobs else None
        if isinstance(job, Exception):
            raise job
        return job

    def passed(self) -> None:
        """The first one's outcome was taken. Only now: an interrupt while waiting cancels this one as well."""
        self._jobs.popleft()
        self._full = False

    def cancel(self) -> None:
        """End what is left."""
        for left in self._jobs:
            if not isinstance(left, Exception):
                left.cancel()
