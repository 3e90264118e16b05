"""A device whose driver does not tell its memory, and whose package's payload version is the node's own."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from splitreel.config import RoleSpec
from splitreel.h3.model import MiniMaxH3
from splitreel.request import Stage
from splitreel.roles.device import look_at_gpu, shares_memory
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
    assert look_at_gpu("cuda:1") is None
    spec = RoleSpec("dit", (Stage.DENOISE,), ("t2va",), "m", None, "cuda", (("default", "bfloat16"),), None)
    free, total = Role(MiniMaxH3(), spec).memory_free(), psutil.virtual_memory().total
    assert 0 < free <= total


def test_the_version_of_payloads_does_not_travel_with_the_model() -> None:
    assert vars(pickle.loads(pickle.dumps(MiniMaxH3()))).keys().isdisjoint({"schema"})
