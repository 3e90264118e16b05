"""Real raylets, shared by the tests of a module, and engines on them."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from clockwork import Clockwork
from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode
from splitreel.cluster.ray_backend import RayBackend
from splitreel.config import parse_config
from splitreel.engine.engine import Deadlines, Engine
from splitreel.engine.scheduler import Limits

TESTS = str(Path(__file__).parents[1])
# Workers import `clockwork` from here: raylets hand their environment to them.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH", "")]))


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


@asynccontextmanager
async def opened(
    folder: Path, address: str, roles: dict[str, Any] | None = None, model: Clockwork | None = None, **settings: Any
) -> AsyncIterator[Engine]:
    """An engine on Ray whose model has no components; `settings` are the config's engine section."""
    (folder / "modular_model_index.json").write_text("{}")
    config = parse_config(
        {
            "model": {"path": str(folder), "workflow": "t2va"},
            "cluster": {"address": address},
            "roles": roles or {"encoder_decoder": {}, "dit": {}},
            "engine": {
                "heartbeat": 0.5,
                "lost_after": 3.0,
                "restart_pause": 0.2,
                "worker_timeout": 60.0,
                **settings,
            },
        }
    )
    options = config.engine
    engine = Engine(
        RayBackend(model or Clockwork(), config),
        Limits(config.max_in_flight, options.max_waiting, options.retries),
        Deadlines(options.start_timeout, options.request_timeout, options.stage_timeout, options.lost_after),
    )
    await engine.start()
    try:
        yield engine
    finally:
        await asyncio.wait_for(engine.close(), 30)


def stored() -> int:
    """Bytes of objects that the stores of all live nodes hold for somebody, now; caches of remote objects do not count.

    Ray's public resource numbers lag, so that what was just put, or was never freed, may not show in them.
    """
    import ray
    from ray._private.internal_api import node_stats

    return sum(
        node_stats(
            row["NodeManagerAddress"], row["NodeManagerPort"], include_memory_info=False
        ).store_stats.object_store_bytes_primary_copy
        for row in ray.nodes()
        if row["Alive"]
    )
