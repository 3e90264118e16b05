"""Plans with the memory that the nodes of a running cluster say they have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from configs import roles_config
from splitreel.cluster.embedded import SOURCES, EmbeddedCluster, EmbeddedNode

RELEASE = "MiniMaxAI/MiniMax-H3"  # its table of sizes: no checkpoint is made for that
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster.start(nodes=[EmbeddedNode(), EmbeddedNode()]) as started:
        yield started


def plan(folder: Path, address: str, *options: str) -> subprocess.CompletedProcess[str]:
    config = roles_config(address, encoder_decoder={"node": "127.0.0.2"}, dit={"node": "127.0.0.3"})
    file = folder / "splitreel.yaml"
    file.write_text(json.dumps(config.model_dump(mode="json", exclude_defaults=True)))
    return subprocess.run(
        [sys.executable, "-m", "splitreel", "plan", "--config", str(file), "--model", RELEASE, *options],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_nodes_say_how_much_memory_they_have(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    ended = plan(tmp_path, cluster.address, "--json")
    assert ended.returncode in (0, 3), ended.stderr  # this machine's memory says which
    assert f"Memory as the cluster at {cluster.address} tells it: 127.0.0.2 " in ended.stderr
    machines = json.loads(ended.stdout)["memory"]["machines"]
    total = psutil.virtual_memory().total
    assert [(each["name"], each["bytes"], each["unified"]) for each in machines] == [
        ("127.0.0.2", total, True),
        ("127.0.0.3", total, True),
    ]
    assert [worker["role"] for each in machines for worker in each["workers"]] == ["encoder_decoder", "dit"]


def test_a_cluster_that_does_not_answer_is_said(tmp_path: Path) -> None:
    ended = plan(tmp_path, "127.0.0.2:9")
    assert ended.returncode == 2
    assert "the cluster does not tell it: cluster.address 127.0.0.2:9: expected a Ray head" in ended.stderr
    assert "Or give --node ADDRESS=GB." in ended.stderr
    times = ("--times", "encode=1,denoise=2,decode=1")
    ended = plan(tmp_path, "127.0.0.2:9", *times)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("note: planning without memory: cluster.address 127.0.0.2:9")
    ended = plan(tmp_path, "127.0.0.2:9", "--offline", *times)
    assert (ended.returncode, ended.stderr) == (0, "")
