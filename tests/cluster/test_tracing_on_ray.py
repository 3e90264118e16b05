"""Traces of real workers: where time went, what failed, what was counted. Stages take fixed times (`clockwork`)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence

import numpy as np
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from clockwork import film_digest, submitted
from engines import raylets, stored
from slow_payloads import DELAY, produce_encoded
from splitreel.cluster.embedded import EmbeddedCluster
from splitreel.engine.backend import StageReceipt
from splitreel.engine.engine import Engine
from splitreel.errors import RequestCancelled, StageError
from splitreel.observe.report import critical_path, requests
from splitreel.observe.spans import SpanRecord, TraceContext
from splitreel.observe.timings import STAGES, timings_of
from splitreel.request import Stage
from splitreel.wire import unpack

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []

    def write(self, spans: Sequence[SpanRecord]) -> None:
        self.spans.extend(spans)

    def close(self) -> None: ...


def kept(engine: Engine) -> Kept:
    sink = Kept()
    engine.observer.add(sink)
    return sink


async def test_the_parts_of_a_request_are_its_time(engine: Engine) -> None:
    plan = {stage: {"steps": 3, "seconds": 0.3} for stage in STAGES}
    began = time.monotonic()
    film = await engine.submit("timed", "t2va", submitted("timed", **plan)).result(30)
    measured = time.monotonic() - began
    timings = timings_of(film.spans)
    named = sum(seconds for name, seconds in timings.parts if name != "unaccounted")
    assert abs(measured - named) <= 0.02 * measured, timings.parts
    path = critical_path(film.spans)
    assert abs(measured - sum(piece.seconds for piece in path)) <= 0.02 * measured, path
    assert [name for name, _ in timings[1].spans] == ["denoise.step"] * 3 + ["pack"]
    for item in timings:
        assert item.seconds == pytest.approx(0.9, abs=0.1)


@pytest.mark.parametrize(("size", "transport"), [(64, "inline"), (60_000, "inline"), (70_000, "object_store")])
async def test_a_small_request_comes_with_the_order(engine: Engine, size: int, transport: str) -> None:
    """And leaves nothing in a store; a larger one travels as an object. The film is the same."""
    slow = {"denoise": {"steps": 2, "seconds": 0.1}}
    job = engine.submit(f"of {size}", "t2va", submitted(f"of {size}", size=size, encode=slow["denoise"], **slow))
    async for step in job.progress():
        if step.stage == Stage.ENCODE:
            assert (stored() > size) == (transport == "object_store")
            break
    film = await job.result(30)
    assert timings_of(film.spans).hops[0].transport == transport
    assert bytes(unpack(film.payload).tensors["data"].numpy()) == film_digest(size)  # type: ignore[union-attr]


async def test_context_travels_in_the_header(engine: Engine) -> None:
    """Workers put their spans below the span whose ids the payload carries; the driver's are in the same trace."""
    context = TraceContext.new()
    payload = submitted("carried", trace=context.carrier())
    film = await engine.submit("carried", "t2va", payload, context=context).result(30)
    assert {span.trace_id for span in film.spans} == {context.trace_id}
    assert {span.parent_id for span in film.spans if span.name in STAGES} == {context.span_id}
    assert len({span.span_id for span in film.spans}) == len(film.spans)


@pytest.mark.parametrize("where", ["nowhere", "producer", "link", "receiver"])
async def test_a_delay_shows_up_where_it_is(cluster: EmbeddedCluster, engine: Engine, where: str) -> None:
    """The real worker takes a payload from another node. The producer is late; or its node's store does not answer,
    as behind a slow link; or the payload is slow to deserialise.
    """
    member = engine.backend._members["dit"]  # type: ignore[attr-defined]
    assert member.node is not None
    other, address = next(
        (name, ip)
        for name, ip in zip(cluster.node_ids, cluster.node_addresses, strict=True)
        if name != member.node.node_id and ip != cluster.address.split(":")[0]
    )
    away = NodeAffinitySchedulingStrategy(other, soft=False)
    produce = ray.remote(num_cpus=0)(produce_encoded).options(scheduling_strategy=away)
    await asyncio.to_thread(ray.get, produce.remote(0.0, False))  # the process that runs it is up now
    late = DELAY if where == "producer" else 0.0
    reference = produce.remote(late, where == "receiver")
    if where != "producer":
        await asyncio.to_thread(ray.wait, [reference], fetch_local=False)
    stores = raylets(address) if where == "link" else []
    assert bool(stores) == (where == "link")
    for store in stores:
        os.kill(store.pid, signal.SIGSTOP)
    try:
        _, answer = member.actor.run_stage.remote(Stage.DENOISE, "probe", [reference], 20.0)
        if stores:
            await asyncio.sleep(DELAY)
    finally:
        for store in stores:
            os.kill(store.pid, signal.SIGCONT)
    receipt: StageReceipt = (await asyncio.to_thread(ray.get, answer)).value
    seconds = {span.name: span.seconds for span in receipt.spans}
    slow = {"producer": "hop.wait", "link": "hop.fetch", "receiver": "hop.materialize"}.get(where)
    for name in ("hop.wait", "hop.fetch", "hop.materialize", "denoise"):
        if name == slow:
            assert 0.7 * DELAY <= seconds[name] <= DELAY + 0.25, seconds
        else:
            assert seconds[name] < 0.12, seconds


async def test_a_failed_request_ends_with_the_failing_span(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    sink = kept(engine)
    with caplog.at_level(logging.DEBUG, "splitreel"):
        job = engine.submit("torn", "t2va", submitted("torn", denoise={"steps": 3, "trouble": {"2": "value error"}}))
        with pytest.raises(StageError):
            await job.result(30)
    own = [span for span in sink.spans if span.request_id == "torn"]
    assert [(span.name, span.status) for span in own[-5:]] == [
        ("denoise.step", "ok"),
        ("denoise.step", "error"),
        ("denoise", "error"),
        ("call", "error"),
        ("request", "error"),
    ]
    assert requests(own)[0].last == "denoise.step: ValueError: the film tore"
    assert not any(span.name in ("decode", "save") for span in own)
    assert _said_done(caplog, "torn") == []
    error = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert (error.request_id, error.role) == ("torn", "driver")  # type: ignore[attr-defined]
    assert error.node  # type: ignore[attr-defined]


async def test_a_cancelled_request_says_so(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    sink = kept(engine)
    with caplog.at_level(logging.DEBUG, "splitreel"):
        job = engine.submit("stopped", "t2va", submitted("stopped", denoise={"steps": 50, "seconds": 0.1}))
        queued = engine.submit("unbegun", "t2va", submitted("unbegun", encode={"steps": 50, "seconds": 0.1}))
        async for step in job.progress():
            if step.stage == Stage.DENOISE and step.done >= 2:
                break
        job.cancel()
        queued.cancel()
        for one in (job, queued):
            with pytest.raises(RequestCancelled):
                await one.result(30)
    reports = {item.request_id: item for item in requests(sink.spans)}
    assert reports["stopped"].status == reports["unbegun"].status == "cancelled"
    assert reports["stopped"].last.startswith("denoise: RequestCancelled")
    own = [span for span in sink.spans if span.request_id == "stopped"]
    assert (own[-1].name, own[-1].status) == ("request", "cancelled")
    assert next(span.status for span in own if span.name == "denoise") == "cancelled"
    assert _said_done(caplog, "stopped") == _said_done(caplog, "unbegun") == []


def _said_done(caplog: pytest.LogCaptureFixture, request_id: str) -> list[str]:
    told = [record for record in caplog.records if getattr(record, "request_id", "") == request_id]
    return [record.getMessage() for record in told if "done" in record.getMessage()]


def samples(engine: Engine) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(engine.observer.metrics.text())
        for sample in family.samples
    }


async def test_prometheus_counts_what_ran(engine: Engine) -> None:
    before = samples(engine)
    done = [engine.submit(f"m{index}", "t2va", submitted(f"m{index}", size=1000)) for index in range(3)]
    bad = engine.submit("m-bad", "t2va", submitted("m-bad", encode={"trouble": {"1": "value error"}}))
    slow = engine.submit("m-slow", "t2va", submitted("m-slow", denoise={"steps": 100, "seconds": 0.05}))
    films = [await job.result(30) for job in done]
    with pytest.raises(StageError):
        await bad.result(30)
    async for step in slow.progress():
        if step.stage == Stage.DENOISE:
            break
    during = samples(engine)
    assert during["splitreel_in_flight",] == 1
    slow.cancel()
    with pytest.raises(RequestCancelled):
        await slow.result(30)
    after = samples(engine)
    grown = {key: value - before.get(key, 0.0) for key, value in after.items()}
    assert [grown["splitreel_requests_total", name] for name in ("completed", "failed", "cancelled")] == [3, 1, 1]
    assert grown["splitreel_stage_seconds_count", "decode", "encoder_decoder"] == 3
    assert grown["splitreel_stage_seconds_count", "encode", "encoder_decoder"] == 4
    assert grown["splitreel_stage_seconds_count", "denoise", "dit"] == 3
    assert grown["splitreel_payload_logical_bytes_total", "driver-to-encode"] == 3 * 1000 + 2 * 64
    assert grown["splitreel_payload_logical_bytes_total", "denoise-to-decode"] == 3 * 32
    wire = sum(hop.payload.wire_bytes for film in films for hop in timings_of(film.spans).hops[-1:] if hop.payload)
    assert grown["splitreel_payload_wire_bytes_total", "decode-to-driver"] == wire
    assert after["splitreel_in_flight",] == after["splitreel_queue_length",] == 0
    assert 0 < after["splitreel_worker_busy_share", "dit"] < 1
    assert np.isclose(grown["splitreel_hop_seconds_count", "decode-to-driver", "fetch"], 3)
