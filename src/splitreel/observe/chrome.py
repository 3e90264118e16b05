"""Spans in Chrome's trace event format, for Perfetto (ui.perfetto.dev) and chrome://tracing.

A process per node, a lane per worker, an arrow per hop. Requests, queueing and calls overlap on the driver, so they are
asynchronous events, a track for each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from splitreel.observe.report import aligned, by_request
from splitreel.observe.spans import SpanRecord
from splitreel.observe.timings import STAGES

_ASYNC = ("request", "queue", "call")


def chrome_trace(spans: Sequence[SpanRecord]) -> dict[str, Any]:
    """The file's content; times are microseconds from the first span, of clocks that `aligned` laid together."""
    laid = aligned(spans)
    nodes = {name: index for index, name in enumerate(dict.fromkeys(_process(span) for span in laid), 1)}
    lanes = {lane: index for index, lane in enumerate(dict.fromkeys((_process(s), s.worker) for s in laid), 1)}
    events: list[dict[str, Any]] = []
    for name, pid in nodes.items():
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
    for (process, worker), tid in lanes.items():
        place = {"pid": nodes[process], "tid": tid}
        events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": worker}})
    for span in laid:
        place = {"pid": nodes[_process(span)], "tid": lanes[_process(span), span.worker]}
        events.extend(_events(span, place))
    for own in by_request(laid).values():
        events.extend(_arrows(own, nodes, lanes))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _process(span: SpanRecord) -> str:
    return "driver" if span.worker == "driver" else span.node


def _events(span: SpanRecord, place: dict[str, int]) -> list[dict[str, Any]]:
    named = f"{span.name} {span.stage}" if span.name in ("queue", "call") else span.name
    arguments = {
        "request_id": span.request_id,
        "status": span.status,
        **({"error": span.error} if span.error else {}),
        **({"sync": True} if span.sync else {}),
        **span.attributes,
    }
    if span.name in _ASYNC:
        both = {"name": named, "cat": "request", "id": span.request_id, **place}
        return [
            {"ph": "b", **both, "ts": _micro(span.start), "args": arguments},
            {"ph": "e", **both, "ts": _micro(span.end)},
        ]
    length = _micro(span.end) - _micro(span.start)
    return [
        {
            "ph": "X",
            "name": named,
            "cat": span.stage or "load",
            **place,
            "ts": _micro(span.start),
            "dur": length,
            "args": arguments,
        }
    ]


def _arrows(
    own: Sequence[SpanRecord], nodes: dict[str, int], lanes: dict[tuple[str, str], int]
) -> list[dict[str, Any]]:
    """From the end of each stage to the hop that takes its payload."""
    events: list[dict[str, Any]] = []
    for before, after in zip(STAGES, (*STAGES[1:], "deliver"), strict=True):
        made = [span for span in own if span.name == before and span.status == "ok"]
        taken = [span for span in own if span.name == "hop.materialize" and span.stage == after]
        if not made or not taken:
            continue
        for phase, span, moment in (("s", made[-1], made[-1].end), ("f", taken[-1], taken[-1].end)):
            event = {
                "ph": phase,
                "name": f"hop {taken[-1].attributes.get('hop', '')}",
                "cat": "hop",
                "id": f"{span.request_id} {after}",
                "pid": nodes[_process(span)],
                "tid": lanes[_process(span), span.worker],
                # One microsecond inside, so that the arrow binds to this slice and not to what follows.
                "ts": max(_micro(span.start), _micro(moment) - 1),
            }
            events.append({**event, "bp": "e"} if phase == "f" else event)
    return events


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)
