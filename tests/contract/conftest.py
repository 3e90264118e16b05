"""Backends and the unsplit model, each made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from configs import roles_config
from lora_bench import Bench, distance
from lora_files import Factors, make_factors
from samples import Samples, make_samples
from splitreel import Session

WORKFLOWS = ["t2va", "fl2va", "ref2va"]
# The other geometry goes through the same payloads on Ray as the released one.
DEPLOYMENTS = [("local", "released"), ("local", "other"), ("embedded", "released")]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return make_samples(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="session", params=DEPLOYMENTS, ids="-".join)
def deployment(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Where the stages run, and the geometry of the checkpoint."""
    address, geometry_name = request.param
    return address, geometry_name


@pytest.fixture(scope="session")
def address(deployment: tuple[str, str]) -> str:
    return deployment[0]


@pytest.fixture(scope="session")
def geometry_name(deployment: tuple[str, str]) -> str:
    return deployment[1]


@pytest.fixture(scope="session")
def session(address: str, geometry_name: str) -> Iterator[Session]:
    """All three workflows served by one encoder/decoder and one DiT worker."""
    with Session(roles_config(address, f"tiny:{geometry_name}", WORKFLOWS)) as opened:
        yield opened


@pytest.fixture(scope="session")
def tiny_root(geometry_name: str) -> Path:
    from splitreel.h3.tiny import cached_tiny

    return cached_tiny("other" if geometry_name == "other" else "released")


@pytest.fixture
def http(address: str) -> Iterator[httpx.Client]:
    """A client of the server that the module started at `address`."""
    with httpx.Client(base_url=address, timeout=30) as client:
        yield client


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    """The same for OpenAI's own client."""
    import openai  # a second, which few modules need

    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="session")
def _lora_bench() -> Bench:
    return Bench()


@pytest.fixture(scope="session")
def factors(_lora_bench: Bench) -> Factors:
    return make_factors(_lora_bench.transformer("t2va"))


@pytest.fixture
def bench(_lora_bench: Bench) -> Iterator[Bench]:
    """Whatever a test did, and whatever was refused: the weights are as loaded."""
    yield _lora_bench
    _lora_bench.fuse()
    for workflow, base in _lora_bench.base.items():
        assert distance(_lora_bench.denoise(workflow), base) == 0.0
