"""Joining and placement on real nodes: what is asked for is what one gets, or a named error within 10 s."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._private import state as ray_state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import splitreel
from clockwork import Clockwork, film_digest, submitted
from engines import unopened
from splitreel.cluster.connection import connect
from splitreel.cluster.embedded import SOURCES, EmbeddedCluster, EmbeddedNode
from splitreel.cluster.local import LocalBackend
from splitreel.cluster.reach import reach
from splitreel.config import parse_config
from splitreel.engine.engine import Engine
from splitreel.engine.limits import Deadlines, Limits
from splitreel.errors import (
    ClusterUnreachable,
    PlacementError,
    SplitreelError,
    VersionMismatch,
    WorkerLost,
    WorkerNotReady,
)
from splitreel.wire import unpack

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

TESTS = Path(__file__).parents[1]
PROMISED = 10.0  # seconds within which a start that cannot succeed is refused


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """This process in the cluster, as a user's own program that calls splitreel later."""
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()


def living_workers() -> list[str]:
    """Actors of ours that live in the cluster that this process is in."""
    return [
        f"{row['ActorClassName']} {row['Pid']}"
        for row in ray_state.actors().values()
        if row["ActorClassName"] == "WorkerActor" and row["State"] != "DEAD"
    ]


async def refused(
    open_engine: Any,
    address: str,
    error: type[SplitreelError] | tuple[type[SplitreelError], ...],
    within: float = PROMISED,
    **options: Any,
) -> Any:
    """The error with which a start is refused in time."""
    began = time.monotonic()
    with pytest.raises(error) as caught:
        async with open_engine(address, **options):
            pass
    assert time.monotonic() - began < within
    return caught.value


# Placement ------------------------------------------------------------------------------------------------------------


async def test_workers_are_where_they_were_asked_to_be(
    cluster: EmbeddedCluster, open_engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By address, id, label and the first digits of an id; and no secret is seen anywhere on the way."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret-of-this-test")
    left, right, spare = cluster.node_ids
    roles = {
        "encoder": {"node": cluster.node_addresses[1]},
        "dit": {"nodes": [left, "rack=spare"]},
        "decoder": {"node": right[:12]},
    }
    caplog.set_level(logging.DEBUG)
    async with open_engine(cluster.address, roles) as engine:
        placed = {worker.name: worker.node_id for worker in engine.backend.workers}
        assert placed == {"encoder": right, "dit.0": left, "dit.1": spare, "decoder": right}
        health = {worker.worker: worker for worker in await engine.health()}
        assert {name: worker.node_id for name, worker in health.items()} == placed
        addresses = dict(zip(cluster.node_ids, cluster.node_addresses, strict=True))
        assert {name: worker.node for name, worker in health.items()} == {
            name: addresses[node_id] for name, node_id in placed.items()
        }
        assert {worker.environment["HF_TOKEN"] for worker in health.values()} == {"***"}, "forwarded, and masked"
        assert len({worker.pid for worker in health.values()}) == 4
        shown = [repr(engine.backend), repr(vars(engine.backend)), repr(health), caplog.text]
    logs = [path for path in cluster.directory.glob("*/session_*/logs/**/*") if path.is_file()]
    assert any("worker encoder on 127" in path.read_text(errors="replace") for path in logs)
    for secret in (os.environ["RAY_AUTH_TOKEN"], os.environ["HF_TOKEN"]):
        assert not [text for text in shown if secret in text]
        assert not [path.name for path in logs if secret in path.read_text(errors="replace")]


WRONG_NODES = [
    ("192.168.9.2", "no live Ray node of that name"),  # another address of the same machine
    ("169.254.7.7", "no live Ray node of that name"),  # link-local addresses are ordinary ones
    ("127.0.0.1", "no live Ray node of that name"),
    ("0123456789abcdef", "no live Ray node of that name"),
    ("rack=attic", "no live Ray node of that name"),
    (socket.gethostname(), "3 nodes of that name"),
    ("0.0.0.0", ""),
]


@pytest.mark.parametrize(("node", "found"), WRONG_NODES)
async def test_a_node_that_is_not_there(cluster: EmbeddedCluster, open_engine: Any, node: str, found: str) -> None:
    error = await refused(
        open_engine, cluster.address, PlacementError, roles={"encoder": {}, "dit_decoder": {"node": node}}
    )
    assert str(error).startswith("roles.dit_decoder.node: expected ")
    assert repr(node) in str(error)
    assert found in str(error)
    for address, node_id in zip(cluster.node_addresses, cluster.node_ids, strict=True):
        assert f'{address} "{socket.gethostname()}" 1 GPU (1 free, id {node_id[:8]})' in str(error)
    assert not ray.is_initialized()


async def test_a_gpu_that_others_hold(cluster: EmbeddedCluster, open_engine: Any) -> None:
    """A process that is in the cluster already stays in it, and may not open a session in another one."""

    @ray.remote(num_cpus=0, num_gpus=1)
    class Trainer:
        def pid(self) -> int:
            return os.getpid()

    gpus = {"encoder_decoder": {"node": "rack=left"}, "dit": {"node": "rack=right", "num_gpus": 1.0}}
    with joined(cluster.address):
        job = ray.get_runtime_context().get_job_id()
        strategy = NodeAffinitySchedulingStrategy(cluster.node_ids[1], soft=False)
        trainer = Trainer.options(scheduling_strategy=strategy).remote()  # type: ignore[attr-defined]
        pid = await trainer.pid.remote()
        error = await refused(open_engine, cluster.address, PlacementError, roles=gpus)
        assert re.search(
            rf"roles\.dit\.node: expected 1 free GPU on node 127\.0\.0\.3, found 0 of 1 free, held by Trainer \(pid {pid}, job {job}\)",
            str(error),
        )
        assert ray.is_initialized(), "a cluster that was joined by others is not left"
        other = await refused(open_engine, "127.0.0.9:6379", ClusterUnreachable)
        assert f"expected 127.0.0.9:6379, found this process in the Ray cluster at {cluster.address} already" in str(
            other
        )
        ray.kill(trainer)
        while ray_state.available_resources_per_node()[cluster.node_ids[1]].get("GPU") != 1:
            await asyncio.sleep(0.05)
        for address in (cluster.address, "auto"):
            async with open_engine(address, gpus) as engine:
                assert len(engine.backend.workers) == 2
            assert ray.is_initialized()
            assert living_workers() == []


async def test_one_node_is_too_few_for_two_gpus(open_engine: Any) -> None:
    """And where a host name is one node's alone, it names it."""
    with EmbeddedCluster.start(nodes=[EmbeddedNode(gpus=1)]) as single:
        gpu = {"num_gpus": 1.0}
        error = await refused(open_engine, single.address, PlacementError, roles={"encoder_decoder": gpu, "dit": gpu})
        assert "roles.dit.node: expected a node with 1 free GPU, found none. Live: 127.0.0.2" in str(error)
        assert "Start Ray on one more machine, free a GPU, or set num_gpus." in str(error)
        here = {"node": socket.gethostname()}
        error = await refused(
            open_engine,
            single.address,
            PlacementError,
            roles={"encoder_decoder": {**here, **gpu}, "dit": {**here, **gpu}},
        )
        assert "found 0 of 1 free, 1 of them for other roles of this config" in str(error)
        async with open_engine(single.address, {"encoder_decoder": here, "dit": {**here, **gpu}}) as engine:
            assert {worker.node_id for worker in engine.backend.workers} == set(single.node_ids)


# Joining --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.0.2:1", "found nobody there (Connection refused)"),
        ("head.invalid:6379", "found nobody there ("),
        ("0.0.0.0:6379", "expected the address of a Ray head"),
        ("ray://127.0.0.2:10001", "Ray Client (ray://) cannot be used"),
    ],
)
async def test_nobody_there(open_engine: Any, address: str, found: str) -> None:
    error = await refused(open_engine, address, ClusterUnreachable)
    assert str(error).startswith(f"cluster.address {address}: expected")
    assert found in str(error)


async def test_the_address_that_was_given_is_named_beside_rays() -> None:
    """Ray takes the machine's own address for 127.0.0.1 and localhost."""
    with pytest.raises(ClusterUnreachable) as caught:
        reach("127.0.0.2:1", given="localhost:1")
    assert str(caught.value).startswith(
        "cluster.address localhost:1 (127.0.0.2:1 to Ray): expected a Ray head, found nob"
    )
    assert caught.value.address == "127.0.0.2:1"


@pytest.mark.parametrize(
    ("address", "found"),
    [("192.168.9.2", "expected HOST:PORT of a Ray head"), ("127.0.0.2:head", "found a port that is none")],
)
async def test_ray_address_is_checked_too(
    open_engine: Any, monkeypatch: pytest.MonkeyPatch, address: str, found: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    error = await refused(open_engine, "auto", ClusterUnreachable)
    assert str(error).startswith(f"cluster.address {address}: expected")
    assert found in str(error)


async def test_something_else_there(open_engine: Any) -> None:
    """It accepts connections and says nothing, as a stopped head or another service does."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        error = await refused(open_engine, f"127.0.0.2:{server.getsockname()[1]}", ClusterUnreachable)
    assert "expected a Ray head of this version that answers within 5 s, found something else listening there" in str(
        error
    )


JOIN = """
import sys
from splitreel.cluster.connection import connect
connection = connect(sys.argv[1], nodes=2)
print("joined", len(connection.nodes()))
connection.close()
"""


def join_as_another(address: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Join from a process with its own environment."""
    return subprocess.run(
        [*command, sys.executable, "-c", JOIN, address],
        env={**os.environ, "PYTHONPATH": str(SOURCES), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"RAY_AUTH_TOKEN": "not-the-right-token-of-this-test"}, "found another one: RAY_AUTH_TOKEN is set, RAY_AUTH_TOKEN_PATH is not set, ~/.ray/auth_token is "),
        ({"RAY_AUTH_TOKEN": "", "HOME": "/nonexistent"}, "found none: RAY_AUTH_TOKEN is not set, RAY_AUTH_TOKEN_PATH is not set, ~/.ray/auth_token is absent."),
        ({"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": "/nonexistent/token"}, "RAY_AUTH_TOKEN_PATH is /nonexistent/token, absent"),
        ({"RAY_AUTH_MODE": "disabled"}, "found that none is sent, since RAY_AUTH_MODE is disabled here."),
    ],
)  # fmt: skip
async def test_a_wrong_token(cluster: EmbeddedCluster, environment: dict[str, str], found: str) -> None:
    began = time.monotonic()
    ended = join_as_another(cluster.address, **environment)
    assert time.monotonic() - began < PROMISED
    assert ended.returncode == 1
    assert "ClusterUnreachable" in ended.stderr
    assert "expected the token of the cluster that answers there" in ended.stderr
    assert found in ended.stderr
    assert ".cc:" not in ended.stderr, "Ray's own log lines"
    for secret in (os.environ["RAY_AUTH_TOKEN"], environment.get("RAY_AUTH_TOKEN") or "-"):
        assert len(secret) < 8 or secret not in ended.stdout + ended.stderr


async def test_auto_means_ray_address(cluster: EmbeddedCluster) -> None:
    ended = join_as_another("auto", RAY_ADDRESS=cluster.address)
    assert ended.stdout == "joined 3\n", ended.stderr


async def test_auto_starts_nothing(tmp_path: Path) -> None:
    """Where no Ray runs: in a process id namespace of its own, in which only `auto`'s own process is to be seen."""
    alone = ("unshare", "--pid", "--fork", "--mount-proc")
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("needs root and unshare (Debian: util-linux) to hide this machine's other Ray processes")
    began = time.monotonic()
    ended = join_as_another("auto", *alone, RAY_TMPDIR=str(tmp_path), RAY_ADDRESS="")
    assert time.monotonic() - began < PROMISED
    assert (
        "ClusterUnreachable: cluster.address auto: expected a Ray cluster on this machine, found none." in ended.stderr
    )
    assert not list(tmp_path.iterdir())


async def test_local_leaves_ray_alone(cluster: EmbeddedCluster, nothing: Path) -> None:
    (nothing / "modular_model_index.json").write_text("{}")
    config = parse_config(
        {
            "model": {"path": str(nothing), "workflow": "t2va"},
            "cluster": {"address": "local"},
            "roles": {"encoder_decoder": {}, "dit": {}},
        }
    )
    with joined(cluster.address):
        before = ray_state.actors()
        engine = Engine(LocalBackend(Clockwork(), config), Limits(3, 8, 1), Deadlines())
        await engine.start()
        try:
            film = await engine.submit("r", "t2va", submitted("r")).result(20)
            assert bytes(unpack(film.payload).tensors["data"].numpy()) == film_digest()  # type: ignore[union-attr]
        finally:
            await engine.close()
        assert ray.is_initialized()
        assert ray_state.actors() == before


# What workers say before they load ----------------------------------------------------------------------------------------


async def test_other_versions_on_a_node(cluster: EmbeddedCluster, open_engine: Any, tmp_path: Path) -> None:
    """Another splitreel and another diffusers on one node: both are listed, and nothing has loaded."""
    package = Path(splitreel.__file__).parent
    shutil.copytree(package, tmp_path / "splitreel", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "splitreel" / "version.py").write_text('"""Another."""\n\n__version__ = "99.9.9"\n')
    (tmp_path / "diffusers-9.9.dist-info").mkdir()
    (tmp_path / "diffusers-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: diffusers\nVersion: 9.9\n"
    )
    path = os.pathsep.join([str(tmp_path), str(TESTS)])
    skewed = cluster.add_node(EmbeddedNode(env={"PYTHONPATH": path}))
    try:
        error = await refused(
            open_engine,
            cluster.address,
            VersionMismatch,
            within=20,  # the workers' processes import torch first
            roles={"encoder_decoder": {"node": "rack=left"}, "dit": {"node": skewed}},
            model=Clockwork(trouble_at_load={"encode": "kill", "denoise": "kill"}),
        )
        address = cluster.node_addresses[cluster.node_ids.index(skewed)]
        assert len(error.differences) == 2
        assert re.search(
            rf"splitreel: driver (\S+), encoder_decoder on 127\.0\.0\.2 \1, dit on {address} 99\.9\.9", str(error)
        )
        assert re.search(
            rf"diffusers: driver (\S+), encoder_decoder on 127\.0\.0\.2 \1, dit on {address} 9\.9", str(error)
        )
    finally:
        cluster.kill_node(skewed)
    with joined(cluster.address):
        assert living_workers() == []


async def test_a_node_without_the_package(cluster: EmbeddedCluster, open_engine: Any, tmp_path: Path) -> None:
    bare = cluster.add_node(EmbeddedNode(env={"PYTHONPATH": str(tmp_path)}))
    try:
        error = await refused(
            open_engine,
            cluster.address,
            WorkerNotReady,
            within=20,
            roles={"encoder_decoder": {}, "dit": {"node": bare}},
        )
        assert error.role == "dit"
        assert error.node == cluster.node_addresses[cluster.node_ids.index(bare)]
        assert "its process could not start: ModuleNotFoundError: No module named" in str(error)
    finally:
        cluster.kill_node(bare)


async def test_an_error_that_does_not_unpickle_while_loading(cluster: EmbeddedCluster, open_engine: Any) -> None:
    error = await refused(
        open_engine,
        cluster.address,
        WorkerNotReady,
        within=20,
        roles={"encoder_decoder": {"node": "rack=left"}, "dit": {"node": "rack=right"}},
        model=Clockwork(trouble_at_load={"denoise": "awkward error"}),
    )
    assert str(error) == "role dit on 127.0.0.3: expected worker dit to load, found AwkwardError: HTTP 403 Forbidden"
    assert (error.role, error.node, error.error_type) == ("dit", "127.0.0.3", "AwkwardError")
    assert "clockwork.py" in error.remote_traceback
    error = await refused(
        open_engine,
        cluster.address,
        WorkerNotReady,
        within=20,
        roles={"all": {"node": "rack=right"}},
        model=Clockwork(trouble_at_prepare="awkward error"),
    )
    assert "role all on 127.0.0.3: expected worker all to check its files, found AwkwardError: HTTP 403" in str(error)
    with joined(cluster.address):
        assert living_workers() == []


async def test_a_worker_that_the_memory_monitor_kills_while_it_loads(
    cluster: EmbeddedCluster, open_engine: Any
) -> None:
    memory = psutil.virtual_memory()
    if memory.available < 8e9:
        pytest.skip(f"needs 8 GB of free memory, found {memory.available / 1e9:.1f}")
    threshold = 1 - (memory.available - 2.5e9) / memory.total
    tight = cluster.add_node(
        EmbeddedNode(env={"RAY_memory_usage_threshold": f"{threshold:.4f}", "RAY_memory_monitor_refresh_ms": "100"})
    )
    try:
        error = await refused(
            open_engine,
            cluster.address,
            (WorkerNotReady, WorkerLost),  # whichever of the two who ask it hears first
            within=40,
            roles={"encoder_decoder": {"node": "rack=left"}, "dit": {"node": tight}},
            model=Clockwork(trouble_at_load={"denoise": "eat memory"}),
        )
        assert (error.role, error.node) == ("dit", cluster.node_addresses[cluster.node_ids.index(tight)])
        assert "Ray's memory monitor killed it" in str(error)
        assert "RAY_memory_usage_threshold" in str(error)
    finally:
        cluster.kill_node(tight)
    with joined(cluster.address):
        assert living_workers() == []


async def test_a_worker_that_is_lost_while_others_load(cluster: EmbeddedCluster, nothing: Path) -> None:
    """It had loaded; the start ends at once instead of going on without it."""
    engine = unopened(nothing, cluster.address, model=Clockwork(load_seconds={"denoise": 30}))
    start = asyncio.ensure_future(engine.start())
    try:
        async with asyncio.timeout(60):
            while (loaded := (await engine.health())[0]).state != "ready":
                await asyncio.sleep(0.1)
        os.kill(loaded.pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(WorkerLost, match="worker encoder_decoder was lost") as caught:
            await asyncio.wait_for(start, 20)
        assert time.monotonic() - began < 15, "it waits for nobody who still loads"
        assert (caught.value.role, caught.value.node) == ("encoder_decoder", "127.0.0.2")
    finally:
        await engine.close()


async def test_refusals_left_nothing_running(cluster: EmbeddedCluster) -> None:
    connection = await asyncio.to_thread(connect, cluster.address, nodes=2)
    try:
        assert living_workers() == []
        assert [node.free_gpus for node in connection.nodes() if node.gpus] == [1, 1, 1]
    finally:
        await asyncio.to_thread(connection.close)
