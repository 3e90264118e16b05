"""Spans: what took how long, where, for which request.

Every process records its own spans on its machine's monotonic clock, always: they cost microseconds, and what runs does
not depend on who looks. Start and end of spans of two machines are never compared; only durations are. `anchor` lays
a process's monotonic clock onto the wall clock, for display.

Ids and their form on the wire (`traceparent`) are W3C's, through OpenTelemetry's API. The records are our own and not
the SDK's spans, because figures of a result must not depend on `OTEL_SDK_DISABLED` or a sampler; the SDK is a sink.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Literal

from opentelemetry import trace as otel
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from splitreel.errors import RequestCancelled

Status = Literal["ok", "error", "cancelled"]

# What a wall clock read less the monotonic one when this process first recorded; for display only.
ANCHOR = time.time() - time.monotonic()


@dataclass(frozen=True)
class TraceContext:
    """Which trace a span belongs to and which span is above it: 32 and 16 hex digits."""

    trace_id: str
    span_id: str

    def carrier(self) -> dict[str, str]:
        """The W3C form that travels in a payload's header."""
        context = otel.SpanContext(int(self.trace_id, 16), int(self.span_id, 16), True, otel.TraceFlags(1))
        carried: dict[str, str] = {}
        holder = otel.set_span_in_context(otel.NonRecordingSpan(context))
        TraceContextTextMapPropagator().inject(carried, holder)
        return carried

    @classmethod
    def of(cls, carrier: Mapping[str, str]) -> TraceContext | None:
        """Read what `carrier` made; None when there is nothing, or nothing valid."""
        holder = TraceContextTextMapPropagator().extract(dict(carrier))
        return cls._of_span(otel.get_current_span(holder).get_span_context())

    @classmethod
    def current(cls) -> TraceContext | None:
        """The caller's own OpenTelemetry span, if one is open."""
        return cls._of_span(otel.get_current_span().get_span_context())

    @classmethod
    def new(cls, above: TraceContext | None = None) -> TraceContext:
        """A new span's ids, in the trace of the one above it or in a new trace."""
        return cls(above.trace_id if above else secrets.token_hex(16), secrets.token_hex(8))

    @classmethod
    def _of_span(cls, context: otel.SpanContext) -> TraceContext | None:
        return cls(f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


@dataclass(frozen=True)
class Place:
    """Who records: a worker, its role and its node; `driver` for the process that holds the session."""

    worker: str
    role: str
    node: str


@dataclass(frozen=True)
class SpanRecord:
    """One finished span. `start` and `end` are seconds of the monotonic clock of the machine that `node` names.

    `anchor` plus either is the wall-clock time as that process saw it. `stage` is the stage that the span is part of, or
    that it leads to (hops, queueing). `sync`: the device was synchronised at both ends.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    request_id: str
    stage: str
    worker: str
    role: str
    node: str
    pid: int
    start: float
    end: float
    anchor: float
    status: Status = "ok"
    error: str = ""
    sync: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end - self.start

    def to_dict(self) -> dict[str, Any]:
        """As plain data, fit for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpanRecord:
        """Back from plain data; unknown names are left out. Raises KeyError when one is missing."""
        for item in fields(cls):
            if item.default is MISSING and item.default_factory is MISSING and item.name not in values:
                raise KeyError(item.name)
        return cls(**{item.name: values[item.name] for item in fields(cls) if item.name in values})


@dataclass(frozen=True)
class Device:
    """What a recorder may do on the device at the ends of a span: wait for it, and open an NVTX range."""

    synchronise: Callable[[], None] | None = None
    mark: Callable[[str], AbstractContextManager[None]] | None = None


@dataclass
class _Open:
    name: str
    span_id: str
    start: float
    attributes: dict[str, Any]
    range: AbstractContextManager[None] | None = None


class SpanRecorder:
    """Records the spans of one run of one stage, of one load, or of one delivery. Belongs to one thread at a time.

    `context` may be set late: hop spans begin before the payload, and with it the context, has arrived.
    """

    def __init__(
        self,
        place: Place,
        *,
        request_id: str = "",
        stage: str = "",
        context: TraceContext | None = None,
        device: Device | None = None,
        enabled: bool = True,
    ) -> None:
        self.place = place
        self.context = context
        self._request_id = request_id
        self._stage = stage
        self._device = device or Device()
        self._enabled = enabled
        self._open: list[_Open] = []
        self._records: list[SpanRecord] = []

    @contextmanager
    def span(self, name: str, **attributes: Any) -> Iterator[dict[str, Any]]:
        """Time a block; what it raises becomes the span's status. Yields the attributes, to be added to."""
        depth = self.begin(name, **attributes)
        try:
            yield attributes if not self._enabled else self._open[depth].attributes
        except BaseException as error:
            self.end(depth, error)
            raise
        self.end(depth)

    def begin(self, name: str, **attributes: Any) -> int:
        """Open a span inside those that are open; returns the depth to `end` it by."""
        if not self._enabled:
            return len(self._open)
        if self._device.synchronise is not None:
            self._device.synchronise()
        opened = _Open(name, secrets.token_hex(8), time.monotonic(), attributes)
        if self._device.mark is not None:
            opened.range = self._device.mark(name)
            opened.range.__enter__()
        self._open.append(opened)
        return len(self._open) - 1

    def end(self, depth: int, error: BaseException | None = None) -> None:
        """Close the span of that depth and all that were left open inside it."""
        while len(self._open) > depth:
            self._close(error)

    def cover(
        self,
        name: str,
        start: float,
        end: float,
        error: BaseException | None = None,
        *,
        span_id: str | None = None,
        parent_id: str | None = None,
        **attributes: Any,
    ) -> SpanRecord:
        """Record a span whose ends were taken on this machine's monotonic clock. With `span_id` it has that id and the
        parent that is given, None for the root of a trace.
        """
        above = parent_id if span_id else self.context.span_id if self.context else None
        return self._record(name, span_id or secrets.token_hex(8), above, start, end, attributes, error, sync=False)

    def finish(self) -> tuple[SpanRecord, ...]:
        """All spans in the order in which they ended, those from before `context` was known included."""
        context = self.context
        if context is None:
            return tuple(self._records)
        return adopt(self._records, context)

    def _close(self, error: BaseException | None) -> None:
        opened = self._open.pop()
        if self._device.synchronise is not None and error is None:
            self._device.synchronise()
        end = time.monotonic()
        if opened.range is not None:
            opened.range.__exit__(None, None, None)
        above = self._open[-1].span_id if self._open else self.context.span_id if self.context else None
        sync = self._device.synchronise is not None
        self._record(opened.name, opened.span_id, above, opened.start, end, opened.attributes, error, sync=sync)

    def _record(
        self,
        name: str,
        span_id: str,
        above: str | None,
        start: float,
        end: float,
        attributes: dict[str, Any],
        error: BaseException | None,
        *,
        sync: bool,
    ) -> SpanRecord:
        record = SpanRecord(
            name=name,
            trace_id=self.context.trace_id if self.context else "",
            span_id=span_id,
            parent_id=above,
            request_id=self._request_id,
            stage=self._stage,
            worker=self.place.worker,
            role=self.place.role,
            node=self.place.node,
            pid=os.getpid(),
            start=start,
            end=end,
            anchor=ANCHOR,
            status=status_of(error),
            error="" if error is None else f"{type(error).__name__}: {error}",
            sync=sync,
            attributes=attributes,
        )
        self._records.append(record)
        return record


def adopt(records: list[SpanRecord] | tuple[SpanRecord, ...], context: TraceContext) -> tuple[SpanRecord, ...]:
    """The records with those that belong to no trace put under `context`."""
    return tuple(
        record
        if record.trace_id
        else replace(record, trace_id=context.trace_id, parent_id=record.parent_id or context.span_id)
        for record in records
    )


def status_of(error: BaseException | None) -> Status:
    """How a span ends that ended with `error`."""
    if error is None:
        return "ok"
    return "cancelled" if isinstance(error, RequestCancelled | GeneratorExit | asyncio.CancelledError) else "error"
