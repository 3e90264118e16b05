"""The OTLP sink: spans to an OpenTelemetry collector over HTTP, in a thread of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from splitreel.errors import ConfigError
from splitreel.observe.logs import get_logger
from splitreel.observe.spans import SpanRecord
from splitreel.version import __version__

logger = get_logger(__name__)

_CLOSE_TIMEOUT_S = 10.0
_BATCH = 512


def http_exporter(endpoint: str) -> SpanExporter:
    """OpenTelemetry's own exporter. Raises ConfigError when it is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "trace.otlp_endpoint: expected opentelemetry-exporter-otlp-proto-http to be installed, found that it is not. "
            'Install it (pip install "splitreel[otlp]") or leave the setting out.'
        ) from error
    exporter: SpanExporter = OTLPSpanExporter(endpoint=endpoint, timeout=_CLOSE_TIMEOUT_S / 2)
    return exporter


class OtlpSink:
    """Exports from a thread, so that a slow collector delays no request. What it cannot take is dropped, and logged."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._spans: SimpleQueue[SpanRecord | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._export, name="splitreel-otlp", daemon=True)
        self._thread.start()

    def write(self, spans: Sequence[SpanRecord]) -> None:
        """Take spans for the thread."""
        for span in spans:
            self._spans.put(span)

    def close(self) -> None:
        """Send what is left, for ten seconds at most."""
        self._spans.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._exporter.shutdown()

    def _export(self) -> None:
        ended = False
        while not ended:
            batch = [self._spans.get()]
            while batch[-1] is not None and len(batch) < _BATCH:
                try:
                    batch.append(self._spans.get_nowait())
                except Empty:
                    break
            ended = batch[-1] is None
            spans = [readable(span) for span in batch if span is not None and span.trace_id]
            if not spans:
                continue
            try:
                problem = "" if self._exporter.export(spans) is SpanExportResult.SUCCESS else "it refused them"
            except Exception as error:
                problem = str(error)
            if problem:
                logger.warning("trace: %d spans did not reach the OTLP endpoint: %s", len(spans), problem)


def readable(span: SpanRecord) -> ReadableSpan:
    """A record as OpenTelemetry's SDK knows spans; its times are the wall clock's as the recording process saw it."""
    trace_id = int(span.trace_id, 16)

    def context(span_id: str) -> SpanContext:
        return SpanContext(trace_id, int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    ended_well = span.status == "ok"
    return ReadableSpan(
        name=span.name,
        context=context(span.span_id),
        parent=context(span.parent_id) if span.parent_id else None,
        resource=Resource(
            {"service.name": "splitreel", "service.instance.id": f"{span.node}/{span.worker}", "host.name": span.node}
        ),
        attributes=_attributes(span),
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.OK) if ended_well else Status(StatusCode.ERROR, f"{span.status}: {span.error}"),
        start_time=round((span.anchor + span.start) * 1e9),
        end_time=round((span.anchor + span.end) * 1e9),
        instrumentation_scope=InstrumentationScope("splitreel", __version__),
    )


def _attributes(span: SpanRecord) -> dict[str, Any]:
    known: dict[str, Any] = {
        "splitreel.request_id": span.request_id,
        "splitreel.stage": span.stage,
        "splitreel.worker": span.worker,
        "splitreel.role": span.role,
        "splitreel.node": span.node,
        "splitreel.status": span.status,
        "splitreel.sync": span.sync,
    }
    for name, value in span.attributes.items():
        plain = isinstance(value, str | int | float | bool)
        known[f"splitreel.{name}"] = value if plain else json.dumps(value)
    return known
