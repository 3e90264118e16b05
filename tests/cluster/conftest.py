"""Real raylets, shared by the tests of a module, and engines on them."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engines import opened
from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode
from splitreel.engine.engine import Engine


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Three nodes with a GPU each as far as Ray is concerned; the head is for the driver and the encoder."""
    nodes = [EmbeddedNode(gpus=1, labels={"rack": name}) for name in ("left", "right", "spare")]
    with EmbeddedCluster.start(nodes=nodes) as started:
        yield started


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    """A folder for a checkpoint without components."""
    return tmp_path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """One engine for the tests that do not need their own; it survives what they do to its workers."""
    async with opened(tmp_path_factory.mktemp("nothing"), cluster.address) as started:
        yield started


EngineMaker = Callable[..., Any]


@pytest.fixture
def open_engine(nothing: Path) -> EngineMaker:
    """`async with open_engine(address, roles=..., model=..., **engine settings) as engine`."""

    return functools.partial(opened, nothing)
