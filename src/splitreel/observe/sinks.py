"""Opens the sinks that spans go to."""

from __future__ import annotations

from splitreel.observe.files import TraceFile
from splitreel.observe.observer import Sink


def open_sinks(file: str | None, otlp_endpoint: str | None) -> list[Sink]:
    """A JSONL file, an OTLP collector, both or none. Raises ConfigError when one cannot be had."""
    sinks: list[Sink] = []
    if otlp_endpoint:
        from splitreel.observe.otlp import OtlpSink, http_exporter

        sinks.append(OtlpSink(http_exporter(otlp_endpoint)))
    if file:
        sinks.append(TraceFile(file))
    return sinks
