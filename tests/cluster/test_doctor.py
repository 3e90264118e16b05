"""Doctor on set-ups that are really broken, several at a time, and on healthy ones: node, cause and remedy of each."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import splitreel
from configs import roles_config
from hub_stub import serving
from raylets import raylet, require_unshare
from splitreel.cluster.connection import connect
from splitreel.cluster.doctor import Finding, Report, Status
from splitreel.cluster.embedded import SOURCES, EmbeddedCluster, EmbeddedNode
from splitreel.config import parse_config
from splitreel.h3.tiny import cached_tiny
from splitreel.session_doctor import examine

pytestmark = pytest.mark.timeout(240)

TESTS = Path(__file__).parents[1]
PATIENCE = 150.0  # seconds, on a machine that others use as well; 20 are enough on two idle cores
REPO = "acme/tiny-h3"
HEALTHY, SKEWED, POOR = "127.0.0.2", "127.0.0.5", "127.0.0.6"

# A PyAV whose FFmpeg was built without x264.
NO_H264 = """
import importlib, os, sys
here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.remove(here)
del sys.modules["av"]
av = importlib.import_module("av")
codec = importlib.import_module("av.codec")
plain = codec.Codec
def without(name, mode="r"):
    if name == "libx264" and mode == "w":
        raise ValueError("no such encoder: libx264")
    return plain(name, mode)
codec.Codec = without
sys.modules["av"] = av
"""


@dataclass(frozen=True)
class Broken:
    """The report on many broken set-ups at once, and what the finding on each says."""

    report: Report

    def line(self, check: str, node: str, status: Status, **more: str) -> Finding:
        """The one finding of a check on a node that has a status."""
        found = [
            each
            for each in self.report.findings
            if (each.check, each.node, each.status) == (check, node, status)
            and all(getattr(each, name) == value for name, value in more.items())
        ]
        assert len(found) == 1, [
            each for each in self.report.findings if check in (each.check, "") or each.node == node
        ]
        assert found[0].remedy or status in (Status.PASS, Status.SKIP)
        return found[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    require_unshare()
    off = {"RAY_memory_monitor_refresh_ms": "0"}
    with EmbeddedCluster.start(nodes=[EmbeddedNode(gpus=1, env=off), EmbeddedNode(gpus=1, env=off)]) as started:
        yield started


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """A folder that nobody can write to, root included."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)], check=True, timeout=10)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=10)


@contextlib.contextmanager
def gpu_held(address: str, node: str) -> Iterator[None]:
    """Another program's actor has the node's GPU while we look."""
    script = f"""
import ray, sys
from splitreel.cluster.connection import connect
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
connection = connect({address!r}, nodes=1)
target = next(each for each in connection.nodes() if each.address == {node!r})
@ray.remote(num_cpus=0, num_gpus=1)
class Squatter:
    def up(self): return True
holder = Squatter.options(scheduling_strategy=NodeAffinitySchedulingStrategy(target.node_id, soft=False)).remote()
print(ray.get(holder.up.remote()), flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        yield
    finally:
        other.communicate(timeout=20)


@pytest.fixture(scope="module")
def broken(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    """A dozen things wrong at once: on node SKEWED, on node POOR and on the driver; node HEALTHY is in order."""
    folder = tmp_path_factory.mktemp("broken")
    paths = os.pathsep.join([str(SOURCES), str(TESTS)])
    skew, no_h264, half = folder / "skew", folder / "no_h264", folder / "half"
    (skew / "diffusers-9.9.dist-info").mkdir(parents=True)
    (skew / "diffusers-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: diffusers\nVersion: 9.9\n")
    package = Path(splitreel.__file__).parent
    shutil.copytree(package, skew / "splitreel", ignore=shutil.ignore_patterns("__pycache__"))
    schema = skew / "splitreel" / "h3" / "schema.py"
    schema.write_text(schema.read_text().replace("(1, 0)", "(2, 0)"))
    (no_h264 / "av").mkdir(parents=True)
    (no_h264 / "av" / "__init__.py").write_text(NO_H264)
    shutil.copytree(cached_tiny(), half, copy_function=os.link)
    next((half / "transformer").glob("*.safetensors")).unlink()
    short = Path(os.environ.get("TMPDIR", "/tmp"))
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(serving(cached_tiny(), REPO, token="hf_very_secret"))
        for name in ("skewed", "poor"):
            stack.callback(shutil.rmtree, short / f"sr-{os.getpid()}-{name}", ignore_errors=True)
        stack.enter_context(
            raylet(
                cluster.address,
                SKEWED,
                short / f"sr-{os.getpid()}-skewed",
                before="mount -t tmpfs -o size=64m none /dev/shm",
                PYTHONPATH=os.pathsep.join([str(skew), paths]),
                RAY_memory_monitor_refresh_ms="0",
            )
        )
        stack.enter_context(
            raylet(
                cluster.address,
                POOR,
                short / f"sr-{os.getpid()}-poor",
                before='mount -t tmpfs -o size=128m none "$FOLDER"; fallocate -l 122m "$FOLDER/full"',
                PYTHONPATH=os.pathsep.join([str(no_h264), paths]),
                RAY_NODE_IP_ADDRESS="203.0.113.9",
            )
        )
        output = stack.enter_context(read_only(folder / "films"))
        stack.enter_context(gpu_held(cluster.address, POOR))
        online = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder / "home")}
        config = parse_config(
            {
                "model": {"path": str(cached_tiny()), "workflow": "t2va"},
                "cluster": {"address": cluster.address},
                "roles": {
                    "encoder": {"node": HEALTHY},
                    "dit": {
                        "node": SKEWED,
                        "model_path": str(half),
                        "attention": {"backend": "sage"},
                        "env": {"DIFFUSERS_ATTN_BACKEND": "flahs"},
                    },
                    "decoder": {"node": POOR, "num_gpus": 1, "model_path": REPO, "env": online},
                },
            }
        )
        report = examine(config, output=output, unified=True, total=PATIENCE)
        print(json.dumps(report.to_dict(), indent=1))
        yield Broken(report)


def test_other_diffusers_on_b(broken: Broken) -> None:
    line = broken.line("versions.equal", SKEWED, Status.FAIL)
    assert f"diffusers: driver 0.42.1, {SKEWED} 9.9" in line.found
    assert "Install the same on every machine" in line.remedy


def test_another_wire_version_on_b(broken: Broken) -> None:
    line = broken.line("versions.wire", SKEWED, Status.FAIL)
    assert line.found == "payloads are of version 2.0 here and 1.0 on the driver"


def test_half_a_checkpoint_on_b(broken: Broken) -> None:
    line = broken.line("checkpoint.complete", SKEWED, Status.FAIL, role="dit")
    assert "transformer: expected the weights in" in line.found
    assert "found no such file" in line.found
    assert "Copy or download the file again" in line.remedy


def test_a_misspelt_attention_backend_on_b(broken: Broken) -> None:
    line = broken.line("attention.backend", SKEWED, Status.FAIL, role="")
    assert "DIFFUSERS_ATTN_BACKEND: 'flahs' is no attention backend" in line.found
    assert line.remedy.startswith("Did you mean flash? Unset it")
    broken.line("software.imports", SKEWED, Status.PASS)  # it hides nothing else


def test_an_attention_backend_that_b_cannot_import(broken: Broken) -> None:
    line = broken.line("attention.backend", SKEWED, Status.FAIL, role="dit")
    assert "roles.dit.attention.backend: sage does not run in" in line.found
    assert line.found.endswith("ModuleNotFoundError: No module named 'sageattention'")
    assert line.remedy.startswith("In that environment: build SageAttention 2.1.1 or newer from its source")
    assert "Usable there: native" in line.remedy


def test_a_tiny_dev_shm_on_b(broken: Broken) -> None:
    line = broken.line("shm.size", SKEWED, Status.WARN)
    assert "/dev/shm has 64 MiB, Ray's object store 76 MiB" in line.found
    assert "--shm-size=1g" in line.remedy


def test_a_nearly_full_spill_disk_on_c(broken: Broken) -> None:
    line = broken.line("disk.spill", POOR, Status.WARN)
    assert "% full" in line.found
    assert "--temp-dir elsewhere" in line.remedy


def test_a_monitor_that_is_on_with_unified_memory_on_c(broken: Broken) -> None:
    line = broken.line("memory.monitor", POOR, Status.WARN)
    assert "may kill a worker while it loads" in line.found
    assert "RAY_memory_monitor_refresh_ms=0" in line.remedy
    broken.line("memory.monitor", SKEWED, Status.PASS)


def test_a_busy_gpu_on_c(broken: Broken) -> None:
    line = broken.line("gpu.free", POOR, Status.FAIL)
    assert "expected 1 free GPU" in line.found
    assert "0 of 1 free, held by Squatter (pid" in line.found
    assert "Free it, choose another node" in line.remedy


def test_no_token_on_c(broken: Broken) -> None:
    line = broken.line("hub.token", POOR, Status.FAIL, role="decoder")
    assert line.found.startswith(f"no token, and the hub refuses {REPO}")
    assert "Set HF_TOKEN where you run splitreel" in line.remedy
    broken.line("checkpoint.complete", POOR, Status.FAIL, role="decoder")


def test_a_wrong_host_address_variable_on_c(broken: Broken) -> None:
    line = broken.line("address.variables", POOR, Status.WARN)
    assert "RAY_NODE_IP_ADDRESS=203.0.113.9, but this host has 127.0.0.1" in line.found
    assert line.remedy.startswith("Unset RAY_NODE_IP_ADDRESS")


def test_no_h264_on_c(broken: Broken) -> None:
    line = broken.line("film.encoders", POOR, Status.FAIL)
    assert "without libx264" in line.found
    assert "pip install" in line.remedy


def test_a_read_only_output_folder(broken: Broken) -> None:
    line = broken.line("output.writable", "driver", Status.FAIL)
    assert "read-only file system" in line.found
    assert "Choose another folder" in line.remedy


def test_the_node_that_is_in_order_is_not_suspected(broken: Broken) -> None:
    mine = [each for each in broken.report.findings if each.node == HEALTHY]
    assert len(mine) > 15
    assert {each.status for each in mine} <= {Status.PASS, Status.SKIP}, mine
    assert broken.report.seconds < PATIENCE + 5
    assert "hf_very_secret" not in json.dumps(broken.report.to_dict())


def test_a_healthy_set_up_raises_no_alarm(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """The command itself, strictly: not one warning, in time, with every check made once for each node."""
    first, second = cluster.node_addresses[:2]
    (tmp_path / "splitreel.yaml").write_text(
        json.dumps(
            roles_config(cluster.address, encoder_decoder={"node": first}, dit={"node": second}).model_dump(
                mode="json", exclude_defaults=True
            )
        )
    )
    ended = subprocess.run(
        [sys.executable, "-m", "splitreel", "doctor", "--strict", "--json", "--unified", "--timeout", f"{PATIENCE:g}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout)
    assert report["summary"]["warn"] == report["summary"]["fail"] == 0
    assert report["seconds"] < PATIENCE + 5
    made = {(each["node"], each["check"]) for each in report["checks"] if each["status"] == "pass"}
    for node in (first, second):
        for check in (
            "versions.equal",
            "node.answers",
            "shm.size",
            "disk.spill",
            "checkpoint.complete",
            "link.objects",
        ):
            assert (node, check) in made
    assert not (tmp_path / "outputs").exists(), "nothing is left behind"
    _nothing_runs(cluster)


def _nothing_runs(cluster: EmbeddedCluster) -> None:
    connection = connect(cluster.address, nodes=1)
    try:
        assert not [holder for node in connection.nodes() for holder in node.holders if "Examiner" in holder]
    finally:
        connection.close()


def test_a_config_that_sends_both_roles_to_one_address(cluster: EmbeddedCluster) -> None:
    """Said before anything is asked of the nodes, so without waiting for them."""
    from splitreel.cluster.doctor.crew import look_at_crew
    from splitreel.cluster.placement import wishes_of

    config = roles_config(
        cluster.address, encoder_decoder={"node": HEALTHY, "num_gpus": 1}, dit={"node": HEALTHY, "num_gpus": 1}
    )
    connection = connect(cluster.address, nodes=1)
    try:
        nodes = connection.nodes()[:2]
    finally:
        connection.close()
    found = {
        each.check: each
        for each in look_at_crew([wish for each in wishes_of(config).values() for wish in each], nodes).findings
    }
    assert found["nodes.distinct"].status is Status.WARN
    assert f"names {HEALTHY} for all of encoder_decoder, dit" in found["nodes.distinct"].found
    assert "set roles.dit.node to 127.0.0.3" in found["nodes.distinct"].remedy
    assert found["gpu.free"].status is Status.FAIL
    assert "1 of them for other roles of this config" in found["gpu.free"].found
