"""What workers must agree on: versions, wire schema, geometry, and room in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from splitreel.cluster.handshake import check_memory, compare, spill_warnings
from splitreel.cluster.replies import NodeFacts, WorkerFacts
from splitreel.errors import GeometryMismatch, PlacementError, VersionMismatch

VERSIONS = {"python": "3.11", "splitreel": "0.1.0", "torch": "2.14.1", "diffusers": "0.42.1"}
A = WorkerFacts(
    worker="encoder_decoder",
    role="encoder_decoder",
    node=NodeFacts("a" * 56, "10.0.0.1"),
    pid=1,
    geometry={"spatial_ratio": 16, "sample_rate": 32000},
    fingerprint="f1",
    schema=(1, 0),
    versions=VERSIONS,
    memory_id="GPU-a",
    memory_needed={"text_encoder": 67 * 10**9, "vae": 10 * 10**9},
    memory_free=110 * 10**9,
)
B = replace(
    A,
    worker="dit",
    role="dit",
    node=NodeFacts("b" * 56, "10.0.0.2"),
    memory_id="GPU-b",
    memory_needed={"transformer": 66 * 10**9},
)


def test_equal_workers_pass() -> None:
    compare([A, B], VERSIONS)
    compare([A, replace(B, schema=(1, 4))], VERSIONS)
    check_memory([A, B])


def test_every_difference_is_listed() -> None:
    other = replace(B, versions={**VERSIONS, "diffusers": "0.43.0", "torch": "2.13.0"})
    with pytest.raises(VersionMismatch) as caught:
        compare([A, other], VERSIONS)
    assert "diffusers: driver 0.42.1, encoder_decoder on 10.0.0.1 0.42.1, dit on 10.0.0.2 0.43.0" in str(caught.value)
    assert len(caught.value.differences) == 2


def test_another_wire_schema() -> None:
    with pytest.raises(
        VersionMismatch, match=r"wire schema: encoder_decoder on 10\.0\.0\.1 1\.0, dit on 10\.0\.0\.2 2\.0"
    ):
        compare([A, replace(B, schema=(2, 0))], VERSIONS)


def test_another_geometry_lists_the_facts_that_differ() -> None:
    other = replace(B, fingerprint="f2", geometry={"spatial_ratio": 8, "sample_rate": 32000})
    with pytest.raises(GeometryMismatch, match=r"to differ in spatial_ratio: 16 / 8. Give both the same model"):
        compare([A, other], VERSIONS)


def test_both_roles_in_one_memory_must_fit_together() -> None:
    """Two workers that Ray gave a card each see it as `cuda`, both; that does not make it one card."""
    first, second = replace(A, device="cuda"), replace(B, device="cuda", node=A.node)
    check_memory([first, second])
    with pytest.raises(PlacementError) as caught:
        check_memory([first, replace(second, memory_id="GPU-a")])
    message = str(caught.value)
    assert "memory of cuda on node 10.0.0.1: expected room for 143.0 GB of weights" in message
    assert "transformer 66.0 GB (dit)" in message
    assert "found 110.0 GB free" in message


def test_the_driver_counts_as_well() -> None:
    with pytest.raises(VersionMismatch, match=r"splitreel: driver 1\.1, encoder_decoder on 10\.0\.0\.1 0\.1\.0"):
        compare([A, B], {**VERSIONS, "splitreel": "1.1"})


def test_a_nearly_full_spill_disk_is_said_once_per_node() -> None:
    full = replace(B, spill_folder="/var/ray", spill_full=0.97)
    assert spill_warnings([A, B]) == []
    (line,) = spill_warnings([A, full, replace(full, worker="dit.1")])
    assert line.startswith("node 10.0.0.2: the disk of /var/ray, to which Ray spills objects, is 97% full")
