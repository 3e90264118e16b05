"""The environment of a worker's process, built here and nowhere else.

Explicit value in the config > the driver's environment (allow-list only) > the worker's own. It is handed to Ray as the
actor's runtime environment, so it is in place before the process imports anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

# What is forwarded from the driver when set there. HF_TOKEN: a gated repository must open on every node.
FORWARDED = (
    "HF_TOKEN",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "SPLITREEL_CACHE",
    "PYTORCH_CUDA_ALLOC_CONF",
)
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY")


def worker_environment(explicit: Mapping[str, str]) -> dict[str, str]:
    """The variables to set in a worker, on top of its node's own."""
    forwarded = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    return {"PYTHONPATH": _package_path(), **forwarded, **explicit}


def shown(environment: Mapping[str, str]) -> dict[str, str]:
    """The same with secrets masked, fit for logs and health."""
    return {
        name: "***" if any(word in name.upper() for word in SECRET_WORDS) else value
        for name, value in environment.items()
    }


def _package_path() -> str:
    """Where this package was imported from, before the worker's own path: workers on this machine import the same."""
    source = str(Path(__file__).resolve().parents[2])
    existing = os.environ.get("PYTHONPATH", "")
    if any(source == entry for entry in (sys.prefix, *existing.split(os.pathsep))) or "site-packages" in source:
        return existing
    return os.pathsep.join(part for part in (source, existing) if part)
