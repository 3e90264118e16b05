"""Where the driver's spans come together: its own, and those that workers send. From here they go to the sinks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from splitreel.observe.logs import get_logger
from splitreel.observe.metrics import Metrics
from splitreel.observe.spans import Place, SpanRecord, SpanRecorder, TraceContext, adopt

logger = get_logger(__name__)


class Sink(Protocol):
    """Takes finished spans. What it raises is logged once, and it is then left alone: no request fails because of it."""

    def write(self, spans: Sequence[SpanRecord]) -> None:
        """Take some; quick, since the engine's loop waits."""
        ...

    def close(self) -> None:
        """No more will come. Bounded."""
        ...


class Observer:
    """Hands every span to every sink, on the engine's loop."""

    def __init__(
        self, place: Place, sinks: Sequence[Sink] = (), *, metrics: Metrics | None = None, enabled: bool = True
    ) -> None:
        self.place = place
        self.enabled = enabled
        self.metrics = metrics or Metrics()
        self._sinks = [self.metrics, *sinks]
        self.calling: set[RequestTrace] = set()  # those with a call under way

    def spans(self, spans: Sequence[SpanRecord]) -> None:
        """Finished spans."""
        for sink in list(self._sinks) if spans else ():
            try:
                sink.write(spans)
            except Exception as error:
                logger.warning("trace: %s does not take spans and gets no more: %s", type(sink).__name__, error)
                self._sinks.remove(sink)

    def add(self, sink: Sink) -> None:
        """One more sink, from now on."""
        self._sinks.append(sink)

    def worker_down(self, worker: str, error: BaseException) -> None:
        """It no longer serves: the call that it had ends here, before the one that takes its place begins."""
        self.metrics.worker_down(worker)
        for trace in list(self.calling):
            trace.worker_down(worker, error)

    def close(self) -> None:
        """Close the sinks; safe to call again."""
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            try:
                sink.close()
            except Exception as error:
                logger.warning("trace: %s did not close: %s", type(sink).__name__, error)


class RequestTrace:
    """The driver's spans of one request, and those that its workers sent.

    `request` from admission to the end; `queue` while no stage runs, once before each stage; `call` from the order to
    run a stage to its answer. All on the driver's clock.
    """

    def __init__(self, observer: Observer, request_id: str, context: TraceContext, above: TraceContext | None) -> None:
        """`context`: the ids of the span `request`, which the payload's header carries; `above`: the caller's own."""
        self.records: list[SpanRecord] = []
        self._observer = observer
        self._request_id = request_id
        self._context = context
        self._above = above
        self._began = self._waiting_since = time.monotonic()
        self._waits = True  # for a stage to be ordered
        self._call: tuple[str, str, float] | None = None  # under way: stage, worker, when it began

    def stage_begins(self, stage: str, worker: str) -> float:
        """The stage is ordered now; when that was."""
        now = time.monotonic()
        self._observer.metrics.call_began(worker, self._request_id)
        self._cover("queue", stage, self._waiting_since, now)
        self._waits = False
        self._call = (stage, worker, now)
        self._observer.calling.add(self)
        return now

    def stage_ended(self, stage: str, worker: str, began: float, error: BaseException | None) -> None:
        """The answer, or the news that none will come, is here; of a call that has ended it is no news."""
        if self._call != (stage, worker, began):
            return
        self._call = None
        self._observer.calling.discard(self)
        self._waiting_since = time.monotonic()
        self._waits = error is None
        self._observer.metrics.call_ended(worker, self._request_id)
        self._cover("call", stage, began, self._waiting_since, error, to=worker)

    def worker_down(self, worker: str, error: BaseException) -> None:
        """If the call under way was to this worker, it has ended."""
        if self._call is not None and self._call[1] == worker:
            self.stage_ended(*self._call, error)

    def delivery(self) -> SpanRecorder:
        """For the film's hop to the driver; `add` what it recorded."""
        return SpanRecorder(
            self._observer.place,
            request_id=self._request_id,
            stage="deliver",
            context=self._context,
            enabled=self._observer.enabled,
        )

    def add(self, spans: Sequence[SpanRecord]) -> None:
        """What was recorded elsewhere for this request."""
        adopted = adopt(tuple(spans), self._context)
        self.records.extend(adopted)
        self._observer.spans(adopted)

    def end(self, error: BaseException | None) -> None:
        """The request has ended; `error` says how."""
        if error is not None and self._waits:
            self._cover("queue", "", self._waiting_since, time.monotonic(), error)
        above = self._above.span_id if self._above else None
        now = time.monotonic()
        self._cover("request", "", self._began, now, error, span_id=self._context.span_id, parent_id=above)

    def _cover(
        self,
        name: str,
        stage: str,
        start: float,
        end: float,
        error: BaseException | None = None,
        *,
        span_id: str | None = None,
        parent_id: str | None = None,
        **attributes: str,
    ) -> None:
        if not self._observer.enabled:
            return
        recorder = SpanRecorder(self._observer.place, request_id=self._request_id, stage=stage, context=self._context)
        record = recorder.cover(name, start, end, error, span_id=span_id, parent_id=parent_id, **attributes)
        self.records.append(record)
        self._observer.spans([record])
