"""A real Ray cluster on this machine, for trying, developing and testing: `cluster.address: embedded`.

Each node is one `ray start --block` with its own loopback address, ports and directory; all of them belong to a small
supervisor process (`_supervisor.py`) that ends them when this process stops the cluster, exits, or is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from splitreel.cluster import _token
from splitreel.errors import ClusterUnreachable, ConfigError

SUPERVISOR = Path(__file__).with_name("_supervisor.py")
SOURCES = Path(__file__).resolve().parents[2]  # the directory that `splitreel` is imported from
STOP_S = 9.0  # the supervisor needs 1 to 2 s, at most 7
# A Unix socket's path has 107 bytes (103 on macOS). Below a directory "/splitreel-12345678" in the one that was asked
# for, Ray adds "/0/session_2030-12-31_23-59-59_999999_1234567/sockets/plasma_store".
LONGEST_PARENT = (107 if sys.platform.startswith("linux") else 103) - 19 - 66
UP = "This command will now block"  # what `ray start --block` prints once its node is registered
ADDRESS = re.compile(r"ray start --address='([^']+)'")
# Without grpc, `ray start` behaves as in a plain installation: no Ray Client server, no HTTP server in the agents.
# That is 1 s of CPU time and 100 MB less, and no fixed port (10001). `-P`: the current directory shadows no modules.
RAY_START = [
    sys.executable,
    "-P",
    "-c",
    "import sys; sys.modules['grpc'] = None; from ray.scripts.scripts import main; sys.exit(main())",
    "start",
    "--block",
    "--disable-usage-stats",
    "--log-color=false",
    "--include-log-monitor=false",
    # Each process picks a free port itself: a port that we found free may be taken when Ray binds it, and then
    # `ray start` hangs for 30 s without a word.
    *(f"--{name}-port=0" for name in ("object-manager", "node-manager", "min-worker", "max-worker", "metrics-export")),
    *(f"--{name}-port=0" for name in ("dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent")),
]
RAY_START_HEAD = ["--head", "--port=0", "--dashboard-port=0", "--include-dashboard=false", "--no-monitor"]
PREFIX = "splitreel-"
DIRECTORY = re.compile(rf"/{PREFIX}[^/]+/\d+/session_")
NOT_INHERITED = ("RAY_ADDRESS", "RAY_REDIS_ADDRESS")


@dataclass(frozen=True)
class EmbeddedNode:
    """What one node claims to have; Ray does not check it against the machine.

    `env` is added to the environment of the node's processes and so of its workers: give each node its own
    `CUDA_VISIBLE_DEVICES` where several claim GPUs of one machine.
    """

    cpus: int = 1
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Running:
    """One node as seen from here; `output` is what its `ray start` printed last."""

    ip: str
    directory: Path
    output: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    up: bool = False
    exit_code: int | None = None
    node_id: str = ""


def of_another_run(address: str) -> bool:
    """Whether the head at `HOST:PORT` on this machine was started by some process with `cluster.address: embedded`, as its
    directory tells. Such a cluster lets nobody in but that process.
    """
    import psutil

    host = f"--node-ip-address={address.rpartition(':')[0]}"
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if line and line[0].endswith("gcs_server") and host in line:
            logs = next((each for each in line if each.startswith("--log_dir=")), "")
            if DIRECTORY.search(logs):
                return True
    return False


class EmbeddedCluster:
    """A running cluster and its address; a context manager that stops it.

    The nodes' addresses are 127.0.0.2, 127.0.0.3, ... where the machine has them (Linux), else all 127.0.0.1. They
    listen on every interface, so the cluster demands a token, which this process and its children have in their
    environment until `stop`; a mode set in RAY_AUTH_MODE before is kept.

    Connect with `ray.init(address=cluster.address)`, and disconnect before `stop`.
    """

    @classmethod
    def start(
        cls,
        *,
        nodes: Sequence[EmbeddedNode] | int = 2,
        temp_dir: Path | None = None,
        object_store_bytes: int = 200_000_000,
        timeout_s: float = 60.0,
        progress: Callable[[str], None] | None = None,
    ) -> EmbeddedCluster:
        """Start all nodes, the first as the head, and return when each is registered; 4 to 5 s for two on two cores.

        `temp_dir` is where a directory for sockets, logs and spilled objects is made (default: the system's); it is
        removed by `stop`. `object_store_bytes` holds for each node. `progress` is called with a line per step.

        Raises ConfigError for a `temp_dir` that is too long for sockets or cannot be written; ClusterUnreachable,
        with the end of the log, when a node ends or is not up after `timeout_s` seconds, and where this process is
        connected to another cluster.
        """
        specs = [EmbeddedNode() for _ in range(nodes)] if isinstance(nodes, int) else list(nodes)
        if not specs:
            raise ConfigError(
                "cluster.nodes: expected at least 1 node, found 0. Give a number or a list of EmbeddedNode."
            )
        cluster = cls(temp_dir, object_store_bytes, progress or (lambda _: None))
        deadline = time.monotonic() + timeout_s
        try:
            for spec in specs:
                cluster._add(spec, deadline)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def __init__(self, temp_dir: Path | None, object_store_bytes: int, progress: Callable[[str], None]) -> None:
        """Start the supervisor alone; use `start`."""
        self._object_store_bytes = object_store_bytes
        self._progress = progress
        self._nodes: list[_Running] = []
        self._changed = threading.Condition()
        self._stopping = threading.Lock()
        self._stopped = False
        self._address = ""
        self._supervisor_gone = False
        _token.hold()
        try:
            self.directory = _make_directory(temp_dir)
            # Isolated and without site packages: 20 ms to start, and no import path to depend on.
            self._supervisor = subprocess.Popen(
                [sys.executable, "-IS", str(SUPERVISOR), str(self.directory), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            _token.release()
            raise
        self._listener = threading.Thread(target=self._listen, name="splitreel-embedded", daemon=True)
        self._listener.start()

    @property
    def address(self) -> str:
        """`ip:port` for `ray.init` and `cluster.address`."""
        return self._address

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Ray's node ids (56 hex digits), in the order of starting; the head's first. Killed nodes keep their place."""
        return tuple(node.node_id for node in self._nodes if node.node_id)

    @property
    def node_addresses(self) -> tuple[str, ...]:
        """The nodes' IP addresses, likewise."""
        return tuple(node.ip for node in self._nodes if node.node_id)

    @property
    def environment(self) -> dict[str, str]:
        """What a driver that is not a child of this process needs in its environment. Holds a secret."""
        return _token.environment()

    def add_node(self, node: EmbeddedNode | None = None, *, timeout_s: float = 30.0) -> str:
        """Start one more node and return its id. Raises as `start`; the cluster then goes on without it."""
        self._add(node or EmbeddedNode(), time.monotonic() + timeout_s)
        return self._nodes[-1].node_id

    def kill_node(self, node_id: str) -> None:
        """SIGKILL every process of a node at once, as a power cut would; returns when its first process is gone.

        Ray marks it dead about 5 s later. Raises ValueError for an id that is not in `node_ids`.
        """
        index = [node.node_id for node in self._nodes].index(node_id)
        node = self._nodes[index]
        self._send({"op": "kill", "node": index})
        with self._changed:
            self._changed.wait_for(lambda: node.exit_code is not None or self._supervisor_gone, timeout=5.0)

    def stop(self) -> None:
        """End every process and remove the directory, within 10 s; a second call does nothing.

        A driver of this process that is still connected is disconnected first: Ray ends a process whose raylet goes.
        """
        with self._stopping:
            if self._stopped:
                return
            self._stopped = True
            self._disconnect()
            assert self._supervisor.stdin is not None
            assert self._supervisor.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._supervisor.stdin.close()
            try:
                self._supervisor.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()  # its children go with it
                self._supervisor.wait()
            self._listener.join(1.0)
            self._supervisor.stdout.close()
            shutil.rmtree(self.directory, ignore_errors=True)  # for a supervisor that could not
            _token.release()

    def __enter__(self) -> EmbeddedCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _add(self, spec: EmbeddedNode, deadline: float) -> None:
        index = len(self._nodes)
        began = time.monotonic()
        node = _Running(_address_of(index), self.directory / str(index))
        self._progress(f"starting Ray node {index} at {node.ip} ({spec.cpus} CPU, {spec.gpus} GPU)")
        with self._changed:
            self._nodes.append(node)
        argv = [
            *RAY_START,
            f"--temp-dir={node.directory}",
            f"--node-ip-address={node.ip}",
            f"--num-cpus={spec.cpus}",
            f"--num-gpus={spec.gpus}",
            f"--object-store-memory={self._object_store_bytes}",
            "--labels=" + ",".join(f"{key}={value}" for key, value in spec.labels.items()),
            *([f"--address={self._address}"] if self._address else RAY_START_HEAD),
        ]
        self._send({"op": "start", "node": index, "argv": argv, "env": _environment(spec)})
        with self._changed:
            self._changed.wait_for(
                lambda: node.up or node.exit_code is not None or self._supervisor_gone,
                timeout=max(0.0, deadline - time.monotonic()),
            )
            seconds = time.monotonic() - began
            if not node.up or node.exit_code is not None:
                if node.exit_code is None:
                    self._send({"op": "kill", "node": index})
                what = "was not up" if node.exit_code is None else f"ended with exit code {node.exit_code}"
                raise ClusterUnreachable(
                    f"cluster.address: expected the embedded cluster's Ray node {index} at {node.ip} to start, found "
                    f"that it {what} after {seconds:.1f} s. The end of its log says why:\n{_log_tail(node)}"
                )
        if not self._address:
            self._address = next(found[1] for line in node.output if (found := ADDRESS.search(line)))
        node.node_id, node.ip = self._registered({other.node_id for other in self._nodes})
        self._progress(f"Ray node {index} at {node.ip} is up after {seconds:.1f} s")

    def _registered(self, known: set[str]) -> tuple[str, str]:
        """Id and address of the one live node that is not `known`; Ray has no public way to ask without connecting.

        The address is Ray's: it replaces 127.0.0.1 by one of the machine's others.
        """
        from ray._raylet import GcsClient  # type: ignore[attr-defined]  # absent from its stub

        try:
            nodes = GcsClient(self._address).get_all_node_info(timeout=10).values()
            new = next(info for info in nodes if info.state == 0 and info.node_id.hex() not in known)
        except Exception as error:
            raise ClusterUnreachable(
                f"cluster.address: expected the embedded cluster at {self._address} to list its new node, found "
                f"{type(error).__name__}: {error}. Start the cluster again."
            ) from error
        return new.node_id.hex(), new.node_manager_address

    def _send(self, command: dict[str, Any]) -> None:
        assert self._supervisor.stdin is not None
        try:
            self._supervisor.stdin.write(json.dumps(command).encode() + b"\n")
            self._supervisor.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise ClusterUnreachable(
                "cluster.address: expected the embedded cluster's supervisor to run, found that it ended. "
                "Start the cluster again."
            ) from error

    def _listen(self) -> None:
        """Take in what the supervisor reports, on a thread of its own, until it ends."""
        assert self._supervisor.stdout is not None
        for line in self._supervisor.stdout:
            event = json.loads(line)
            node = self._nodes[event["node"]]
            with self._changed:
                if event["event"] == "exit":
                    node.exit_code = event["code"]
                else:
                    node.output.append(event["text"])
                    node.up = node.up or UP in event["text"]
                self._changed.notify_all()
        with self._changed:
            self._supervisor_gone = True
            self._changed.notify_all()

    def _disconnect(self) -> None:
        if "ray" not in sys.modules:
            return
        import ray

        if ray.is_initialized() and ray.get_runtime_context().gcs_address == self._address:
            ray.shutdown()


def _make_directory(parent: Path | None) -> Path:
    """A new directory, readable by this user only (Ray opens those below it to everyone)."""
    chosen = Path(tempfile.gettempdir()) if parent is None else parent.absolute()
    if len(os.fsencode(chosen)) > LONGEST_PARENT and parent is None:
        chosen = Path("/tmp")
    if len(os.fsencode(chosen)) > LONGEST_PARENT:
        raise ConfigError(
            f"cluster.temp_dir: expected a path of at most {LONGEST_PARENT} bytes, since Unix sockets are made below, "
            f"found {len(os.fsencode(chosen))} in {str(chosen)!r}. Give a shorter one, or none for the system's."
        )
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=chosen))
    except OSError as error:
        raise ConfigError(
            f"cluster.temp_dir: expected a writable directory, found {str(chosen)!r} ({error.strerror}). Create it, or "
            "give none for the system's."
        ) from error


def _address_of(index: int) -> str:
    """127.0.0.2 for node 0 and so on: all of 127/8 is local on Linux; elsewhere only 127.0.0.1 is."""
    ip = f"127.0.0.{index + 2}"
    with socket.socket() as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return "127.0.0.1"
    return ip


def _environment(spec: EmbeddedNode) -> dict[str, str]:
    """This process's environment as the node's processes, and so its workers, shall see it."""
    result = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    # The head looks for dead nodes every second instead of every three: a killed node is noticed after 5 s, not 15.
    result.setdefault("RAY_health_check_period_ms", "1000")
    # A checkout may be on sys.path and not in PYTHONPATH; site-packages must not come before the standard library.
    paths = list(filter(None, result.get("PYTHONPATH", "").split(os.pathsep)))
    if SOURCES.name not in ("site-packages", "dist-packages") and str(SOURCES) not in paths:
        result["PYTHONPATH"] = os.pathsep.join([str(SOURCES), *paths])
    if not sys.platform.startswith("linux"):
        result["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"
    result.update(spec.env)
    return result


def _log_tail(node: _Running) -> str:
    """What `ray start` printed last, and the last lines of Ray's own error logs where there are any."""
    parts = list(node.output)[-20:]
    for path in sorted(node.directory.glob("session_latest/logs/*.err")):
        with contextlib.suppress(OSError):
            if lines := path.read_text(errors="replace").splitlines()[-10:]:
                parts += [f"{path.name}:", *lines]
    return "\n".join(parts) or "(no output)"
