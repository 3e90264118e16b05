"""Memory that several roles share; a device whose driver does not tell its memory, and whose package's payload version is the node's own."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from splitreel.cluster.doctor import Status
from splitreel.cluster.doctor.examine import examine
from splitreel.cluster.local import LocalBackend
from splitreel.config import RoleSpec, parse_config
from splitreel.engine.engine import Engine
from splitreel.engine.limits import Deadlines, Limits
from splitreel.errors import PlacementError
from splitreel.h3 import tiny
from splitreel.h3.model import MiniMaxH3
from splitreel.request import Stage
from splitreel.roles.device import look_at_gpu, memory_id, shares_memory
from splitreel.roles.role import Role


def unsupported(*_: Any) -> tuple[int, int]:
    raise RuntimeError("CUDA error: operation not supported")


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's answers on a GB10 whose driver does not tell memory."""
    properties = SimpleNamespace(name="NVIDIA GB10", major=12, minor=1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90", "sm_120"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", unsupported)


@pytest.mark.usefixtures("spark")
def test_memory_that_is_not_told_is_the_machines() -> None:
    gpu = look_at_gpu("cuda")
    assert gpu is not None
    assert (gpu.free_bytes, gpu.total_bytes, gpu.unified, gpu.has_kernels) == (None, None, True, True)
    assert shares_memory()
    assert memory_id("cuda") == memory_id("cpu")
    assert look_at_gpu("cuda:1") is None
    spec = RoleSpec("dit", (Stage.DENOISE,), ("t2va",), "m", None, "cuda", (("default", "bfloat16"),), None)
    free, total = Role(MiniMaxH3(), spec).memory_free(), psutil.virtual_memory().total
    assert 0 < free <= total


def test_the_version_of_payloads_does_not_travel_with_the_model() -> None:
    assert vars(pickle.loads(pickle.dumps(MiniMaxH3()))).keys().isdisjoint({"schema"})


async def test_roles_in_one_process_must_fit_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each alone has room, both have not; before anything loads, and doctor says the same."""
    config = parse_config(
        {
            "model": {"path": str(tiny.cached_tiny()), "workflow": "t2va"},
            "cluster": {"address": "local"},
            "roles": {"encoder_decoder": {}, "dit": {}},
        }
    )
    sizes = []
    for role in config.roles:
        alone = Role(MiniMaxH3(), config.role_spec(role))
        alone.prepare()
        sizes.append(sum(alone.memory_needed().values()))
    monkeypatch.setattr(Role, "memory_free", lambda role: sum(sizes) - 1)
    engine = Engine(LocalBackend(MiniMaxH3(), config), Limits(3, 8, 1), Deadlines())
    with pytest.raises(PlacementError, match=r"memory of cpu on node .*\(encoder_decoder\).*\(dit\)"):
        await engine.start()
    budget = {
        each.check: each for each in examine("splitreel.h3.model:MiniMaxH3", (1, 0), config, output=tmp_path).findings
    }
    assert budget["memory.budget"].status is Status.FAIL
    assert budget["checkpoint.equal"].status is Status.PASS
