"""What a trace file says: pure functions from spans to figures.

Whatever compares moments uses spans of the driver, which share one clock; of workers only durations are used. `aligned`
alone lays all on one axis, for pictures.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from splitreel.observe.spans import SpanRecord
from splitreel.observe.timings import STAGES, Timings, timings_of

# A stage that begins this soon after another call has ended was waiting for it; the engine's own work takes less.
_PROMPTLY_S = 0.02


@dataclass(frozen=True)
class RequestReport:
    """One request. `seconds`: admission to end. `last`: for one that did not end well, its last failing span and why."""

    request_id: str
    status: str
    seconds: float
    timings: Timings
    last: str = ""


@dataclass(frozen=True)
class Summary:
    """Of one kind of span: how often it was recorded, and its seconds."""

    name: str
    count: int
    least: float
    median: float
    most: float
    total: float


@dataclass(frozen=True)
class WorkerReport:
    """`busy`: seconds of the worker's stages and of its hops without their wait; `share`: of the driver's first order to
    its last answer.
    """

    worker: str
    node: str
    stages: int
    busy: float
    share: float


@dataclass(frozen=True)
class Piece:
    """A part of the critical path."""

    request_id: str
    what: str
    seconds: float


def by_request(spans: Iterable[SpanRecord]) -> dict[str, list[SpanRecord]]:
    """The spans of each request, in the order in which the requests were admitted."""
    found: dict[str, list[SpanRecord]] = defaultdict(list)
    for span in spans:
        if span.request_id:
            found[span.request_id].append(span)

    def admitted(item: tuple[str, list[SpanRecord]]) -> float:
        return min((span.start for span in item[1] if _driver(span)), default=0.0)

    return dict(sorted(found.items(), key=admitted))


def requests(spans: Iterable[SpanRecord]) -> list[RequestReport]:
    """A report of each request; one whose end is not in the file is `unfinished`."""
    reports = []
    for request_id, own in by_request(spans).items():
        root = next((span for span in own if span.name == "request"), None)
        timings = timings_of(own)
        status = "unfinished" if root is None else "completed" if root.status == "ok" else root.status
        last = ""
        if root is not None and root.status != "ok":
            bad = [span for span in own if span.status != "ok" and span.name not in ("request", "call")]
            ending = max(bad, key=lambda span: (span.worker != "driver", span.end), default=root)
            while inner := next((span for span in bad if span.parent_id == ending.span_id), None):
                ending = inner
            last = f"{ending.name}: {ending.error or root.error}"
        reports.append(RequestReport(request_id, status, root.seconds if root else 0.0, timings, last))
    return reports


def summaries(spans: Iterable[SpanRecord]) -> list[Summary]:
    """Least, median and most seconds of every kind of span that ended well; hops by their name."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        if span.status != "ok":
            continue
        hop = span.attributes.get("hop")
        name = f"{span.name} {hop}" if hop else f"queue for {span.stage}" if span.name == "queue" else span.name
        seconds[name].append(span.seconds)
    return [
        Summary(name, len(values), min(values), statistics.median(values), max(values), sum(values))
        for name, values in sorted(seconds.items(), key=lambda item: _rank(item[0]))
    ]


def workers(spans: Sequence[SpanRecord]) -> list[WorkerReport]:
    """How busy each worker was."""
    calls = [span for span in spans if span.name == "call"]
    window = max((c.end for c in calls), default=0.0) - min((c.start for c in calls), default=0.0)
    own: dict[tuple[str, str], list[SpanRecord]] = defaultdict(list)
    for span in spans:
        if not _driver(span):
            own[span.worker, span.node].append(span)
    reports = []
    for (worker, node), known in sorted(own.items()):
        work = [span for span in known if span.name in (*STAGES, "decode.part", "hop.fetch", "hop.materialize")]
        busy = sum(span.seconds for span in work)
        count = sum(span.name in STAGES for span in work)
        reports.append(WorkerReport(worker, node, count, busy, busy / window if window else 0.0))
    return reports


def critical_path(spans: Sequence[SpanRecord]) -> list[Piece]:
    """What the end of the last request waited for, back to the moment from which the engine was never idle.

    A stage waited for its request's stage before, or for the worker to be done with another request, whichever ended
    last. The pieces add up to the time from that moment to the end; `engine` is what passes between two of them.
    """
    grouped = by_request(spans)
    roots = {span.request_id: span for span in spans if span.name == "request"}
    calls = sorted((span for span in spans if span.name == "call"), key=lambda span: span.end)
    if not roots or not calls:
        return []
    last = max(roots.values(), key=lambda span: span.end)
    path: list[Piece] = []
    until = last.end
    current: SpanRecord | None = next((call for call in reversed(calls) if call.request_id == last.request_id), None)
    delivery = timings_of(grouped[last.request_id]).delivery
    if delivery is not None:
        path.append(Piece(last.request_id, f"hop {delivery.name}", delivery.seconds))
        until -= delivery.seconds
    while current is not None:
        path.append(Piece(current.request_id, "engine", until - current.end))
        path.extend(reversed(_inside(current, grouped[current.request_id])))
        admitted = roots[current.request_id].start if current.request_id in roots else current.start
        before = _waited_for(current, calls)
        if before is None or before.end < admitted:
            path.append(Piece(current.request_id, f"queue for {current.stage}", current.start - admitted))
            break
        until = current.start
        current = before
    return [piece for piece in reversed(path) if piece.seconds > 0 or piece.what != "engine"]


def aligned(spans: Sequence[SpanRecord]) -> list[SpanRecord]:
    """The spans with all clocks laid onto the driver's, zero at the first: for display, good to a few milliseconds.

    A worker's hop and stage lie within the call that ordered them, which bounds what has to be added to its clock from
    both sides. The wall clock is used only where a process ran no stage.
    """
    driver = next((span for span in spans if _driver(span)), None)
    shifts = _shifts(spans)

    def shift(span: SpanRecord) -> float:
        by_wall = span.anchor - driver.anchor if driver else 0.0
        return 0.0 if _driver(span) else shifts.get((span.node, span.pid), by_wall)

    moved = [replace(span, start=span.start + shift(span), end=span.end + shift(span)) for span in spans]
    zero = min((span.start for span in moved), default=0.0)
    return [replace(span, start=span.start - zero, end=span.end - zero) for span in moved]


def _shifts(spans: Sequence[SpanRecord]) -> dict[tuple[str, int], float]:
    calls: dict[tuple[str, str, str], list[SpanRecord]] = defaultdict(list)
    runs: dict[tuple[str, str, str], list[SpanRecord]] = defaultdict(list)
    for span in spans:
        if span.name == "call":
            calls[span.request_id, span.stage, span.attributes.get("to", "")].append(span)
        elif span.request_id and not _driver(span):
            runs[span.request_id, span.stage, span.worker].append(span)
    bounds: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for key, found in runs.items():
        if len(calls.get(key, ())) == 1:
            call, began, ended = calls[key][0], min(span.start for span in found), max(span.end for span in found)
            bounds[found[0].node, found[0].pid].append((call.start - began, call.end - ended))
    return {
        process: (max(low for low, _ in pairs) + min(high for _, high in pairs)) / 2
        for process, pairs in bounds.items()
    }


def _inside(call: SpanRecord, own: Sequence[SpanRecord]) -> list[Piece]:
    """A call's pieces: the hop, the stage and the rest, by the worker's durations where it reported any."""
    stage = next((item for item in timings_of(own).stages if item.stage == call.stage), None)
    calls = [span for span in own if span.name == "call" and span.stage == call.stage]
    if stage is None or call.status != "ok" or call is not calls[-1]:
        return [Piece(call.request_id, f"call of {call.stage} ({call.status})", call.seconds)]
    hop = stage.hop
    parts = [(f"hop.wait {hop.name}", hop.wait), (f"hop.fetch {hop.name}", hop.fetch)] if hop else []
    parts += [(f"hop.materialize {hop.name}", hop.materialize)] if hop else []
    parts.append((call.stage, stage.seconds))
    parts.append((f"call of {call.stage}", call.seconds - sum(seconds for _, seconds in parts)))
    return [Piece(call.request_id, what, seconds) for what, seconds in parts]


def _waited_for(current: SpanRecord, calls: Sequence[SpanRecord]) -> SpanRecord | None:
    """The call whose end let this one begin: its request's own before, the worker's before, or whichever ended last."""
    earlier = [call for call in calls if call.end <= current.start]
    prompt = [call for call in earlier if current.start - call.end <= _PROMPTLY_S]
    to = current.attributes.get("to")
    own = [call for call in prompt if call.request_id == current.request_id]
    same = [call for call in prompt if call.attributes.get("to") == to]
    likely = own or same or earlier
    return likely[-1] if likely else None


def _driver(span: SpanRecord) -> bool:
    return span.worker == "driver"


def _rank(name: str) -> tuple[int, str]:
    order = ("load.", "request", "queue", "call", "hop.", "encode", "denoise", "decode", "pack", "save")
    return next((index for index, start in enumerate(order) if name.startswith(start)), len(order)), name
