"""The environment of a worker's process, built here and nowhere else.

Explicit value in the config > the driver's environment (allow-list only) > the worker's own. A variable that the config
sets to null is not forwarded to that role. It is handed to Ray as the
actor's runtime environment, so it is in place before the process imports anything; secrets alone go another way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# What is forwarded from the driver when set there. HF_TOKEN: a gated repository must open on every node. diffusers' own
# settings: without Ray they would hold in the driver's process, so they hold in its workers.
FORWARDED = (
    "HF_TOKEN",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "SPLITREEL_CACHE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "DIFFUSERS_ATTN_BACKEND",
    "DIFFUSERS_ATTN_CHECKS",
    "DIFFUSERS_TRUST_REMOTE_KERNELS",
)
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY")


def worker_environment(explicit: Mapping[str, str | None]) -> dict[str, str]:
    """The variables to set in a worker, on top of its node's own."""
    forwarded = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    merged: dict[str, str | None] = {**forwarded, **explicit}
    return {name: value for name, value in merged.items() if value is not None}


def is_secret(name: str) -> bool:
    """Whether a variable's value is to be kept from logs and health. `HF_TOKEN` is one, `TOKENIZERS_PARALLELISM` and
    `HF_TOKEN_PATH` are not.
    """
    words = name.upper().split("_")
    return words[-1] not in ("PATH", "FILE", "DIR") and any(word.endswith(SECRET_WORDS) for word in words)


def split(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What Ray may set as the worker's process starts, and the secrets, which the worker sets itself.

    Ray writes a runtime environment into its logs as it is, on every node that prepares it.
    """
    plain = {name: value for name, value in environment.items() if not is_secret(name)}
    return plain, {name: value for name, value in environment.items() if is_secret(name)}


def shown(environment: Mapping[str, str]) -> dict[str, str]:
    """The same with secrets masked, fit for logs and health."""
    return {name: "***" if is_secret(name) else value for name, value in environment.items()}
