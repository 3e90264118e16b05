"""A real request's spans as an OpenTelemetry collector gets them: HTTP, protobuf, one trace."""

from __future__ import annotations

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from configs import roles_config
from splitreel import GenerateRequest, GenerateResult, Session
from splitreel.config import TraceConfig
from splitreel.observe.files import read_spans

REQUEST = GenerateRequest(prompt="A lake.", steps=2, seed=1, output="frames")


class Collector:
    """Takes what OTLP exporters send, on a free loopback port; answers with `status`."""

    def __init__(self, status: int) -> None:
        self.spans: list[Any] = []
        self.posts = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.posts += 1
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    outer.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(5)


def collect(status: int, file: Path) -> tuple[Collector, GenerateResult]:
    """One request whose spans go to a file and to a collector that answers with `status`."""
    collector = Collector(status)
    try:
        trace = TraceConfig(otlp_endpoint=collector.url, file=str(file))
        with Session(roles_config("local").model_copy(update={"trace": trace})) as session:
            return collector, session.generate(REQUEST)
    finally:
        collector.stop()


def test_a_collector_gets_every_span_once(tmp_path: Path) -> None:
    collector, _ = collect(200, tmp_path / "trace.jsonl")
    written = {span.span_id: span for span in read_spans(tmp_path / "trace.jsonl") if span.trace_id}
    assert {span.name for span in written.values()} >= {"request", "queue", "encode", "denoise", "denoise.step"}
    assert sorted(span.span_id.hex() for span in collector.spans) == sorted(written)
    for sent in collector.spans:
        span = written[sent.span_id.hex()]
        assert (sent.name, sent.trace_id.hex(), sent.parent_span_id.hex()) == (
            span.name,
            span.trace_id,
            span.parent_id or "",
        )
        assert (sent.end_time_unix_nano - sent.start_time_unix_nano) / 1e9 == pytest.approx(span.seconds, abs=1e-5)
        assert abs(sent.start_time_unix_nano / 1e9 - time.time()) < 300


def test_a_collector_that_refuses_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    collector, made = collect(400, tmp_path / "trace.jsonl")
    assert made.frames is not None
    assert collector.posts
    assert "did not reach the OTLP endpoint" in caplog.text
