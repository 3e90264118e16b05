"""Engines on Ray for tests and benchmarks, and what they leave in the object stores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private.internal_api import node_stats

from clockwork import Clockwork
from splitreel.cluster.backends import bounds_of
from splitreel.cluster.ray_backend import RayBackend
from splitreel.config import parse_config
from splitreel.engine.engine import Engine

TESTS = str(Path(__file__).parent)
# Workers import `clockwork` from here: raylets hand their environment to them.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH", "")]))


def unopened(
    folder: Path,
    address: str,
    roles: dict[str, Any] | None = None,
    model: Clockwork | None = None,
    *,
    transport: str = "object_store",
    **settings: Any,
) -> Engine:
    """An engine on Ray, not started, whose model has no components; `settings` are the config's engine section."""
    (folder / "modular_model_index.json").write_text("{}")
    config = parse_config(
        {
            "model": {"path": str(folder), "workflow": "t2va"},
            "cluster": {"address": address, "transport": transport},
            "roles": roles or {"encoder_decoder": {}, "dit": {}},
            "engine": {
                "heartbeat": 0.5,
                "lost_after": 3.0,
                "stop_timeout": 3.0,
                "restart_pause": 0.2,
                "worker_timeout": 60.0,
                **settings,
            },
        }
    )
    return Engine(RayBackend(model or Clockwork(), config), *bounds_of(config))


@asynccontextmanager
async def opened(folder: Path, address: str, *args: Any, **options: Any) -> AsyncIterator[Engine]:
    """The same, started, and closed at the end."""
    engine = unopened(folder, address, *args, **options)
    await engine.start()
    try:
        yield engine
    finally:
        await asyncio.wait_for(engine.close(), 30)


def raylets(address: str) -> list[psutil.Process]:
    """The raylet of the node at an address, a descendant of this process; with it stopped, its store does not answer."""
    found = []
    for child in psutil.Process().children(recursive=True):
        line = child.cmdline()
        if line and line[0].endswith("raylet/raylet") and any(f"--node_ip_address={address}" == word for word in line):
            found.append(child)
    return found


def stored() -> int:
    """Bytes of objects that the stores of all live nodes hold for somebody, now; caches of remote objects do not count.

    Ray's public resource numbers lag, so that what was just put, or was never freed, may not show in them.
    """
    return sum(
        node_stats(
            row["NodeManagerAddress"], row["NodeManagerPort"], include_memory_info=False
        ).store_stats.object_store_bytes_primary_copy
        for row in ray.nodes()
        if row["Alive"]
    )
