"""How each component with weights is built and filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from splitreel.config import RoleSpec
from splitreel.h3.adaln import Tables
from splitreel.h3.released import Dims, table_bytes
from splitreel.h3.residency import form, is_gate
from splitreel.h3.text import used_text_encoder
from splitreel.h3.vsa.gates import add_gates, has_gates
from splitreel.h3.vsa.processor import install
from splitreel.observe.logs import get_logger
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.loading import Recipe

logger = get_logger(__name__)


def recipe_for(component: str, kind: Any, checkpoint: Checkpoint, spec: RoleSpec) -> Recipe:
    """The recipe of `component`, of class `kind`, with the role's dtypes and memory settings."""
    dtype: torch.dtype = spec.torch_dtype(component)
    folder = checkpoint.root / component
    vsa = spec.attention.vsa if component.startswith("transformer") else None
    gates = component.startswith("transformer") and has_gates(checkpoint, component)
    gated = gates and vsa is not None

    def dtype_of(tensor: str) -> torch.dtype | None:
        held = form(component, tensor, spec.memory)
        if is_gate(tensor) and not gated:
            return None
        return (torch.float32 if held.pinned else dtype) if held.resident else None

    def plain() -> nn.Module:
        module: nn.Module = kind.from_pretrained(
            str(checkpoint.root), subfolder=component, local_files_only=True, dtype=dtype
        )
        return with_vsa(module)

    def with_vsa(module: nn.Module) -> nn.Module:
        _warn_of_gates(component, found=gates, asked=vsa is not None)
        if gated:
            add_gates(module)
        if vsa is not None:
            install(module, vsa, torch.device(spec.device))
        return module

    def skeleton() -> nn.Module:
        if component == "text_encoder":
            return _text_encoder(folder, used=spec.memory.text_encoder == "used")
        module: nn.Module = kind.from_config(kind.load_config(str(folder), local_files_only=True))
        if with_tables:
            tables = Tables(module, checkpoint, component, dtype, spec.memory)
            module.adaln_tables = tables  # type: ignore[assignment]
            module.held_beside = lambda: tables.num_bytes  # type: ignore[assignment]
        return with_vsa(module)

    with_tables = component.startswith("transformer") and spec.memory.adaln == "tables"
    beside = 0
    if with_tables:
        dims = Dims.of_configs({component: checkpoint.read_json(f"{component}/config.json", component=component)})
        beside = table_bytes(component, spec.workflows, spec.memory, dims, dtype.itemsize)
    quantization = dict(spec.memory.quantization).get(component)
    return Recipe(
        skeleton=skeleton,
        dtype_of=dtype_of,
        quantized=lambda tensor: form(component, tensor, spec.memory).matrix,
        quantization=quantization,
        beside=beside,
        plain=None if with_tables or gated or quantization else plain,
    )


def _warn_of_gates(component: str, *, found: bool, asked: bool) -> None:
    if found and not asked:
        logger.warning(
            "%s: the checkpoint has gates for sparse attention and attention.vsa is not set: they are left out. Set it, with "
            "sparsity 0 for dense attention with the gates, or a FastH3 preset.",
            component,
        )
    elif asked and not found:
        logger.warning(
            "%s: attention.vsa is set and the checkpoint has no gates: it was not trained for it, and runs without the "
            "coarse branch.",
            component,
        )


def _text_encoder(folder: Path, *, used: bool) -> nn.Module:
    config = Qwen3VLConfig.from_pretrained(str(folder), local_files_only=True)
    encoder: nn.Module = used_text_encoder(config) if used else Qwen3VLForConditionalGeneration(config)
    return encoder
