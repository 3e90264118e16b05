"""Real raylets in two namespaces, and what links do to them. Needs root and `ip`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from namespaces import PORT, UCX_PORTS, Cable, Unavailable, two_machines

pytestmark = [pytest.mark.timeout(180)]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    try:
        with two_machines() as joined:
            yield joined
    except Unavailable as error:
        pytest.skip(str(error))


def drive(cable: Cable, case: str) -> Any:
    """Run a case of `netns_driver` on side A."""
    folder = cable.folder / case
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(HERE / "netns_driver.py"), case, f"10.77.0.1:{PORT}", str(folder), cable.a.device]
    ended = subprocess.run(
        cable.a.command(*command), env=cable.environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def healthy(cable: Cable) -> Any:
    """Requests over the whole link, before anything is done to it."""
    return drive(cable, "normal")


def test_two_machines(healthy: Any) -> None:
    """By address and host name; a link that is down for two seconds costs nothing but time."""
    found = healthy
    assert found["right"] == [True, True, True]
    assert {name: worker["node"] for name, worker in found["before"].items()} == {
        "encoder_decoder": "10.77.0.1",
        "dit": "169.254.77.2",
    }
    assert found["after"] == found["before"], "the same processes"


def test_a_link_that_lets_only_the_head_through(cable: Cable) -> None:
    """The nodes look healthy; no payload would ever arrive."""
    with cable.only_the_head_answers():
        found = drive(cable, "blocked")
    assert found["error"] == "ClusterError"
    assert "driver → dit (169.254.77.2)" in found["message"]
    assert found["seconds"] < 10


def test_a_link_on_which_payloads_do_not_arrive(cable: Cable, healthy: Any) -> None:
    """Calls pass, payloads do not: either way, the head's object port takes part."""
    with cable.dropped_at_a():
        found = drive(cable, "stuck")
    assert found["error"] == "ClusterError"
    assert "encoder_decoder → dit (169.254.77.2): nothing arrived" in found["message"]
    assert "dit → encoder_decoder (10.77.0.1): nothing arrived" in found["message"]
    # Two workers start first, and import torch; what the probe adds is bounded by its 3 s, and 5 s for the answer.
    assert found["seconds"] < healthy["opening"] + 12


def test_payloads_by_nixl(cable: Cable) -> None:
    """Over TCP, from memory to memory; with its ports closed, if only one way, the start says so."""
    pytest.importorskip("nixl", reason='needs NIXL: pip install "splitreel[nixl]"', exc_type=ImportError)
    found = drive(cable, "direct")
    assert found["right"] == [True, True]
    assert found["transports"] == [["inline", "nixl", "nixl", "object_store"]] * 2
    with cable.dropped_at_a(UCX_PORTS):
        found = drive(cable, "direct")
    assert found["error"] == "ClusterError"
    assert "encoder_decoder → dit (169.254.77.2): no answer" in found["message"]
    assert "UCX" in found["message"]


def test_doctor_names_the_direction(cable: Cable) -> None:
    """Objects do not leave A: said of the way from A to B, and of nothing else."""
    with cable.dropped_at_a():
        found = drive(cable, "doctor")
    wrong = [each for each in found["checks"] if each["status"] == "fail"]
    assert {each["check"] for each in wrong} == {"link.objects"}, wrong
    there = next(each for each in wrong if each["node"] == "169.254.77.2")
    assert there["found"].startswith("10.77.0.1 → 169.254.77.2: nothing arrived within ")
    assert there["remedy"].startswith("Open Ray's ports in that direction")
    assert found["nodes"] == {"10.77.0.1": "splitreel-0", "169.254.77.2": "splitreel-1"}
    own = {each["node"]: each["found"] for each in found["checks"] if each["check"] == "address.own"}
    assert own["10.77.0.1"].endswith("it also has 169.254.77.1")
    assert found["seconds"] < 105


def test_doctor_on_a_link_that_lets_only_the_head_through(cable: Cable) -> None:
    """The node that is listed as healthy and cannot be reached; the other one is looked at nevertheless."""
    with cable.only_the_head_answers():
        found = drive(cable, "doctor_blocked")
    (wrong,) = [each for each in found["checks"] if each["status"] == "fail"]
    assert (wrong["check"], wrong["node"]) == ("node.answers", "169.254.77.2")
    assert "driver → splitreel-1 (169.254.77.2) port" in wrong["found"]
    assert "no answer within 7" in wrong["found"]
    assert "all of them, not the head's alone" in wrong["remedy"]
    assert any(each["check"] == "checkpoint.complete" and each["node"] == "10.77.0.1" for each in found["checks"])
    assert found["seconds"] < 105


def test_a_link_that_goes_down(cable: Cable) -> None:
    """In mid-denoise the request resumes when the link is back; in mid-hop, for good, it ends by name."""
    found = drive(cable, "cut")
    assert found["noticed"] < 5, "heartbeat 0.5 s, lost_after 2 s"
    assert found["right"]
    assert found["after"]["dit"]["pid"] != found["before"]["dit"]["pid"]
    assert found["after"]["encoder_decoder"] == found["before"]["encoder_decoder"], "the other role stays resident"
    assert found["outcome"].startswith("WorkerLost: "), found
    assert "role dit on 169.254.77.2" in found["outcome"]
    assert found["ended"] < 40
    assert found["state"] == "lost"
