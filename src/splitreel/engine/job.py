"""A request under way, as the one who submitted it sees it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from splitreel.engine.backend import StageReceipt
from splitreel.errors import RequestCancelled, RequestTimeout
from splitreel.observe.observer import RequestTrace
from splitreel.observe.progress import Progress
from splitreel.observe.spans import SpanRecord
from splitreel.request import Stage

logger = logging.getLogger(__name__)

T = TypeVar("T")
State = Literal["queued", "running", "completed", "failed", "cancelled"]


def guarded(listener: Callable[[T], None], of: str) -> Callable[[T], None]:
    """A listener of the user's whose fault is logged: it must not harm a request, the engine's loop, or other listeners."""

    def tell(event: T) -> None:
        try:
            listener(event)
        except BaseException:  # sys.exit() too: on the engine's thread it would end the loop, and no caller
            logger.exception("%s: a progress listener failed", of)

    return tell


@dataclass(frozen=True)
class JobStatus:
    """Where a job stands. `position`: requests before it while queued. `progress`: of the stage that runs."""

    request_id: str
    state: State
    stage: Stage | None
    position: int | None
    progress: Progress | None
    elapsed: float


@dataclass(frozen=True)
class Film:
    """What a finished job holds: the film payload in this process, one receipt per stage, and every span of it.

    `seconds`: from the order to encode until the film is here.
    """

    payload: Any
    receipts: tuple[StageReceipt, ...]
    seconds: float
    spans: tuple[SpanRecord, ...] = ()


@dataclass(eq=False)
class Job:
    """One submitted request. All methods belong to the engine's loop."""

    request_id: str
    workflow: str
    cancel: Callable[[], None]
    position: Callable[[], int | None]
    future: asyncio.Future[Film]
    listeners: list[Callable[[Progress], None]] = field(default_factory=list)
    receipts: dict[Stage, StageReceipt] = field(default_factory=dict)
    stage: Stage | None = None
    last_progress: Progress | None = None
    submitted_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    stopped_at: Exception | None = None
    spans: tuple[SpanRecord, ...] = ()
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> State:
        """Queued until its first stage runs, then running until it ended."""
        if not self.future.done():
            return "queued" if self.started_at is None else "running"
        if self.future.cancelled():
            return "cancelled"
        error = self.future.exception()
        if error is None:
            return "completed"
        return "cancelled" if isinstance(error, RequestCancelled) else "failed"

    def status(self) -> JobStatus:
        """A snapshot."""
        return JobStatus(
            request_id=self.request_id,
            state=self.state,
            stage=self.stage,
            position=self.position() if self.state == "queued" else None,
            progress=self.last_progress,
            elapsed=time.monotonic() - self.submitted_at,
        )

    async def result(self, timeout: float | None = None) -> Film:
        """Wait for the film. Raises the request's error, or RequestTimeout when this wait (not the job) is over."""
        try:
            return await asyncio.wait_for(asyncio.shield(self.future), timeout)
        except TimeoutError:
            raise RequestTimeout(
                f"request {self.request_id}: not finished after waiting {timeout:g} s; it goes on. Wait again or cancel it.",
                request_id=self.request_id,
                stage=self.stage,
                seconds=timeout,
            ) from None

    async def progress(self) -> AsyncIterator[Progress]:
        """Each step as it happens, until the job has ended. A slow reader sees the latest, not every one."""
        seen: Progress | None = None
        while not self.future.done():
            self._changed.clear()
            if self.last_progress is not None and self.last_progress is not seen:
                seen = self.last_progress
                yield seen
                continue
            waiter = asyncio.ensure_future(self._changed.wait())
            ends: list[asyncio.Future[Any]] = [waiter, self.future]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiter.cancel()

    def report(self, progress: Progress) -> None:
        """Called by the engine for each step."""
        self.last_progress = progress
        self._changed.set()
        for listener in list(self.listeners):
            guarded(listener, f"request {self.request_id}")(progress)


@dataclass
class Held:
    """What the engine keeps for one request."""

    job: Job
    submitted: Any
    trace: RequestTrace
    payloads: dict[Stage, Any] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
