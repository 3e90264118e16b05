"""Films per hour and waiting times: the simulation against arithmetic, and what is said about a split."""

from __future__ import annotations

import csv
import io
import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from splitreel.engine.limits import Limits
from splitreel.errors import ConfigError
from splitreel.h3.released import FilmSize
from splitreel.plan.chart import draw_sweep
from splitreel.plan.layouts import Setting, Times, figures, layouts, parse_times, verdicts
from splitreel.plan.memory import parse_machine
from splitreel.plan.report import figures_csv, figures_text
from splitreel.plan.simulate import Hand, simulate
from splitreel.plan.sizes import RELEASE, sizes_of
from splitreel.request import Stage

ENCODE, DENOISE, DECODE = Stage
SPARK = parse_machine("spark=128:unified")


def setting(times: Times, **changes: object) -> Setting:
    plain = Setting(times, sizes_of(RELEASE, ("t2va",)), FilmSize(), ("t2va",), SPARK, link_rate=1e18)
    return replace(plain, **changes)  # type: ignore[arg-type]


def split(dits: int = 1, encode: float = 2.0, denoise: float = 60.0, decode: float = 8.0) -> list[list[Hand]]:
    return [
        [Hand("side", {ENCODE: encode, DECODE: decode}), *(Hand(f"dit {i}", {DENOISE: denoise}) for i in range(dits))]
    ]


@pytest.mark.parametrize("dits", [1, 2, 4, 6])
def test_a_split_that_waits_for_its_dit_is_as_fast_as_they_are(dits: int) -> None:
    found = simulate(split(dits), 400, backlog=40)
    assert found.per_hour == pytest.approx(dits * 60, rel=0.01)
    assert simulate(split(dits), 5, every=1000.0).latency_last == pytest.approx(70.0)


def test_a_split_that_waits_for_its_side_is_as_fast_as_that() -> None:
    """Within 2 %: encodes done ahead before the middle half, which the rate is taken of, need not be done in it."""
    assert simulate(split(12), 400, backlog=60).per_hour == pytest.approx(360, rel=0.02)


def test_machines_alone_do_not_share_work() -> None:
    groups = [[Hand(f"m{index}", {ENCODE: 2.0, DENOISE: 60.0, DECODE: 8.0})] for index in range(3)]
    assert simulate(groups, 300, backlog=30).per_hour == pytest.approx(3 * 3600 / 70, rel=0.02)


def test_a_machine_that_cannot_hold_everything_reloads_for_each_film() -> None:
    needs = {ENCODE: {"text": 60}, DENOISE: {"dit": 60}, DECODE: {"vae": 6}}
    hand = Hand("m", {ENCODE: 2.0, DENOISE: 60.0, DECODE: 8.0}, needs, budget=70, load_rate=1.0)
    # text and dit, 60 s each, for every film; the VAE beside either.
    assert simulate([[hand]], 100, backlog=10).per_hour == pytest.approx(3600 / (70 + 120), rel=0.01)
    roomy = replace(hand, budget=126)
    assert simulate([[roomy]], 100, backlog=10).per_hour == pytest.approx(3600 / 70, rel=0.01)


def test_waiting_grows_with_the_rate_as_queues_do() -> None:
    """One server with fixed service time s and random arrivals (M/D/1) waits rho s / (2 (1 - rho)) on average."""
    hand = [[Hand("m", {ENCODE: 0.0, DENOISE: 60.0, DECODE: 0.0})]]
    for rho in (0.3, 0.6):
        expected = 60.0 + rho * 60.0 / (2 * (1 - rho))
        found = simulate(hand, 6_000, rate=rho / 60.0)
        assert found.latency_mean == pytest.approx(expected, rel=0.05)
        assert found.busy["m"] == pytest.approx(rho, rel=0.04)


def test_percentiles_are_within_a_percent() -> None:
    found = simulate([[Hand("m", {ENCODE: 0.0, DENOISE: 10.0, DECODE: 0.0})]], 1000, every=20.0, spread=0.5)
    assert found.latency_p50 == pytest.approx(10.0, rel=0.03)
    assert found.latency_p95 == pytest.approx(14.5, rel=0.02)
    assert found.latency_max <= 15.0


def test_a_full_queue_refuses_and_ends() -> None:
    found = simulate(split(), 50, rate=1000.0, limits=Limits(max_in_flight=3, max_waiting=5))
    assert found.films + found.refused == 50
    assert found.refused > 30


def test_one_way_to_arrive() -> None:
    with pytest.raises(ValueError, match="one of rate, every and backlog"):
        simulate(split(), 5)


def test_many_requests_in_bounded_memory() -> None:
    hands = [Hand(f"dit {i}", {DENOISE: 60.0}) for i in range(64)]
    hands += [Hand(f"side {i}", {ENCODE: 2.0, DECODE: 8.0}) for i in range(16)]
    limits = Limits(max_in_flight=192, max_waiting=4000)
    simulate([hands], 5_000, backlog=2000, limits=limits)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = simulate([hands], 20_000, backlog=2000, limits=limits, spread=0.2)
    assert found.films == 20_000
    assert found.per_hour == pytest.approx(64 * 60, rel=0.02)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB


def test_a_split_pays_where_it_saves_reloads_and_not_where_all_fits() -> None:
    spark = setting(Times(2.0, 60.0, 8.0))
    found = [figures(layout) for count in (1, 2) for layout in layouts(spark, count)]
    assert [each.name for each in found] == ["one machine, reloading", "2 independent, reloading", "split"]
    assert verdicts(found)[0].startswith("2 machines: the split pays: split 60.0 films per hour")
    large = setting(Times(2.0, 60.0, 8.0), machine=parse_machine("big=200"))
    found = [figures(layout) for layout in layouts(large, 2)]
    says = verdicts(found)[0]
    assert says.startswith(
        "2 machines: the split does not pay: split 60.0 films per hour, 2 independent, all resident 102"
    )


def test_a_split_is_the_only_way_where_a_component_fills_a_machine() -> None:
    small = setting(Times(2.0, 60.0, 8.0), machine=parse_machine("card=40"))
    found = [figures(layout) for layout in layouts(small, 2)]
    assert found[0].obstacle == "denoise alone does not fit"
    assert "no split is possible" in verdicts(found)[0]


def test_layouts_use_exactly_the_machines_and_balance_the_sides() -> None:
    spark = setting(Times(42.0, 92.0, 94.0))
    names = [[layout.name for layout in layouts(spark, count)] for count in (1, 2, 3, 4)]
    assert names[2] == ["3 independent, reloading", "split, 2 dit", "split, 2 encoder_decoder + 1 dit", "three roles"]
    for count in (1, 2, 3, 4):
        for layout in layouts(spark, count):
            assert layout.machines == sum(len(group) for group in layout.groups) == count


def test_the_link_is_part_of_a_film() -> None:
    slow = setting(Times(2.0, 60.0, 8.0), link_rate=1e6)  # 1 MB/s: 5.2 and 14.4 MB
    one = next(layout for layout in layouts(slow, 2) if layout.name == "split")
    assert figures(one).alone == pytest.approx(70 + 5.25 + 14.4, abs=0.1)


def test_times_are_read_from_text_and_receipts(tmp_path: Path) -> None:
    assert parse_times("encode=42, denoise=92,decode=9.5") == Times(42.0, 92.0, 9.5)
    file = tmp_path / "receipts.jsonl"
    rows = [[("encode", s), ("denoise", 10 * s), ("decode", 2 * s)] for s in (1.0, 3.0, 2.0)]
    lines = [json.dumps({"stages": [{"stage": name, "seconds": s} for name, s in row]}) for row in rows]
    file.write_text("\n".join([*lines, json.dumps({"error": {"type": "StageError"}})]))
    assert parse_times(str(file)) == Times(2.0, 20.0, 4.0)
    (tmp_path / "bad.jsonl").write_text("{}\n[]\n")
    for text, message in {
        "encode=1,denoise=2": "found none for decode",
        "encode=x,denoise=2,decode=3": "found 'encode=x'",
        "encode=-1,denoise=2,decode=3": "found 'encode=-1'",
        "encode=1,encode=1,denoise=2,decode=3": "found 'encode=1'",
        "no/such/file": "or a file of receipts",
        str(tmp_path / "bad.jsonl"): "line 2: expected a receipt",
    }.items():
        with pytest.raises(ConfigError) as caught:
            parse_times(text)
        assert message in str(caught.value)


def test_table_csv_and_picture(tmp_path: Path) -> None:
    spark = setting(Times(42.0, 92.0, 94.0))
    rows = [figures(layout, rate=rate) for count in (1, 2) for layout in layouts(spark, count) for rate in (5.0, 15.0)]
    text = figures_text(rows[1::2], verdicts(rows[1::2]))
    assert "Waiting at 15 requests per hour" in text
    assert "too much" in text
    table = list(csv.DictReader(io.StringIO(figures_csv(rows))))
    assert len(table) == len(rows)
    assert float(table[0]["rate_per_hour"]) == 5.0
    assert table[1]["latency_p95_s"] == ""  # one machine cannot make 15 an hour
    draw_sweep(rows, tmp_path / "p.png", "Title")
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.size == (1120, 430)
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 20  # axes, text and lines, not an empty page
    with pytest.raises(ConfigError, match="--sweep"):
        draw_sweep(rows, tmp_path / "no" / "p.png", "Title")


@pytest.mark.parametrize(
    ("encode", "denoise", "decode"), [(42.0, 92.0, 94.0), (1.0, 3.0, 3.0), (1.0, 3.0, 4.0), (2.0, 2.0, 1.0)]
)
def test_the_usual_look_ahead_keeps_the_busier_machine_busy(encode: float, denoise: float, decode: float) -> None:
    """With one encode ahead and 42 : 92 : 94 (a Spark at 480p) the encoder/decoder rested 16 % of the time."""
    side, dit = Hand("side", {Stage.ENCODE: encode, Stage.DECODE: decode}), Hand("dit", {Stage.DENOISE: denoise})
    found = simulate([[side, dit]], 200, backlog=12)
    assert found.per_hour == pytest.approx(3600 / max(encode + decode, denoise), rel=0.01)
