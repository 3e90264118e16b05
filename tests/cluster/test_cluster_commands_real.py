"""The printed commands start a real cluster, and `cluster status` sees it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from splitreel.cluster.commands import node_commands
from splitreel.config import parse_config

SOURCES = Path(__file__).resolve().parents[2] / "src"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    role = {"device": "cuda"}
    content = {
        "model": {"path": "tiny"},
        "cluster": {"address": f"127.0.0.2:{free_port()}"},
        "roles": {"encoder_decoder": {"node": "127.0.0.2", **role}, "dit": {"nodes": ["127.0.0.3"], **role}},
    }
    (tmp_path / "splitreel.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """A user without a token, whose files are in the test's folder; Ray's sockets need a short path."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {
        **plain,
        "HOME": str(folder),
        "PATH": paths,
        "PYTHONPATH": str(SOURCES),
        "RAY_TMPDIR": f"/tmp/sr{os.getpid()}",
    }


@pytest.fixture
def running(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Every line as printed, but `ssh` (there is one home here), and `ray start` stays in the foreground to be ended."""
    config = parse_config(yaml.safe_load((folder / "splitreel.yaml").read_text()))
    started: list[subprocess.Popen[str]] = []
    try:
        for node in node_commands(config, unified=True, store_bytes=80 * 1024**2):
            lines = [line for line in node.lines if not line.startswith("ssh ")]
            lines[-1] = f"exec {lines[-1]} --block{' --include-dashboard=false' if node.head else ''}"
            process = subprocess.Popen(
                ["bash", "-ec", "\n".join(lines)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            started.append(process)
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if "Ray runtime started" in line:
                    break
            else:
                raise AssertionError("".join(said))
        yield
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        shutil.rmtree(environment["RAY_TMPDIR"], ignore_errors=True)


def status(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return splitreel(folder, {**environment, "RAY_AUTH_MODE": "token"}, "cluster", "status", *arguments)


def splitreel(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "splitreel", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.timeout(150)
@pytest.mark.usefixtures("running")
def test_printed_commands_start_a_cluster_that_status_sees(folder: Path, environment: dict[str, str]) -> None:
    done = status(folder, environment, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [node["address"] for node in found["nodes"]] == ["127.0.0.2", "127.0.0.3"]
    assert [node["asked_by"] for node in found["nodes"]] == [["roles.encoder_decoder.node"], ["roles.dit.nodes"]]
    assert [(node["gpus"], node["free_gpus"]) for node in found["nodes"]] == [(1.0, 1.0), (1.0, 1.0)]
    assert (folder / ".ray" / "auth_token").is_file()

    text = status(folder, environment, "--set", "roles.dit.nodes=[10.9.9.9]")
    assert text.returncode == 3
    assert "1 of 1 GPU free" in text.stdout
    assert "error: roles.dit.nodes: expected a live node '10.9.9.9', found none" in text.stderr

    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    head = yaml.safe_load((folder / "splitreel.yaml").read_text())["cluster"]["address"]
    # By its address, since other clusters may run on this machine.
    refused = splitreel(elsewhere, {**environment, "HOME": str(elsewhere), "RAY_ADDRESS": head}, "doctor", "--json")
    assert refused.returncode == 2
    assert refused.stderr == ""
    found = json.loads(refused.stdout)
    (failed,) = [row for row in found["checks"] if row["status"] == "fail"]
    assert failed["check"] == "ray.reachable"
    assert failed["found"] == (
        f"cluster.address {head}: expected the token of the cluster that answers there, found that none is sent, since "
        "RAY_AUTH_MODE is not set here"
    )
    assert failed["remedy"].endswith(
        "in the file that RAY_AUTH_TOKEN_PATH names, or in ~/.ray/auth_token, copied from the head."
    )
    assert [row["check"] for row in found["checks"]].count("address.variables") == 1
