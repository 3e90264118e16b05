"""Numbers on the command line that cannot be computed with: refused in our words before any work, exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from splitreel.config import parse_config
from splitreel.errors import ConfigError
from splitreel.plan.layouts import parse_times
from splitreel.plan.simulate import Hand, simulate
from splitreel.request import Stage
from splitreel.serve.cli.app import main

TIMES = ("plan", "--offline", "--machines", "1", "--times", "encode=2,denoise=60,decode=8")
CONFIG = """\
model: {path: tiny}
cluster: {address: "10.0.0.1:6379"}
roles: {encoder_decoder: {node: 10.0.0.1}, dit: {node: 10.0.0.2}}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


REFUSED = [
    ((*TIMES, "--rate", "0"), "--rate: expected requests per hour from 0.001 to 1e+06, found 0."),
    ((*TIMES, "--rate", "-5"), "--rate: expected requests per hour from 0.001 to 1e+06, found -5."),
    ((*TIMES, "--rate", "nan"), "--rate: expected requests per hour from 0.001 to 1e+06, found nan."),
    ((*TIMES, "--rate", "inf", "--json"), "--rate: expected requests per hour from 0.001 to 1e+06, found inf."),
    ((*TIMES, "--sweep", "s", "--rates", "nan"), "--rates: expected requests per hour from 0.001 to 1e+06, found nan."),
    ((*TIMES, "--sweep", "s", "--rates", "5,inf"), "--rates: expected requests per hour from 0.001 to 1e+06, found inf."),
    ((*TIMES, "--sweep", "s", "--rates", "0,5"), "--rates: expected requests per hour from 0.001 to 1e+06, found 0."),
    ((*TIMES, "--sweep", "s", "--rates", "a"), "--rates: expected requests per hour with commas between, found 'a'."),
    ((*TIMES, "--sweep", "."), "--sweep: expected a name for two files, found the folder .. For example plan."),
    ((*TIMES, "--sweep", ".."), "--sweep: expected a name for two files, found the folder ... For example ../plan."),
    ((*TIMES, "--sweep", "taken"), "--sweep: expected a file to write, found the folder taken.png."),
    ((*TIMES, "--load-rate", "inf"), "--load-rate: expected GB per second from 0.01 to 1e+06, found inf."),
    ((*TIMES, "--link-rate", "inf"), "--link-rate: expected GB per second from 0.001 to 1e+06, found inf."),
    (("plan", "--offline", "--node", f"a={'9' * 400}"), "--node: expected NAME=GB or NAME=GB:unified, found 'a=999"),
    (("plan", "--offline", "--times", "encode=1e308,denoise=1,decode=1"), "--times: expected encode=SECONDS"),
    (("plan", "--offline", "--times", "encode=nan,denoise=1,decode=1"), "--times: expected encode=SECONDS"),
    (("plan", "--offline", "--times", "encode=0,denoise=0,decode=0"), "--times: expected a stage that takes more than 0 seconds"),
    (("cluster", "commands", "--object-store", "nan"), "--object-store: expected GiB from 0 to 1e+06, found nan."),
    (("cluster", "commands", "--object-store", "inf"), "--object-store: expected GiB from 0 to 1e+06, found inf."),
    (("doctor", "--timeout", "inf"), "--timeout: expected seconds from 10 to 86400, found inf."),
    (("doctor", "--timeout", "nan"), "--timeout: expected seconds from 10 to 86400, found nan."),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(case[0][-2:])[:40] for case in REFUSED])
def test_what_cannot_be_computed_with_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("splitreel.yaml").write_text(CONFIG)
    Path("taken.png").mkdir()
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert err.startswith(f"error: {message}")
    assert len(err) < 300
    assert set(json.loads(out)) == {"error"} if "--json" in arguments else not out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["splitreel.yaml", "taken.png"]


def test_a_group_without_its_command_shows_its_help_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("config", "cluster"):
        code, out, err = run(capsys, group)
        assert code == 2
        assert "Commands" in out + err
        assert "error:" not in out + err


def test_slow_stages_are_swept_at_their_own_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0.003 films per hour and less: rates are not rounded to nothing."""
    monkeypatch.chdir(tmp_path)
    slow = (*TIMES[:-1], "encode=1,denoise=1000000,decode=1")
    code, out, _ = run(capsys, *slow, "--sweep", "s", "--json")
    assert code == 0
    assert "NaN" not in out
    assert "Infinity" not in out
    rows = Path("s.csv").read_text().splitlines()
    assert len(rows) == 9


def test_receipts_and_rates_from_code() -> None:
    with pytest.raises(ValueError, match="expected a rate above 0, found 0"):
        simulate([[Hand("a", dict.fromkeys(Stage, 1.0))]], 4, rate=0.0)


@pytest.mark.parametrize("seconds", ["NaN", "-1", "Infinity"])
def test_receipts_of_no_time(tmp_path: Path, seconds: str) -> None:
    file = tmp_path / "receipts.jsonl"
    file.write_text(f'{{"stages": [{{"stage": "encode", "seconds": {seconds}}}]}}\n')
    with pytest.raises(ConfigError, match=r"line 1: expected a receipt of splitreel generate --json, found .* seconds"):
        parse_times(str(file))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_config_takes_finite_numbers_only(value: float) -> None:
    with pytest.raises(ConfigError, match=r"engine\.stage_timeout: input should be"):
        parse_config({"model": {"path": "tiny"}, "roles": {"all": {}}, "engine": {"stage_timeout": value}})
