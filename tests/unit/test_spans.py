"""Recording: nesting, status, context, what device hooks see; and the sinks that need no cluster."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client.parser import text_string_to_metric_families

from splitreel.config import parse_config
from splitreel.errors import ConfigError, RequestCancelled
from splitreel.observe.logs import FORMAT, PlaceFilter, about, get_logger
from splitreel.observe.metrics import Metrics
from splitreel.observe.observer import Observer
from splitreel.observe.otlp import OtlpSink, http_exporter
from splitreel.observe.spans import Device, Place, SpanRecorder, TraceContext
from traces import failed_and_cancelled, two_requests

PLACE = Place("dit", "dit", "10.0.0.2")


def test_spans_nest_and_take_their_status_from_what_is_raised() -> None:
    spans = SpanRecorder(PLACE, request_id="r", stage="denoise", context=TraceContext("1" * 32, "2" * 16))

    def tear() -> None:
        with spans.span("pack") as attributes:
            attributes["bytes"] = 3
        spans.begin("denoise.step", index=1)
        raise ValueError("the film tore")

    with pytest.raises(ValueError, match="tore"), spans.span("denoise"):
        tear()
    with pytest.raises(RequestCancelled), spans.span("decode"):
        raise RequestCancelled("cancelled")
    pack, step, denoise, decode = spans.finish()
    assert [span.status for span in (pack, step, denoise, decode)] == ["ok", "error", "error", "cancelled"]
    assert pack.parent_id == step.parent_id == denoise.span_id
    assert denoise.parent_id == "2" * 16
    assert {span.trace_id for span in spans.finish()} == {"1" * 32}
    assert denoise.error == "ValueError: the film tore"
    assert denoise.start <= pack.start <= pack.end <= step.start <= step.end <= denoise.end


def test_spans_from_before_the_payload_join_its_trace() -> None:
    spans = SpanRecorder(PLACE)
    with spans.span("hop.wait"):
        pass
    spans.context = TraceContext.of({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
    with spans.span("denoise"):
        pass
    assert {(span.trace_id, span.parent_id) for span in spans.finish()} == {("a" * 32, "b" * 16)}


def test_context_travels_in_the_w3c_form() -> None:
    context = TraceContext.new()
    assert context.carrier() == {"traceparent": f"00-{context.trace_id}-{context.span_id}-01"}
    assert TraceContext.of(context.carrier()) == context
    assert TraceContext.of({}) is None
    assert TraceContext.of({"traceparent": "nonsense"}) is None
    assert TraceContext.current() is None
    outer = otel.SpanContext(7, 8, is_remote=False)
    with otel.use_span(otel.NonRecordingSpan(outer)):
        above = TraceContext.current()
    assert above == TraceContext(f"{7:032x}", f"{8:016x}")
    assert TraceContext.new(above).trace_id == f"{7:032x}"


def test_the_device_is_waited_for_at_both_ends_and_records_say_so() -> None:
    seen: list[str] = []

    @contextmanager
    def mark(name: str) -> Any:
        seen.append(f"open {name}")
        yield
        seen.append(f"close {name}")

    spans = SpanRecorder(PLACE, device=Device(lambda: seen.append("wait"), mark))
    with spans.span("denoise"):
        pass
    assert seen == ["wait", "open denoise", "wait", "close denoise"]
    assert spans.finish()[0].sync
    plain = SpanRecorder(PLACE)
    with plain.span("denoise"):
        pass
    assert not plain.finish()[0].sync


def test_switched_off_it_records_nothing_and_runs_the_same() -> None:
    spans = SpanRecorder(PLACE, enabled=False)
    with spans.span("denoise") as attributes:
        attributes["bytes"] = 1
        spans.end(spans.begin("denoise.step"))
    assert spans.finish() == ()


def test_a_sink_that_fails_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Full:
        def write(self, spans: Any) -> None:
            raise OSError("no space left")

        def close(self) -> None: ...

    observer = Observer(PLACE, [Full()])
    observer.spans(two_requests())
    observer.spans(two_requests())
    assert [record.getMessage() for record in caplog.records] == [
        "trace: Full does not take spans and gets no more: no space left"
    ]


def test_otlp_gets_the_same_spans() -> None:
    exporter = InMemorySpanExporter()
    sink = OtlpSink(exporter)
    records = [*two_requests(), *failed_and_cancelled()]
    sink.write(records)
    sink.close()
    sent: tuple[ReadableSpan, ...] = exporter.get_finished_spans()
    assert [span.name for span in sent] == [span.name for span in records]
    for record, span in zip(records, sent, strict=True):
        assert span.start_time is not None
        assert span.end_time is not None
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(record.seconds, abs=1e-6)
        assert (span.status.status_code is StatusCode.OK) == (record.status == "ok")
        assert span.attributes is not None
        assert span.attributes["splitreel.request_id"] == record.request_id


def test_a_missing_otlp_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"trace\.otlp_endpoint: expected opentelemetry-exporter-otlp-proto-http"):
        http_exporter("http://127.0.0.1:4318/v1/traces")


def test_prometheus_text_parses_and_counts() -> None:
    metrics = Metrics(queued=lambda: 4, in_flight=lambda: 2)
    metrics.worker_up("dit")
    metrics.call_began("dit", "r1")
    metrics.worker_down("dit")
    metrics.worker_down("dit")
    metrics.worker_up("dit")
    metrics.write(two_requests())
    metrics.write(failed_and_cancelled())
    metrics.request_ended("completed")
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
    }
    assert found["splitreel_queue_length",] == 4
    assert found["splitreel_in_flight",] == 2
    assert found["splitreel_requests_total", "completed"] == 1
    assert found["splitreel_requests_total", "failed"] == 0
    assert found["splitreel_stage_seconds_count", "denoise", "dit"] == 2, "failed stages are not counted as done"
    assert found["splitreel_hop_seconds_count", "encode-to-denoise", "fetch"] == 2
    assert found["splitreel_payload_logical_bytes_total", "encode-to-denoise"] == 2_000_000
    assert found["splitreel_payload_wire_bytes_total", "encode-to-denoise"] == 2_000_800
    assert (found["splitreel_worker_losses_total", "dit"], found["splitreel_worker_restarts_total", "dit"]) == (1, 1)
    assert 0 < found["splitreel_worker_busy_share", "dit"] <= 1


def test_log_records_say_what_they_are_about(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("splitreel.test")
    with caplog.at_level(logging.INFO):
        logger.info("nothing")
        with about("r1", "dit", "10.0.0.2"):
            logger.info("inside")
            logger.info("more", extra={"request_id": "r2"})
    told = [(record.request_id, record.role, record.node) for record in caplog.records]  # type: ignore[attr-defined]
    assert told == [("", "", ""), ("r1", "dit", "10.0.0.2"), ("r2", "dit", "10.0.0.2")]
    foreign = logging.makeLogRecord({"msg": "hello", "name": "diffusers", "levelname": "INFO"})
    PlaceFilter().filter(foreign)
    assert logging.Formatter(FORMAT).format(foreign).endswith("INFO diffusers: hello")
    PlaceFilter().filter(caplog.records[1])
    assert logging.Formatter(FORMAT).format(caplog.records[1]).endswith(" [10.0.0.2, dit, r1]: inside")


def test_importing_configures_no_logging_and_registers_no_metrics() -> None:
    code = (
        "import logging, prometheus_client, opentelemetry.trace as otel, splitreel.session\n"
        "ours = [n for n, l in logging.root.manager.loggerDict.items()"
        " if n.startswith('splitreel') and getattr(l, 'handlers', None)]\n"
        "assert not ours and not logging.root.handlers, (ours, logging.root.handlers)\n"
        "assert b'splitreel' not in prometheus_client.generate_latest()\n"
        "assert 'Proxy' in type(otel.get_tracer_provider()).__name__\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_section_is_checked_and_reaches_the_workers() -> None:
    content = {"model": {"path": "tiny"}, "roles": {"all": {}}}
    assert parse_config(content, ["trace.sync=true", "trace.nvtx=true"]).role_spec("all").trace_sync
    with pytest.raises(ConfigError, match=r"--set trace\.fil=x: unknown setting\. Did you mean file\?"):
        parse_config(content, ["trace.fil=x"])
    with pytest.raises(ConfigError, match=r"--set trace\.otlp_endpoint=localhost: "):
        parse_config(content, ["trace.otlp_endpoint=localhost"])
