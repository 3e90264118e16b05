"""splitreel runs a video model that does not fit on one machine, split over several.

The names below are imported when they are first used: torch and diffusers take seconds, and `splitreel --help`, or a
program that only reads a config, needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from splitreel.imports import rest_while_large_ones_load
from splitreel.version import __version__

if TYPE_CHECKING:
    from splitreel.client import Client
    from splitreel.config import Config, load_config
    from splitreel.errors import (
        AdapterError,
        CheckpointError,
        ClusterError,
        ClusterUnreachable,
        ConfigError,
        GeometryMismatch,
        IncompleteCheckpoint,
        InvalidPayload,
        InvalidRequest,
        MissingComponent,
        PlacementError,
        QueueFull,
        RequestCancelled,
        RequestError,
        RequestTimeout,
        SchemaMismatch,
        SplitreelError,
        StageError,
        VersionMismatch,
        WireError,
        WorkerLost,
        WorkerNotReady,
    )
    from splitreel.lora import LoraInfo, LoraReceipt, LoraUse
    from splitreel.media import Sound
    from splitreel.observe.timings import HopTiming, StageTiming, Timings
    from splitreel.request import (
        AudioReference,
        Effective,
        GenerateRequest,
        GenerateResult,
        ImageReference,
        VideoReference,
    )
    from splitreel.session import JobHandle, Session

rest_while_large_ones_load()

# Where each name lives. `__all__`, the imports above and this table are held equal by tests/unit/test_public_names.py.
_MODULES = {
    "Client": "splitreel.client",
    "Config": "splitreel.config",
    "load_config": "splitreel.config",
    "AdapterError": "splitreel.errors",
    "CheckpointError": "splitreel.errors",
    "ClusterError": "splitreel.errors",
    "ClusterUnreachable": "splitreel.errors",
    "ConfigError": "splitreel.errors",
    "GeometryMismatch": "splitreel.errors",
    "IncompleteCheckpoint": "splitreel.errors",
    "InvalidPayload": "splitreel.errors",
    "InvalidRequest": "splitreel.errors",
    "MissingComponent": "splitreel.errors",
    "PlacementError": "splitreel.errors",
    "QueueFull": "splitreel.errors",
    "RequestCancelled": "splitreel.errors",
    "RequestError": "splitreel.errors",
    "RequestTimeout": "splitreel.errors",
    "SchemaMismatch": "splitreel.errors",
    "SplitreelError": "splitreel.errors",
    "StageError": "splitreel.errors",
    "VersionMismatch": "splitreel.errors",
    "WireError": "splitreel.errors",
    "WorkerLost": "splitreel.errors",
    "WorkerNotReady": "splitreel.errors",
    "LoraInfo": "splitreel.lora",
    "LoraReceipt": "splitreel.lora",
    "LoraUse": "splitreel.lora",
    "Sound": "splitreel.media",
    "HopTiming": "splitreel.observe.timings",
    "StageTiming": "splitreel.observe.timings",
    "Timings": "splitreel.observe.timings",
    "AudioReference": "splitreel.request",
    "Effective": "splitreel.request",
    "GenerateRequest": "splitreel.request",
    "GenerateResult": "splitreel.request",
    "ImageReference": "splitreel.request",
    "VideoReference": "splitreel.request",
    "JobHandle": "splitreel.session",
    "Session": "splitreel.session",
}

__all__ = [
    "AdapterError",
    "AudioReference",
    "CheckpointError",
    "Client",
    "ClusterError",
    "ClusterUnreachable",
    "Config",
    "ConfigError",
    "Effective",
    "GenerateRequest",
    "GenerateResult",
    "GeometryMismatch",
    "HopTiming",
    "ImageReference",
    "IncompleteCheckpoint",
    "InvalidPayload",
    "InvalidRequest",
    "JobHandle",
    "LoraInfo",
    "LoraReceipt",
    "LoraUse",
    "MissingComponent",
    "PlacementError",
    "QueueFull",
    "RequestCancelled",
    "RequestError",
    "RequestTimeout",
    "SchemaMismatch",
    "Session",
    "Sound",
    "SplitreelError",
    "StageError",
    "StageTiming",
    "Timings",
    "VersionMismatch",
    "VideoReference",
    "WireError",
    "WorkerLost",
    "WorkerNotReady",
    "__version__",
    "load_config",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
