"""`splitreel plan` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli_config import splitreel


def test_it_fits_or_ends_with_3(tmp_path: Path) -> None:
    done = splitreel(tmp_path, "plan", "--node", "a=128:unified", "--node", "b=128:unified")
    assert "It fits: dit on a, encoder_decoder on b." in done.stdout
    short = json.loads(splitreel(tmp_path, "plan", "--node", "a=48", "--node", "b=48", "--json", code=3).stdout)
    assert short["memory"]["fits"] is False
    assert short["memory"]["shortfalls"][0].startswith("a: encoder_decoder: expected 62.3 GB")
    assert "expected the memory of each machine" in splitreel(tmp_path, "plan", code=2).stderr


def test_with_stage_times_the_comparison_is_the_answer(tmp_path: Path) -> None:
    """One machine that is too small alone, of which there may be several; and one that is too small in any number."""
    times = ("--offline", "--times", "encode=2,denoise=60,decode=8", "--machines", "2")
    done = splitreel(tmp_path, "plan", "--node", "a=80", *times)
    assert "It does not fit:" in done.stdout
    assert done.stdout.endswith(
        "The machines given do not hold the model; with up to 2 like the smallest of them these do: one machine, reloading; "
        "2 independent, reloading; split.\n"
    )
    none = splitreel(tmp_path, "plan", "--node", "a=20", *times, code=3)
    assert none.stdout.endswith("\nThe machines given do not hold the model.\n")
    found = json.loads(splitreel(tmp_path, "plan", "--node", "a=80", *times, "--json").stdout)
    assert found["memory"]["fits"] is False
    assert found["layouts"][2]["name"] == "split"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--times", "garbage"), "--times: garbage: expected stage times"),
        (("--sweep", "x"), "--times: expected the seconds of each stage"),
        (
            ("--times", "encode=2,denoise=60,decode=8", "--sweep", "/proc/foo/x"),
            "--sweep: /proc/foo/x.csv: expected a place where a file can be written",
        ),
        (("--times", "encode=2,denoise=60,decode=8", "--rates", "1,2"), "--rates: expected --sweep too, found none."),
    ],
)
def test_wrong_usage_is_said_before_any_result(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = splitreel(tmp_path, "plan", "--node", "a=128", "--offline", *options, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {message}")


def test_a_film_that_generate_refuses_is_refused_in_the_same_words(tmp_path: Path) -> None:
    sizes = ("--offline", "--node", "a=200", "--height", "100", "--width", "64")
    done = splitreel(tmp_path, "plan", *sizes, code=2)
    assert (
        done.stderr
        == "error: height, width: expected multiples of 32, found 64 wide, 100 high. Nearest: 64 wide, 96 high.\n"
    )
    rounded = splitreel(tmp_path, "plan", "--offline", "--node", "a=200", "--num-frames", "125")
    assert rounded.stderr.startswith("note: num_frames 125 was rounded up to 141 frames (5.875 s)")


def test_a_config_of_its_own_and_a_sweep(tmp_path: Path) -> None:
    splitreel(tmp_path, "config", "init", "--nodes", "10.0.0.1,10.0.0.2", "--model", "tiny", "--device", "cpu")
    nodes = ("--node", "10.0.0.1=4", "--node", "10.0.0.2=4")
    film = ("--height", "64", "--width", "64", "--times", "encode=2,denoise=60,decode=8", "--machines", "2")
    sweep = ("--sweep", "out/plan", "--rates", "10,30")
    done = json.loads(splitreel(tmp_path, "plan", "--config", "splitreel.yaml", *nodes, *film, *sweep, "--json").stdout)
    assert done["memory"]["sizes"].startswith("file headers in ")
    assert 0 < done["memory"]["machines"][1]["workers"][0]["weights"]["transformer"] < 1e8
    assert "the split does not pay" in done["verdicts"][0]  # a tiny model fits on one machine
    assert done["advice"][0].startswith("2 machines: 1 encoder_decoder + 1 dit keeps the transformer busiest, 100% of")
    assert {each["name"]: round(each["dit_busy"], 1) for each in done["partitions"]}["1 encoder + 1 dit_decoder"] == 0.9
    assert (tmp_path / "out/plan.csv").read_text().count("\n") == 1 + 2 * 3
    assert (tmp_path / "out/plan.png").read_bytes().startswith(b"\x89PNG")
