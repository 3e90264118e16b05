"""The slice of the config that one worker gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from splitreel.lora import AdapterOutline
from splitreel.request import Stage


@dataclass(frozen=True)
class VsaSpec:
    """Sparse attention of the transformer's blocks: the fields of `VsaConfig`."""

    tile: int = 64
    sparsity: float = 0.9
    mode: Literal["exempt", "compete"] = "exempt"
    dense_first_steps: int = 0
    dense_layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class ScheduleSpec:
    """What a preset says of the schedules: shifts of video and sound, and the `rungs` of a distilled one, if it has any.

    Rungs are noise levels of 1000, before the shift and without the last zero.
    """

    preset: str
    video_shift: float
    audio_shift: float
    rungs: tuple[int, ...] = ()


@dataclass(frozen=True)
class AttentionSpec:
    """The attention backend asked for of each part: `auto` or one of `ATTENTION_BACKENDS`, None for the default."""

    transformer: str | None = None
    refiner: str | None = None
    vae: str | None = None
    hub_kernels: bool = False
    vsa: VsaSpec | None = None


@dataclass(frozen=True)
class MemorySpec:
    """What of the components stays in memory.

    text_encoder  used or full; adaln: projections or tables
    adaln_steps   steps of the schedules whose tables are made at load; at most `adaln_schedules` others are kept
    quantization  (component, int8 or fp8)
    """

    text_encoder: str = "used"
    adaln: str = "projections"
    adaln_steps: tuple[int, ...] = ()
    adaln_schedules: int = 2
    quantization: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CacheSpec:
    """A step cache; which of the numbers count depends on `kind` (see `CacheConfig`)."""

    kind: str
    threshold: float = 0.05
    interval: int = 5
    start: int = 3
    order: int = 1


@dataclass(frozen=True)
class RoleSpec:
    """What one worker is told, and all it is told. Picked field by field, so that nothing else can leak into it.

    `adapters`: outlines of those that the session will load, to be checked before anything is.
    """

    role: str
    stages: tuple[Stage, ...]
    workflows: tuple[str, ...]
    model_path: str
    revision: str | None
    device: str
    dtypes: tuple[tuple[str, str], ...]
    threads: int | None
    prompt_cache_bytes: int = 0
    attention: AttentionSpec = AttentionSpec()
    memory: MemorySpec = MemorySpec()
    cache: CacheSpec | None = None
    compile: tuple[str, ...] = ()
    schedule: ScheduleSpec | None = None
    adapters: tuple[AdapterOutline, ...] = ()
    transport: str = "object_store"
    trace_record: bool = True
    trace_sync: bool = False
    trace_nvtx: bool = False

    def torch_dtype(self, component: str) -> Any:
        """The torch dtype that a component is loaded in."""
        import torch

        names = dict(self.dtypes)
        return getattr(torch, names.get(component, names["default"]))
