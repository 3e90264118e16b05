"""Which partition is advised: the shares of time that follow from the stage times, and when a third role pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from splitreel.h3.released import FilmSize
from splitreel.plan.layouts import Setting, Times, figures, layouts, verdicts
from splitreel.plan.memory import parse_machine
from splitreel.plan.partitions import Share, advice, beyond, bound, shares
from splitreel.plan.report import shares_text
from splitreel.plan.sizes import RELEASE, sizes_of


def setting(times: Times, **changes: object) -> Setting:
    plain = Setting(times, sizes_of(RELEASE, ("t2va",)), FilmSize(), ("t2va",), link_rate=1e18)
    return replace(plain, **changes)  # type: ignore[arg-type]


def by_name(found: list[Share]) -> dict[str, Share]:
    return {each.name: each for each in found}


@pytest.mark.parametrize("times", [Times(42, 92, 94), Times(2, 60, 8), Times(1, 2, 1), Times(5, 1, 1)])
@pytest.mark.parametrize("machines", [2, 3, 4])
def test_the_scheduler_comes_within_3_percent_of_the_bound_where_each_stage_has_one_role(
    times: Times, machines: int
) -> None:
    here = setting(times)
    for each in shares(here, machines):
        assert sum(each.counts.values()) == each.machines == machines
        most = bound(here, each.counts) * 3600
        shared = "encoder_decoder" in each.counts and len(each.counts) == 3  # whose turn it is matters there
        assert (0.8 if shared else 0.97) * most <= each.per_hour <= 1.03 * most, each.name
        dits = sum(count for role, count in each.counts.items() if "dit" in role)
        assert each.dit_busy == pytest.approx(min(1.0, each.per_hour / 3600 * times.denoise / dits))


@pytest.mark.parametrize("times", [Times(42, 92, 94), Times(60, 60, 60), Times(1, 2, 1), Times(30, 60, 50)])
def test_a_third_role_does_not_pay_where_two_fit(times: Times) -> None:
    """So many workers that can both encode and decode never do less than as many that can do one of them."""
    for machines in (3, 4, 5):
        says = advice(shares(setting(times), machines))
        assert says[1].startswith(f"{machines} machines: a third role does not pay: ")


def test_a_third_role_pays_where_only_it_fits() -> None:
    here = [Share({"encoder_decoder": 1, "dit": 2}, 3, 0.0, 0.0, "encode and decode do not fit")]
    three = Share({"encoder": 1, "dit": 1, "decoder": 1}, 3, 0.9, 50.0)
    assert advice([*here, three])[1] == "3 machines: only a third role fits: 1 encoder + 1 dit + 1 decoder."
    slower = Share({"encoder": 1, "dit_decoder": 2}, 3, 0.4, 40.0)
    assert "a third role pays: 1 encoder + 1 dit + 1 decoder 50.0 films per hour" in advice([*here, slower, three])[1]


def test_it_is_said_when_the_busiest_transformer_makes_fewer_films() -> None:
    line = advice(shares(setting(Times(42, 92, 94)), 4))[0]
    assert line.startswith(
        "4 machines: 1 encoder + 1 dit + 2 decoder keeps the transformer busiest, 100% of the time, but"
    )
    assert "1 encoder + 3 dit_decoder, 49%, makes more films, 58.1 per hour against 39.1: take that" in line
    assert "2 encoder_decoder + 2 dit 68% (52.9)" in line


def test_what_is_advised_is_compared_with_the_rest() -> None:
    """No two verdicts: the partition that makes most films is among the layouts, where it makes more than they do."""
    here = setting(Times(42, 92, 94), machine=parse_machine("spark=128:unified"))
    compared = [figures(layout) for layout in layouts(here, 4)]
    (better,) = beyond(here, shares(here, 4), compared)
    assert better.name == "split, 1 encoder + 3 dit_decoder"
    assert verdicts([*compared, figures(better)])[0].startswith(
        "4 machines: the split pays: split, 1 encoder + 3 dit_decoder 58.1 films per hour"
    )
    assert beyond(here, shares(here, 2), [figures(layout) for layout in layouts(here, 2)]) == []


def test_what_does_not_fit_is_not_advised() -> None:
    small = setting(Times(2, 60, 8), machine=parse_machine("card=60"))
    found = shares(small, 3)
    assert advice(found) == [
        "3 machines: no partition is possible: 1 encoder_decoder + 2 dit: encode and decode do not fit."
    ]
    spark = setting(Times(2, 60, 8), machine=parse_machine("spark=128:unified"))
    found = shares(spark, 3)
    assert by_name(found)["2 encoder_dit + 1 decoder"].obstacle == "encode and denoise do not fit"
    assert "encode and denoise do not fit" in shares_text(found, advice(found))
    tall = setting(Times(2, 60, 8), machine=parse_machine("card=74"))
    assert [each.name for each in shares(tall, 3) if not each.obstacle]


def test_the_hop_is_part_of_the_stage_that_waits_for_it() -> None:
    slow = setting(Times(2, 60, 8), link_rate=1e6)  # 5.2 MB into denoise
    one = by_name(shares(slow, 2))["1 encoder_decoder + 1 dit"]
    assert one.dit_busy == pytest.approx(60 / 65.2, abs=0.01)
