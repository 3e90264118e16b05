"""The environment of a worker's process, built here and nowhere else.

Explicit value in the config > the driver's environment (allow-list only) > the worker's own. It is handed to Ray as the
actor's runtime environment, so it is in place before the process imports anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

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
    return {**forwarded, **explicit}


def shown(environment: Mapping[str, str]) -> dict[str, str]:
    """The same with secrets masked, fit for logs and health."""
    return {
        name: "***" if any(word in name.upper() for word in SECRET_WORDS) else value
        for name, value in environment.items()
    }
