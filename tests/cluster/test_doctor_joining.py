"""Doctor on clusters of too few nodes: one node only, two nodes with one address, and a head that died."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs import roles_config
from raylets import raylet, require_unshare
from splitreel.cluster.doctor import Finding, Report, Status
from splitreel.cluster.doctor.examine import examine
from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster.start(nodes=[EmbeddedNode()]) as started:
        yield started


def look(address: str, folder: Path, *, first: str | None = None, second: str | None = None) -> Report:
    """An examination with a model that is imported at once, so that only what is looked for takes time."""
    (folder / "modular_model_index.json").write_text("{}")
    config = roles_config(address, str(folder), encoder_decoder={"node": first}, dit={"node": second})
    return examine("clockwork:Clockwork", (1, 0), config, output=folder / "films", total=100.0)


def failures(report: Report) -> list[Finding]:
    return [each for each in report.findings if each.status is Status.FAIL]


def test_one_node_only(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    report = look(cluster.address, tmp_path, first="127.0.0.2", second="127.0.0.9")
    assert report.seconds < 105
    live, placed = failures(report)
    assert (live.check, live.node) == ("nodes.live", "127.0.0.9")
    assert "1 node: 127.0.0.2" in live.found
    assert "the config names 2, and 127.0.0.9 has not joined" in live.found
    assert live.remedy.startswith("On 127.0.0.9: ray start --address=HEAD")
    assert (placed.check, placed.node, placed.role) == ("roles.placed", "127.0.0.9", "dit")
    assert placed.remedy.endswith("Start Ray there or change roles.dit.node.")
    assert [each.check for each in report.findings if each.status is Status.WARN] == []


def test_two_nodes_with_one_address(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    require_unshare()
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"sr-{os.getpid()}-twice"
    try:
        with raylet(cluster.address, "127.0.0.2", folder):
            report = look(cluster.address, tmp_path, first="127.0.0.2", second="127.0.0.2")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = {each.check: each for each in failures(report)}
    twice = found["nodes.distinct"]
    assert twice.node == "127.0.0.2"
    assert "are different nodes with one address, 127.0.0.2" in twice.found
    assert "an address of its own" in twice.remedy
    assert "found 2 nodes of that name" in found["roles.placed"].found
    assert "Use the node id" in found["roles.placed"].remedy


def test_a_dead_head(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    cluster.kill_node(cluster.node_ids[0])
    began = time.monotonic()
    report = look(cluster.address, tmp_path, first="127.0.0.2", second="127.0.0.9")
    assert time.monotonic() - began < 30
    (dead,) = failures(report)
    assert (dead.check, dead.node) == ("ray.reachable", "driver")
    assert f"cluster.address {cluster.address}: expected a Ray head, found nobody there" in dead.found
    assert "See that it runs (ray start --head)" in dead.remedy
    asked = [each for each in report.findings if each.check == "node.answers"]
    assert [(each.node, each.status) for each in asked] == [("127.0.0.2", Status.SKIP), ("127.0.0.9", Status.SKIP)]
    assert any(each.check == "memory.swap" and each.node == "driver" for each in report.findings), (
        "the rest is looked at"
    )
