"""Two machines as the network sees them: namespaces joined by a cable that can be cut. Needs root and `ip`."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from splitreel.cluster.embedded import RAY_START, SOURCES, UP

pytestmark = [pytest.mark.timeout(180)]

HERE = Path(__file__).parent
PORT, OBJECTS = 6379, 7001  # of the head


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)


@dataclass
class Side:
    """One namespace and its end of the cable."""

    name: str
    device: str
    number: int
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self, *command: str, host: str = "") -> list[str]:
        """The command, inside, with a host name of its own."""
        named = ["unshare", "--uts", "sh", "-c", f'hostname {host or self.name}; exec "$@"', "-"]
        return ["ip", "netns", "exec", self.name, *named, *command]

    def ip(self, *arguments: str) -> None:
        ip("-n", self.name, *arguments)

    def end(self) -> None:
        """End what runs inside; nothing of others can."""
        inside = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True).stdout.split()
        for pid in inside:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes:
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


@dataclass
class Cable:
    """Both sides, and the environment of every process in them."""

    a: Side
    b: Side
    environment: dict[str, str]
    folder: Path

    def drive(self, case: str) -> Any:
        """Run a case of `netns_driver` on side A."""
        folder = self.folder / case
        folder.mkdir()
        command = [sys.executable, str(HERE / "netns_driver.py"), case, f"10.77.0.1:{PORT}", str(folder), self.a.device]
        ended = subprocess.run(
            self.a.command(*command), env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        return json.loads(ended.stdout.splitlines()[-1])

    @contextmanager
    def only_the_head_answers(self) -> Iterator[None]:
        """Whatever comes from A is dropped at B, silently, but for what the head's port sends."""
        comes = ("iif", self.b.device)
        self.b.ip("rule", "add", "pref", "10", *comes, "ipproto", "tcp", "sport", str(PORT), "lookup", "local")
        self.b.ip("rule", "add", "pref", "20", *comes, "blackhole")
        self.b.ip("rule", "add", "pref", "30", "lookup", "local")
        self.b.ip("rule", "del", "pref", "0")
        try:
            yield
        finally:
            self.b.ip("rule", "add", "pref", "0", "lookup", "local")
            for preference in ("10", "20", "30"):
                self.b.ip("rule", "del", "pref", preference)

    @contextmanager
    def objects_do_not_leave_a(self) -> Iterator[None]:
        """B's requests for objects of A are dropped at A."""
        self.a.ip(
            "rule", "add", "pref", "20", "iif", self.a.device, "ipproto", "tcp", "dport", str(OBJECTS), "blackhole"
        )
        self.a.ip("rule", "add", "pref", "30", "lookup", "local")
        self.a.ip("rule", "del", "pref", "0")
        try:
            yield
        finally:
            self.a.ip("rule", "add", "pref", "0", "lookup", "local")
            for preference in ("20", "30"):
                self.a.ip("rule", "del", "pref", preference)


def start_node(side: Side, number: int, address: str, folder: Path, environment: dict[str, str]) -> None:
    join = (
        [f"--address=10.77.0.1:{PORT}"] if number else ["--head", f"--port={PORT}", f"--object-manager-port={OBJECTS}"]
    )
    command = [
        *RAY_START,
        f"--temp-dir={folder / str(number)}",
        f"--node-ip-address={address}",
        "--num-cpus=1",
        "--num-gpus=0",
        "--object-store-memory=100000000",
        *join,
        *(() if number else ("--include-dashboard=false", "--dashboard-port=0", "--no-monitor")),
    ]
    process = subprocess.Popen(
        side.command(*command, host=f"splitreel-{number}"),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    side.processes.append(process)
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if UP in line:
            return
    raise AssertionError("".join(seen))


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    """Nodes at 10.77.0.1 (the head) and, link-local, as fabrics without an address server have it, 169.254.77.2."""
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("hostname", "hostname")):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} (Debian: {package})")
    tag = f"{os.getpid() % 100_000:05d}"
    a, b = Side(f"sr-{tag}-a", f"sr{tag}a", 1), Side(f"sr-{tag}-b", f"sr{tag}b", 2)
    with ExitStack() as undo:
        try:
            for side in (a, b):
                ip("netns", "add", side.name)
                undo.callback(ip, "netns", "del", side.name)
            ip("link", "add", a.device, "netns", a.name, "type", "veth", "peer", "name", b.device, "netns", b.name)
        except (subprocess.CalledProcessError, PermissionError) as error:
            pytest.skip(f"needs root and network namespaces: {getattr(error, 'stderr', error)}")
        for side in (a, b):
            side.ip("link", "set", "lo", "up")
            for net in ("10.77.0", "169.254.77"):
                side.ip("addr", "add", f"{net}.{side.number}/24", "dev", side.device)
            side.ip("link", "set", side.device, "up")
        folder = Path(tempfile.mkdtemp(prefix="sr-", dir="/tmp"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(SOURCES)]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        for side in (a, b):
            undo.callback(side.end)
        start_node(a, 0, "10.77.0.1", folder, environment)
        start_node(b, 1, "169.254.77.2", folder, environment)
        yield Cable(a, b, environment, folder)


def test_two_machines(cable: Cable) -> None:
    """By address and host name; a link that is down for two seconds costs nothing but time."""
    found = cable.drive("normal")
    assert found["right"] == [True, True, True]
    assert {name: worker["node"] for name, worker in found["before"].items()} == {
        "encoder_decoder": "10.77.0.1",
        "dit": "169.254.77.2",
    }
    assert found["after"] == found["before"], "the same processes"


def test_a_link_that_lets_only_the_head_through(cable: Cable) -> None:
    """The nodes look healthy; no payload would ever arrive."""
    with cable.only_the_head_answers():
        found = cable.drive("blocked")
    assert found["error"] == "ClusterError"
    assert "driver → dit (169.254.77.2)" in found["message"]
    assert found["seconds"] < 10


def test_a_link_on_which_payloads_do_not_arrive(cable: Cable) -> None:
    """Calls pass, payloads do not: either way, the head's object port takes part."""
    with cable.objects_do_not_leave_a():
        found = cable.drive("stuck")
    assert found["error"] == "ClusterError"
    assert "encoder_decoder → dit (169.254.77.2): nothing arrived" in found["message"]
    assert "dit → encoder_decoder (10.77.0.1): nothing arrived" in found["message"]
    assert found["seconds"] < 20


def test_doctor_names_the_direction(cable: Cable) -> None:
    """Objects do not leave A: said of the way from A to B, and of nothing else."""
    with cable.objects_do_not_leave_a():
        found = cable.drive("doctor")
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
        found = cable.drive("doctor_blocked")
    (wrong,) = [each for each in found["checks"] if each["status"] == "fail"]
    assert (wrong["check"], wrong["node"]) == ("node.answers", "169.254.77.2")
    assert "driver → splitreel-1 (169.254.77.2) port" in wrong["found"]
    assert "no answer within 7" in wrong["found"]
    assert "all of them, not the head's alone" in wrong["remedy"]
    assert any(each["check"] == "checkpoint.complete" and each["node"] == "10.77.0.1" for each in found["checks"])
    assert found["seconds"] < 105


def test_a_link_that_goes_down(cable: Cable) -> None:
    """In mid-denoise the request resumes when the link is back; in mid-hop, for good, it ends by name."""
    found = cable.drive("cut")
    assert found["noticed"] < 5, "heartbeat 0.5 s, lost_after 2 s"
    assert found["right"]
    assert found["after"]["dit"]["pid"] != found["before"]["dit"]["pid"]
    assert found["after"]["encoder_decoder"] == found["before"]["encoder_decoder"], "the other role stays resident"
    assert found["outcome"].startswith("WorkerLost: "), found
    assert "role dit on 169.254.77.2" in found["outcome"]
    assert found["ended"] < 40
    assert found["state"] == "lost"
