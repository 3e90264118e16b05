"""Attention backends and environment settings on real raylets, chosen after these were started."""

from __future__ import annotations

from typing import Any

import pytest

from configs import roles_config
from splitreel import ClusterError, Session
from splitreel.cluster.embedded import EmbeddedCluster
from splitreel.errors import WorkerNotReady

pytestmark = pytest.mark.timeout(180)


def opened(cluster: EmbeddedCluster, **roles: Any) -> Session:
    return Session(roles_config(cluster.address, **roles))


def test_a_backend_asked_for_by_name_fails_on_its_node_with_the_import_error(cluster: EmbeddedCluster) -> None:
    with pytest.raises(WorkerNotReady) as caught:
        opened(cluster, dit={"attention": {"backend": "flash_3"}})
    error = caught.value
    assert f"node {error.node}, role dit, attention.backend: expected flash_3" in str(error)
    assert "ModuleNotFoundError: No module named 'flash_attn_interface'" in str(error)
    assert error.python in str(error)
    assert "Traceback" in error.remote_traceback


def test_the_drivers_choice_arrives_the_roles_own_wins_and_neither_stays(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFUSERS_ATTN_BACKEND", "_native_math")
    own = {"env": {"DIFFUSERS_ATTN_BACKEND": "native"}}
    with opened(cluster, encoder_decoder=own) as session:
        health = {worker.role: worker for worker in session.health()}
    assert health["dit"].attention == {"transformer": "native_math", "transformer.refiner": "native_math"}
    assert health["dit"].environment["DIFFUSERS_ATTN_BACKEND"] == "_native_math"
    assert health["encoder_decoder"].attention["vae"] == "native"
    assert health["encoder_decoder"].environment["DIFFUSERS_ATTN_BACKEND"] == "native"
    monkeypatch.delenv("DIFFUSERS_ATTN_BACKEND")
    with opened(cluster) as session:
        after = {worker.role: worker for worker in session.health()}
    assert after["dit"].attention == {"transformer": "native", "transformer.refiner": "native"}
    assert "DIFFUSERS_ATTN_BACKEND" not in after["dit"].environment


def test_a_variable_is_there_before_the_worker_imports_anything(cluster: EmbeddedCluster) -> None:
    """diffusers reads this one as it is imported, and refuses the value there."""
    with pytest.raises(ClusterError, match="'flahs' is not a valid AttentionBackendName"):
        opened(cluster, dit={"env": {"DIFFUSERS_ATTN_BACKEND": "flahs"}})
