"""What workers must agree on: every difference is listed, with role and node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from splitreel.cluster.handshake import compare
from splitreel.cluster.host import NodeFacts, WorkerFacts
from splitreel.errors import GeometryMismatch, VersionMismatch

VERSIONS = {"python": "3.12", "torch": "2.14.1", "diffusers": "0.42.1", "splitreel": "1.0"}
A = WorkerFacts(
    "encoder_decoder",
    "encoder_decoder",
    NodeFacts("a" * 56, "10.0.0.1"),
    1,
    {"fps": 24, "channels": 24},
    "f1",
    (1, 0),
    VERSIONS,
)
B = replace(A, worker="dit", role="dit", node=NodeFacts("b" * 56, "10.0.0.2"))


def test_equals_agree() -> None:
    compare([A, B], VERSIONS)
    compare([A, replace(B, schema=(1, 3))], VERSIONS)  # another minor version is tolerated


def test_every_difference_is_listed() -> None:
    other = replace(B, versions={**VERSIONS, "diffusers": "0.43.0", "torch": "2.15.0"}, schema=(2, 0))
    with pytest.raises(VersionMismatch) as caught:
        compare([A, other], VERSIONS)
    assert caught.value.differences == [
        "torch: driver 2.14.1, encoder_decoder on 10.0.0.1 2.14.1, dit on 10.0.0.2 2.15.0",
        "diffusers: driver 0.42.1, encoder_decoder on 10.0.0.1 0.42.1, dit on 10.0.0.2 0.43.0",
        "wire schema: encoder_decoder on 10.0.0.1 1.0, dit on 10.0.0.2 2.0",
    ]
    assert all(difference in str(caught.value) for difference in caught.value.differences)


def test_the_driver_counts_as_well() -> None:
    with pytest.raises(VersionMismatch, match=r"splitreel: driver 1\.1, encoder_decoder on 10\.0\.0\.1 1\.0"):
        compare([A, B], {**VERSIONS, "splitreel": "1.1"})


def test_another_geometry() -> None:
    other = replace(B, geometry={"fps": 24, "channels": 32}, fingerprint="f2")
    with pytest.raises(GeometryMismatch, match=r"dit on 10\.0\.0\.2 to differ in channels: 24 / 32") as caught:
        compare([A, other], VERSIONS)
    assert (caught.value.role, caught.value.node) == ("dit", "10.0.0.2")
