"""The embedded cluster: it starts, it stops, and it never outlives the program that started it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode
from splitreel.errors import ClusterUnreachable, ConfigError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def members(directory: Path) -> dict[int, str]:
    """Live processes of the cluster in `directory`, id → command: its supervisor and the supervisor's session."""
    found: dict[int, tuple[int, str]] = {}
    leader = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                found[int(entry.name)] = (int(session), command)
                if f"_supervisor.py {directory} " in command:
                    leader = int(entry.name)
    return {pid: command for pid, (session, command) in found.items() if session == leader or str(directory) in command}


def gone(pids: dict[int, str], within_s: float) -> dict[int, str]:
    """Of these processes, the ones that still run after `within_s` seconds; returns as soon as there are none."""
    deadline = time.monotonic() + within_s
    while rest := {pid: command for pid, command in pids.items() if running(pid)}:
        if time.monotonic() > deadline:
            return rest
        time.sleep(0.05)
    return {}


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path is short enough for sockets below it, which pytest's is not."""
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as directory:
        yield Path(directory)


@contextlib.contextmanager
def connected(cluster: EmbeddedCluster) -> Iterator[None]:
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level="warning")
    try:
        yield
    finally:
        ray.shutdown()


def actors_by_node(node_ids: tuple[str, ...]) -> dict[str, tuple[str, int]]:
    """Run an actor pinned to each node: node id asked for → (node id found, process id)."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    class Probe:
        def where(self) -> tuple[str, int]:
            import splitreel.errors  # noqa: F401  the workers must find the package that the driver found

            return ray.get_runtime_context().get_node_id(), os.getpid()

    probes = [
        Probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote()
        for node_id in node_ids
    ]
    return dict(zip(node_ids, ray.get([probe.where.remote() for probe in probes], timeout=60), strict=True))


def test_two_nodes_run_actors_and_stop_leaves_nothing() -> None:
    steps: list[str] = []
    nodes = [EmbeddedNode(labels={"role": "a"}), EmbeddedNode(gpus=1, env={"MARK": "second"})]
    with EmbeddedCluster.start(nodes=nodes, progress=steps.append) as cluster:
        assert len(set(cluster.node_ids)) == 2
        assert cluster.node_addresses == ("127.0.0.2", "127.0.0.3")
        assert re.fullmatch(r"127\.0\.0\.2:\d+", cluster.address)
        assert len(steps) == 4
        with connected(cluster):
            import ray

            rows = {row["NodeID"]: row for row in ray.nodes()}
            assert set(rows) == set(cluster.node_ids)
            first, second = (rows[node_id] for node_id in cluster.node_ids)
            assert first["Labels"]["role"] == "a"
            assert "GPU" not in first["Resources"]
            assert second["Resources"]["GPU"] == 1
            for asked, (found, _) in actors_by_node(cluster.node_ids).items():
                assert asked == found
        processes = members(cluster.directory)
        assert sum("raylet/raylet " in command for command in processes.values()) == 2
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert gone(processes, within_s=0) == {}
    assert not cluster.directory.exists()


def test_stop_disconnects_a_driver_that_is_still_connected() -> None:
    import ray

    cluster = EmbeddedCluster.start(nodes=1)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="warning")
    finally:
        cluster.stop()
    assert not ray.is_initialized()
    cluster.stop()


DRIVER = """
import os, sys, time
import ray
from splitreel.cluster.embedded import EmbeddedCluster

@ray.remote(num_cpus=0)
class Busy:
    def pid(self):
        return os.getpid()
    def work(self):
        time.sleep(600)

if __name__ == "__main__":
    cluster = EmbeddedCluster.start(nodes=2)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="warning")
    busy = [Busy.options(label_selector={"ray.io/node-id": node_id}).remote() for node_id in cluster.node_ids]
    pids = ray.get([actor.pid.remote() for actor in busy])
    pending = [actor.work.remote() for actor in busy]
    print(cluster.directory, *pids, flush=True)
    try:
        sys.stdin.read()
    except KeyboardInterrupt:
        time.sleep(1)
        assert ray.cluster_resources()["CPU"] == 2
        cluster.stop()
        sys.exit(42)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path, list[int]]]:
    """A program with an embedded cluster and a busy actor on each node: its process, directory and actors' ids."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            assert process.stdout is not None
            directory, *pids = process.stdout.readline().split()
            yield process, Path(directory), [int(pid) for pid in pids]
        finally:
            process.kill()


def test_a_killed_driver_leaves_nothing(driver: tuple[subprocess.Popen[str], Path, list[int]]) -> None:
    process, directory, pids = driver
    processes = members(directory) | dict.fromkeys(pids, "actor")
    os.kill(pids[0], signal.SIGSTOP)  # one that cannot end by itself
    process.kill()
    assert gone(processes, within_s=15) == {}
    assert not directory.exists()


def test_an_interrupt_in_the_terminal_leaves_the_order_of_stopping_to_the_driver(
    driver: tuple[subprocess.Popen[str], Path, list[int]],
) -> None:
    process, directory, pids = driver
    processes = members(directory) | dict.fromkeys(pids, "actor")
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
    assert process.wait(15) == 42  # the driver's own handler ran, with the cluster up
    assert gone(processes, within_s=15) == {}
    assert not directory.exists()


def test_a_killed_supervisor_takes_the_cluster_with_it(
    driver: tuple[subprocess.Popen[str], Path, list[int]],
) -> None:
    _, directory, pids = driver
    processes = members(directory) | dict.fromkeys(pids, "actor")
    (supervisor,) = (pid for pid, command in processes.items() if "_supervisor.py" in command)
    os.kill(supervisor, signal.SIGKILL)
    # Ray's agents, 100 MB each, go on for up to a minute; what holds the machine's devices and memory does not.
    heavy = {pid: command for pid, command in processes.items() if not command.startswith("ray::") or pid in pids}
    assert len(heavy) >= 6
    assert gone(heavy, within_s=15) == {}
    for pid in gone(processes, within_s=0):
        os.kill(pid, signal.SIGKILL)
    assert gone(processes, within_s=5) == {}
    shutil.rmtree(directory)


def test_two_clusters_at_once() -> None:
    with EmbeddedCluster.start(nodes=1) as one, EmbeddedCluster.start(nodes=1) as two:
        assert one.address != two.address
        for cluster in (one, two):
            with connected(cluster):
                assert [found for found, _ in actors_by_node(cluster.node_ids).values()] == list(cluster.node_ids)
        one.stop()
        with connected(two):
            assert actors_by_node(two.node_ids)
    assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & set(os.environ)


def test_a_node_dies_and_another_joins() -> None:
    import ray

    with EmbeddedCluster.start() as cluster, connected(cluster):
        lost = cluster.node_ids[1]
        cluster.kill_node(lost)
        until(lambda: not next(row["Alive"] for row in ray.nodes() if row["NodeID"] == lost), within_s=20)
        joined = cluster.add_node(EmbeddedNode(gpus=1))
        assert actors_by_node((joined,))[joined][0] == joined


def until(true: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_node_that_cannot_start_is_named_with_its_log(short_path: Path) -> None:
    match = r"(?s)^cluster\.address: expected .* node 0 at 127\.0\.0\.2 .* exit code 1 .*object store"
    with pytest.raises(ClusterUnreachable, match=match):
        EmbeddedCluster.start(object_store_bytes=1, temp_dir=short_path)
    assert list(short_path.iterdir()) == []


def test_a_start_that_takes_too_long_is_named(short_path: Path) -> None:
    with pytest.raises(ClusterUnreachable, match=r"was not up after 0\.\d s"):
        EmbeddedCluster.start(timeout_s=0.3, temp_dir=short_path)
    assert list(short_path.iterdir()) == []


@pytest.mark.parametrize(("name", "match"), [("x" * 40, "at most 22 bytes"), ("missing", "No such file")])
def test_a_bad_directory_is_named(name: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        EmbeddedCluster.start(temp_dir=Path("/") / name)
