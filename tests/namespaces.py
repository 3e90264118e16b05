"""Two machines as the network sees them: namespaces joined by a cable that can be cut. Needs root and `ip`."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from splitreel.cluster.embedded import RAY_START, SOURCES, UP

PORT, OBJECTS = 6379, 7001  # of the head
UCX_PORTS = "41000-41200"  # where NIXL listens


class Unavailable(Exception):
    """This machine does not let us make namespaces; says why."""


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

    def sends_again(self) -> bool:
        """Whether a connection waits for an answer to what it has sent more than once."""
        read = ["ip", "netns", "exec", self.name, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
        lines = subprocess.run(read, check=True, capture_output=True, text=True, timeout=20).stdout.splitlines()
        sockets = [line.split() for line in lines if not line.lstrip().startswith("sl")]
        return any(int(fields[6], 16) > 0 for fields in sockets)

    def retry_soon(self) -> None:
        """Let TCP send again every few seconds, where the kernel can be told to (Linux 6.15)."""
        patience = "/proc/sys/net/ipv4/tcp_rto_max_ms"
        told = f"if test -e {patience}; then echo 4000 > {patience}; fi"
        subprocess.run(["ip", "netns", "exec", self.name, "sh", "-c", told], check=True, timeout=20)

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
            self.settle()

    @contextmanager
    def dropped_at_a(self, ports: str = str(OBJECTS)) -> Iterator[None]:
        """What B sends to ports of A is dropped there, silently: as a rule its requests for objects of A."""
        self.a.ip("rule", "add", "pref", "20", "iif", self.a.device, "ipproto", "tcp", "dport", ports, "blackhole")
        self.a.ip("rule", "add", "pref", "30", "lookup", "local")
        self.a.ip("rule", "del", "pref", "0")
        try:
            yield
        finally:
            self.a.ip("rule", "add", "pref", "0", "lookup", "local")
            for preference in ("20", "30"):
                self.a.ip("rule", "del", "pref", preference)
            self.settle()

    def settle(self) -> None:
        """Wait until what was dropped has been sent again: TCP waits ever longer, after a minute another minute."""
        end = time.monotonic() + 120
        while any(side.sends_again() for side in (self.a, self.b)):
            assert time.monotonic() < end, "connections did not recover"
            time.sleep(0.1)


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


@contextmanager
def joined(*nets: str) -> Iterator[tuple[Side, Side]]:
    """Two namespaces and a cable; each side has the address NET.1 or NET.2 of every net. Raises Unavailable."""
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("hostname", "hostname")):
        if shutil.which(tool) is None:
            raise Unavailable(f"needs {tool} (Debian: {package})")
    tag = f"{os.getpid() % 100_000:05d}"
    a, b = Side(f"sr-{tag}-a", f"sr{tag}a", 1), Side(f"sr-{tag}-b", f"sr{tag}b", 2)
    with ExitStack() as undo:
        try:
            for side in (a, b):
                ip("netns", "add", side.name)
                undo.callback(ip, "netns", "del", side.name)
            ip("link", "add", a.device, "netns", a.name, "type", "veth", "peer", "name", b.device, "netns", b.name)
        except (subprocess.CalledProcessError, PermissionError) as error:
            raise Unavailable(f"needs root and network namespaces: {getattr(error, 'stderr', error)}") from error
        for side in (a, b):
            side.retry_soon()
            side.ip("link", "set", "lo", "up")
            for net in nets:
                side.ip("addr", "add", f"{net}.{side.number}/24", "dev", side.device)
            side.ip("link", "set", side.device, "up")
            undo.callback(side.end)
        yield a, b


@contextmanager
def two_machines() -> Iterator[Cable]:
    """Nodes at 10.77.0.1 (the head) and, link-local, as fabrics without an address server have it, 169.254.77.2.

    Raises Unavailable.
    """
    with ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="sr-", dir="/tmp"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        a, b = undo.enter_context(joined("10.77.0", "169.254.77"))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(Path(__file__).parent), str(SOURCES), os.environ.get("PYTHONPATH")])
            ),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            # A case that drops packets for a minute, and TCP's patience after it, must not cost the next one its node:
            # Ray's own health checks would give it up after 5 failures.
            "RAY_health_check_failure_threshold": "100",
        }
        start_node(a, 0, "10.77.0.1", folder, environment)
        start_node(b, 1, "169.254.77.2", folder, environment)
        yield Cable(a, b, environment, folder)
