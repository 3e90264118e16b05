"""`splitreel trace`: what a trace file says, as tables, as a Chrome trace and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from splitreel.observe.accounts import PayloadAccount
from splitreel.observe.spans import SpanRecord
from splitreel.observe.timings import HopTiming
from splitreel.serve.cli.codes import FILE_CODES
from splitreel.serve.cli.logs import Verbose, set_verbosity

EPILOG = f"""Examples:

splitreel generate --prompts prompts.txt --set trace.file=trace.jsonl

splitreel trace trace.jsonl --chrome trace.json --png trace.png

{FILE_CODES}"""

# Pieces of the critical path that are shorter are shown as one.
_SMALL_S = 0.001


def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What trace.file wrote.")],
    chrome: Annotated[
        Path | None,
        typer.Option(metavar="OUT.json", show_default=False, help="Also write a trace for ui.perfetto.dev."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="OUT.png", show_default=False, help="Also draw the pipeline.")
    ] = None,
    verbose: Verbose = 0,
) -> None:
    """Show where the time of each request went: per request, per stage, per worker, and the critical path.

    docs/tracing.md says what each figure includes.
    """
    set_verbosity(verbose)
    from splitreel.observe.chrome import chrome_trace
    from splitreel.observe.files import read_spans
    from splitreel.observe.gantt import save_gantt
    from splitreel.serve.cli.failures import Refused

    for option, target in (("--chrome", chrome), ("--png", png)):
        if target is not None and target.resolve() == file.resolve():
            raise Refused(f"{option}: expected a file of its own, found {target}, the trace itself. Name another.")
    spans = read_spans(file)
    if not spans:
        raise Refused(f"{file}: expected spans, found none. Make a film with --set trace.file={file} first.")
    # Files first: whoever reads only the beginning of the tables (`| head`) gets them too.
    try:
        option = "--chrome"
        if chrome is not None:
            chrome.write_text(json.dumps(chrome_trace(spans)), encoding="utf-8")
        option = "--png"
        if png is not None:
            save_gantt(spans, png)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Refused(f"{option}: expected a file that can be written, found {error.filename}: {reason}.") from error
    print("\n\n".join(report(spans)))


def report(spans: Sequence[SpanRecord]) -> list[str]:
    """The tables."""
    from splitreel.observe import report as figures

    parts = []
    rows = [["request", "status", "total", "queue", "encode", "denoise", "decode", "hops", "calls", "unaccounted"]]
    notes = []
    for item in figures.requests(spans):
        timings = item.timings
        stages = {stage.stage: stage for stage in timings}
        row = [item.request_id, item.status, _s(item.seconds), _s(sum(stage.queue for stage in timings))]
        row += [_s(stages[name].seconds) if name in stages else "-" for name in ("encode", "denoise", "decode")]
        row += [_s(sum(hop.seconds for hop in timings.hops)), _s(sum(stage.overhead for stage in timings))]
        row.append(_s(timings.unaccounted) if item.status == "completed" else "-")
        rows.append(row)
        if item.last:
            notes.append(f"{item.request_id} ended with {item.last}")
    parts.append("\n".join(["Requests (seconds)", _table(rows), *notes]))
    rows = [["span", "count", "min", "median", "max", "total"]]
    for line in figures.summaries(spans):
        rows.append([line.name, str(line.count), *map(_s, (line.least, line.median, line.most, line.total))])
    parts.append("\n".join(["Spans (seconds)", _table(rows)]))
    rows = [["hop", "payload", "logical bytes", "serialised", "fetch", "effective rate*"]]
    for item in figures.requests(spans):
        for hop in item.timings.hops:
            if hop.payload is not None:
                rows.append(_payload_row(item.request_id, hop, hop.payload))
    parts.append(
        "\n".join(["Payloads", _table(rows), "* logical bytes by seconds of fetch; not a network's bandwidth"])
    )
    rows = [["worker", "node", "stages", "busy", "share"]]
    for worker in figures.workers(spans):
        rows.append([worker.worker, worker.node, str(worker.stages), _s(worker.busy), f"{worker.share:.0%}"])
    parts.append("\n".join(["Workers (seconds)", _table(rows)]))
    path = figures.critical_path(spans)
    total = sum(piece.seconds for piece in path)
    rows = [["request", "what", "seconds", "share"]]
    small = [piece for piece in path if piece.seconds < _SMALL_S]
    for piece in path:
        if piece not in small:
            rows.append([piece.request_id, piece.what, _s(piece.seconds), f"{piece.seconds / total:.1%}"])
    if small:
        rest = sum(piece.seconds for piece in small)
        rows.append(["", f"{len(small)} pieces below {_SMALL_S * 1e3:g} ms", _s(rest), f"{rest / total:.1%}"])
    parts.append("\n".join([f"Critical path of the batch ({_s(total)} s)", _table(rows)]))
    return parts


def _payload_row(request_id: str, hop: HopTiming, account: PayloadAccount) -> list[str]:
    rate = f"{hop.effective_rate / 1e6:.1f} MB/s" if hop.effective_rate else "-"
    sizes = [str(account.logical_bytes), str(account.wire_bytes)]
    return [f"{request_id} {hop.name}", account.kind, *sizes, _s(hop.fetch), rate]


def _s(seconds: float) -> str:
    return f"{seconds:.4f}" if seconds < 10 else f"{seconds:.2f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    numeric = [all(_is_number(row[column]) for row in rows[1:]) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(".", "").rstrip("% MB/s").lstrip("-").isdigit()
