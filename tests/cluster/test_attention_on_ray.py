"""Attention, dense and sparse, and what else a DiT worker is told, on real raylets that were started before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs import roles_config
from lora_files import write
from splitreel import AdapterError, ClusterError, GenerateRequest, Session
from splitreel.cluster.embedded import EmbeddedCluster
from splitreel.config import VsaSpec, parse_config
from splitreel.errors import WorkerNotReady
from splitreel.h3.tiny import make_tiny
from vsa_films import unsplit

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


def test_sparse_attention_split_on_two_nodes_equals_unsplit(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Bit for bit; dense are the first call's three layers, and the third layer of the rest. Without Ray there are tests of
    all settings.
    """
    gated = make_tiny(tmp_path / "model", vsa_gates=True)
    spec = VsaSpec(sparsity=0.7, mode="exempt", dense_first_steps=1, dense_layers=(2,))
    vsa = {**vars(spec), "dense_layers": list(spec.dense_layers)}
    with Session(roles_config(cluster.address, str(gated), dit={"attention": {"vsa": vsa}})) as session:
        health = {worker.role: worker for worker in session.health()}
        assert len({worker.node_id for worker in health.values()}) == 2
        gates = "vsa gather (tile 64, sparsity 0.7, exempt, gates; dense calls native)"
        assert gates in health["dit"].attention["transformer"]
        assert health["dit"].attention["transformer.refiner"] == "native"
        result = session.generate(GenerateRequest(prompt="A lake, t2va.", steps=4, seed=3, output="tensor"))
    video, sound = unsplit(gated, "t2va", None, spec, 4)
    np.testing.assert_array_equal(result.tensor, video)
    np.testing.assert_array_equal(result.waveform, sound)
    assert (result.effective.sparse_attention_calls, result.effective.dense_attention_calls) == (4, 5)
    other, _ = unsplit(gated, "t2va", None, replace(spec, mode="compete"), 4)
    assert not np.array_equal(result.tensor, other), "the mode alone makes another film"


def test_a_foreign_adapter_is_refused_on_the_node_before_anything_loads(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """The file is on the driver alone: its header travels."""
    path = write(tmp_path / "flux.safetensors", {f"x.to_q.lora_{half}.weight": torch.ones(4, 4) for half in "AB"})
    config = parse_config({**roles_config(cluster.address).model_dump(), "lora": {"flux": {"path": str(path)}}})
    loaded: list[Any] = []
    with pytest.raises(
        AdapterError, match=r"node .*, role dit, lora flux, .*found none among 2 keys: x\.to_q"
    ) as caught:
        Session(config, on_load=loaded.append)
    assert loaded == []
    assert caught.value.role == "dit"
