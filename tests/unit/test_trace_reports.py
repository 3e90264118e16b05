"""From spans to figures, tables, a Chrome trace and a picture, on traces made by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from splitreel.errors import ConfigError
from splitreel.observe import report
from splitreel.observe.chrome import chrome_trace
from splitreel.observe.files import TraceFile, read_spans
from splitreel.observe.gantt import gantt, heading
from splitreel.observe.spans import SpanRecord
from splitreel.observe.timings import timings_of
from splitreel.serve.cli.app import app
from traces import CALL, failed_and_cancelled, two_requests


def test_parts_of_a_request_add_up() -> None:
    first = report.requests(two_requests())[0]
    assert (first.request_id, first.status, first.seconds) == ("r1", "completed", pytest.approx(6.0))
    denoise = first.timings[1]
    assert denoise.seconds == pytest.approx(4.0 - 2 * CALL - 0.5)
    assert denoise.hop is not None
    assert (denoise.hop.wait, denoise.hop.fetch) == (pytest.approx(0.0), pytest.approx(0.5))
    assert denoise.hop.effective_rate == pytest.approx(2_000_000)
    assert denoise.overhead == pytest.approx(2 * CALL)
    assert [name for name, _ in denoise.spans] == ["denoise.step"] * 4
    assert sum(seconds for _, seconds in first.timings.parts) == pytest.approx(6.0)
    assert first.timings.unaccounted == pytest.approx(0.0, abs=1e-6)


def test_a_stage_that_ran_twice_counts_once() -> None:
    spans = [span for span in two_requests() if span.request_id == "r1"]
    lost = [span for span in spans if span.stage == "decode" and span.name in ("call", "decode")]
    assert len(timings_of([*lost, *spans]).stages) == 3
    assert timings_of([*lost, *spans])[2].call == pytest.approx(2.0)


def test_the_critical_path_goes_through_whoever_was_waited_for() -> None:
    path = report.critical_path(two_requests())
    assert sum(piece.seconds for piece in path) == pytest.approx(10.0)
    long = [(piece.request_id, piece.what) for piece in path if piece.seconds > 0.1]
    assert long == [
        ("r1", "encode"),
        ("r1", "hop.fetch encode-to-denoise"),
        ("r1", "denoise"),
        ("r2", "hop.fetch encode-to-denoise"),
        ("r2", "denoise"),
        ("r2", "decode"),
    ]


def test_how_busy_workers_were() -> None:
    encoder, dit = sorted(report.workers(two_requests()), key=lambda worker: worker.stages, reverse=True)
    assert (encoder.worker, encoder.stages, dit.stages) == ("encoder_decoder", 4, 2)
    assert dit.share == pytest.approx((8.0 - 4 * CALL) / 10.0)


def test_clocks_are_laid_together_without_believing_wall_clocks() -> None:
    laid = report.aligned(two_requests())
    starts = {(span.request_id, span.name): span.start for span in laid if span.name in ("encode", "denoise", "decode")}
    assert starts["r1", "encode"] == pytest.approx(CALL, abs=1e-6)
    assert starts["r1", "denoise"] == pytest.approx(1.0 + CALL + 0.5, abs=1e-6)
    assert starts["r2", "decode"] == pytest.approx(9.0 + CALL, abs=1e-6)


def test_failed_and_cancelled_requests_say_where_they_ended() -> None:
    bad, gone = sorted(report.requests(failed_and_cancelled()), key=lambda item: item.request_id)
    assert (bad.status, bad.last) == ("error", "denoise.step: ValueError: the film tore")
    assert gone.status == "cancelled"
    assert gone.last.startswith("queue: RequestCancelled")


def check_chrome(content: dict[str, object]) -> None:
    """What Perfetto's importer of the format asks for: known phases, closed slices that nest, paired arrows and events."""
    events = json.loads(json.dumps(content))["traceEvents"]
    slices, arrows, pairs = defaultdict(list), defaultdict(list), defaultdict(list)
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= set(event)
        match event["ph"]:
            case "M":
                assert event["name"] in ("process_name", "thread_name")
            case "X":
                assert event["dur"] >= 0
                slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
            case "s" | "f":
                arrows[event["cat"], event["id"]].append(event)
            case "b" | "e":
                pairs[event["cat"], event["id"], event["name"]].append(event["ph"])
            case other:
                raise AssertionError(other)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(slices) <= named, "every lane has a name"
    for lane in slices.values():
        open_until: list[int] = []
        for start, end in sorted(lane, key=lambda item: (item[0], -item[1])):
            while open_until and open_until[-1] <= start + 2:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 2, "slices of one lane nest"
            open_until.append(end)
    assert arrows
    for start, finish in arrows.values():
        assert (start["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e")
        for event in (start, finish):
            inside = slices[event["pid"], event["tid"]]
            assert any(low <= event["ts"] <= high for low, high in inside), "an arrow binds to a slice"
    assert all(phases.count("b") == phases.count("e") for phases in pairs.values())


def test_the_chrome_trace_has_lanes_and_arrows() -> None:
    content = chrome_trace(two_requests())
    check_chrome(content)
    lanes = [event["args"]["name"] for event in content["traceEvents"] if event["name"] == "thread_name"]
    assert lanes == ["driver", "encoder_decoder", "dit"]
    assert sum(event["ph"] == "s" for event in content["traceEvents"]) == 4


def test_the_picture_has_every_colour_of_its_legend_and_of_failures() -> None:
    image = gantt(two_requests())
    colours = {colour for _, colour in image.getcolors(1 << 24) or ()}
    assert image.size[0] == 2400
    assert {(0x4C, 0x78, 0xA8), (0xE0, 0x90, 0x2F), (0x3F, 0x9B, 0x6E)} <= colours
    assert (0xC0, 0x27, 0x2D) not in colours
    assert (0xC0, 0x27, 0x2D) in {colour for _, colour in gantt(failed_and_cancelled()).getcolors(1 << 24) or ()}
    assert gantt([]).size[0] == 2400


def test_the_picture_of_one_request_says_one() -> None:
    assert [heading(number, 2.5) for number in (1, 2)] == ["1 request in 2.50 s", "2 requests in 2.50 s"]


def write(path: Path, spans: list[SpanRecord]) -> Path:
    TraceFile(path).write(spans)
    return path


def test_a_file_is_read_back_and_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    spans = two_requests()
    file = write(tmp_path / "trace.jsonl", spans)
    assert read_spans(file) == spans
    file.write_text(file.read_text()[:-40])
    assert read_spans(file) == spans[:-1]
    (tmp_path / "other").write_text("{}\n{}\n")
    with pytest.raises(ConfigError, match="other line 1: expected a span as JSON, found no name"):
        read_spans(tmp_path / "other")
    with pytest.raises(ConfigError, match="expected a readable trace file"):
        read_spans(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"trace\.file: expected a file that can be written at"):
        TraceFile(tmp_path)


def test_the_command_prints_tables_and_writes_both_files(tmp_path: Path) -> None:
    file = write(tmp_path / "trace.jsonl", [*two_requests(), *failed_and_cancelled(20.0)])
    chrome, png = tmp_path / "out.json", tmp_path / "out.png"
    result = CliRunner().invoke(app, ["trace", str(file), "--chrome", str(chrome), "--png", str(png)])
    assert result.exit_code == 0, result.output
    for expected in ("Requests (seconds)", "Workers (seconds)", "2.0 MB/s"):
        assert expected in result.output
    assert "bad ended with denoise.step: ValueError: the film tore" in result.output
    check_chrome(json.loads(chrome.read_text()))
    assert png.read_bytes().startswith(b"\x89PNG")
