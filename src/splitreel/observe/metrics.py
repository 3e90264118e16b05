"""What Prometheus scrapes: counters and histograms that follow the spans, and gauges that are read when asked.

A registry per session, never the process's own: two sessions do not mix, and importing this registers nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from splitreel.observe.spans import SpanRecord
from splitreel.observe.timings import HOP_PARTS, STAGES

OUTCOMES = ("completed", "failed", "cancelled", "refused")
# A tiny model's encode takes 0.1 s; 50 steps at the longest film and largest canvas take hours.
_STAGE_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_HOP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)


@dataclass
class _Work:
    """What a worker did: seconds of finished calls, when it came up, and when the calls under way began."""

    busy: float = 0.0
    up_since: float = field(default_factory=time.monotonic)
    running: dict[str, float] = field(default_factory=dict)

    def seconds(self, now: float) -> float:
        return self.busy + sum(now - began for began in list(self.running.values()))  # the engine changes it meanwhile


class Metrics:
    """A sink of spans; `text()` is what a scraper gets. Called on the engine's loop, `text` from any thread."""

    def __init__(self, queued: Callable[[], int] = lambda: 0, in_flight: Callable[[], int] = lambda: 0) -> None:
        self._registry = CollectorRegistry()
        self._work: dict[str, _Work] = {}
        self._serving: set[str] = set()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"splitreel_{name}", help, labels, registry=self._registry)

        self._requests = counter("requests", "Requests that have ended, by outcome.", "outcome")
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        self._stages = Histogram(
            "splitreel_stage_seconds",
            "Seconds of finished stages, without the hop into them.",
            ("stage", "worker"),
            registry=self._registry,
            buckets=_STAGE_BUCKETS,
        )
        self._hops = Histogram(
            "splitreel_hop_seconds",
            "Seconds of finished hops on the receiver's clock; part: wait, fetch, materialize.",
            ("hop", "part"),
            registry=self._registry,
            buckets=_HOP_BUCKETS,
        )
        self._logical = counter("payload_logical_bytes", "Bytes of the tensors that arrived.", "hop")
        self._wire = counter("payload_wire_bytes", "Serialised bytes that arrived, headers included.", "hop")
        self._restarts = counter("worker_restarts", "Times that a lost worker came back.", "worker")
        self._losses = counter("worker_losses", "Times that a worker was lost.", "worker")
        self._up = Gauge("splitreel_worker_up", "1 while the worker serves.", ("worker",), registry=self._registry)
        self._resident = Gauge(
            "splitreel_resident_bytes",
            "Bytes that a component keeps resident.",
            ("worker", "node", "component"),
            registry=self._registry,
        )
        Gauge("splitreel_queue_length", "Requests admitted and not started.", registry=self._registry).set_function(
            queued
        )
        Gauge(
            "splitreel_in_flight", "Requests between encode's start and decode's end.", registry=self._registry
        ).set_function(in_flight)
        self._registry.register(_Busy(self._work))

    # What has ended -----------------------------------------------------------------------------------------------------

    def write(self, spans: Sequence[SpanRecord]) -> None:
        """Count finished spans."""
        for span in spans:
            if span.name.startswith("load.") and span.status == "ok":
                component = span.name.removeprefix("load.")
                self._resident.labels(span.worker, span.node, component).set(span.attributes.get("bytes", 0))
            elif span.name in STAGES and span.status == "ok":
                self._stages.labels(span.name, span.worker).observe(span.seconds)
            elif span.name in HOP_PARTS and span.status == "ok":
                self._count_hop(span)

    def _count_hop(self, span: SpanRecord) -> None:
        hop = str(span.attributes["hop"])
        self._hops.labels(hop, span.name.removeprefix("hop.")).observe(span.seconds)
        payload = span.attributes.get("payload")
        if payload:
            self._logical.labels(hop).inc(payload["logical_bytes"])
            self._wire.labels(hop).inc(payload["wire_bytes"])

    def request_ended(self, outcome: str) -> None:
        """One of `OUTCOMES`."""
        self._requests.labels(outcome).inc()

    # Who does what ------------------------------------------------------------------------------------------------------

    def call_began(self, worker: str, request_id: str) -> None:
        """A stage was ordered."""
        self._work.setdefault(worker, _Work()).running[request_id] = time.monotonic()

    def call_ended(self, worker: str, request_id: str) -> None:
        """Its answer is here, or none will come."""
        work = self._work.setdefault(worker, _Work())
        began = work.running.pop(request_id, None)
        if began is not None:
            work.busy += time.monotonic() - began

    def worker_up(self, worker: str) -> None:
        """It serves (again); a worker that is known came back."""
        if worker in self._work:
            self._restarts.labels(worker).inc()
        else:
            self._work[worker] = _Work()
            self._restarts.labels(worker)
            self._losses.labels(worker)
        self._serving.add(worker)
        self._up.labels(worker).set(1)

    def worker_down(self, worker: str) -> None:
        """It no longer serves."""
        if worker in self._serving:
            self._serving.remove(worker)
            self._losses.labels(worker).inc()
        self._up.labels(worker).set(0)

    def text(self) -> str:
        """The text format that Prometheus scrapes."""
        return generate_latest(self._registry).decode()

    def close(self) -> None:
        """What was counted stays readable."""


class _Busy(Collector):
    """Busy seconds and share of each worker, stages under way included."""

    def __init__(self, work: dict[str, _Work]) -> None:
        self._work = work

    def collect(self) -> Iterator[Metric]:
        seconds = CounterMetricFamily(
            "splitreel_worker_busy_seconds", "Seconds in which a stage was ordered and not answered.", labels=["worker"]
        )
        share = GaugeMetricFamily(
            "splitreel_worker_busy_share", "Busy seconds by seconds since the worker first served.", labels=["worker"]
        )
        now = time.monotonic()
        for name, work in list(self._work.items()):
            busy = work.seconds(now)
            seconds.add_metric([name], busy)
            share.add_metric([name], busy / max(now - work.up_since, 1e-9))
        yield seconds
        yield share
