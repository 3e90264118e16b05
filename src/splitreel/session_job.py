"""A submitted request as users hold it, and the film that comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from splitreel.engine.adapters import Chosen
from splitreel.engine.job import Film, Job, JobStatus
from splitreel.h3.films import film_contents
from splitreel.h3.payloads import denoise_counts
from splitreel.observe.progress import Progress
from splitreel.observe.spans import SpanRecord, SpanRecorder, TraceContext
from splitreel.observe.timings import timings_of
from splitreel.request import Effective, GenerateResult
from splitreel.wire import Packed, Payload, unpack

if TYPE_CHECKING:
    from splitreel.session import Session


@dataclass(frozen=True)
class Prepared:
    """A checked request: what it will make, its payload, its adapters, the ids of its span, and the caller's span."""

    effective: Effective
    submitted: Packed
    chosen: Chosen
    context: TraceContext
    above: TraceContext | None


class JobHandle:
    """A submitted request. Every method may be called from any thread."""

    def __init__(self, session: Session, job: Job, prepared: Prepared) -> None:
        self._session = session
        self._job = job
        self._context = prepared.context
        self.effective = prepared.effective

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._job.request_id

    def status(self) -> JobStatus:
        """Queued (with its position), running (with stage and step), completed, failed or cancelled."""
        if self._job.future.done():
            return self._job.status()  # nothing changes any more, also after the session was closed

        async def ask() -> JobStatus:
            return self._job.status()

        return self._session._wait(ask())

    def result(self, timeout: float | None = None) -> GenerateResult:
        """Wait for the film. Raises the request's error; RequestTimeout when only this wait is over."""
        if self._job.future.done():
            return self._made(self._job.future.result())  # also after the session was closed
        return self._session._wait(self._result(timeout))

    @property
    def spans(self) -> tuple[SpanRecord, ...]:
        """What was recorded of the request, however it ended; empty before that."""
        return self._job.spans

    def cancel(self) -> None:
        """Cancel: at once while queued, at the next step while running. Ended jobs are left as they are."""
        self._session._post(self._job.cancel)

    def progress(self) -> Iterator[Progress]:
        """Each step as it happens, until the job has ended."""
        steps = self._job.progress()

        async def following() -> Progress | None:
            return await anext(steps, None)

        while not self._job.future.done() and (step := self._session._wait(following())) is not None:
            yield step

    async def _result(self, timeout: float | None = None) -> GenerateResult:
        return self._made(await self._job.result(timeout))

    def _made(self, film: Film) -> GenerateResult:
        return replace(film_result(self._job.request_id, self.effective, film), recorder=self._recorder)

    @contextmanager
    def _recorder(self) -> Iterator[SpanRecorder]:
        """For what happens to the film after the request has ended. Told on the engine's loop, while there is one."""
        observer = self._session._engine.observer
        spans = SpanRecorder(
            observer.place, request_id=self.request_id, stage="save", context=self._context, enabled=observer.enabled
        )
        try:
            yield spans
        finally:
            self._session._post(observer.spans, spans.finish())


def film_result(request_id: str, effective: Effective, film: Film) -> GenerateResult:
    """What the user gets of a finished job."""
    payload: Payload = unpack(film.payload)
    return GenerateResult(
        request_id=request_id,
        effective=replace(effective, **denoise_counts(payload.header.values)),
        timings=timings_of(film.spans),
        seconds=film.seconds,
        **film_contents(payload),
    )
