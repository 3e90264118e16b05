"""LoRA files in the forms of their producers, all of one update, and that update made by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

ALPHA = 3.0
# diffusers' names of what is changed: attention in full, a feed-forward, AdaLN, the refiner, and modules outside blocks.
MODULES = [
    *(f"transformer_blocks.{index}.attn.{name}" for index in (0, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")),
    "transformer_blocks.1.ff.net.0.proj",
    "transformer_blocks.1.ff.net.2",
    "transformer_blocks.2.adaln_proj.linear",
    *(f"token_refiner.refiner_blocks.1.attn.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")),
    "token_refiner.refiner_blocks.0.ff.net.0.proj",
    "proj_in",
    "context_embedder",
    "time_embedder.linear_1",
    "norm_out.linear",
    "audio_proj_out",
]
Factors = dict[str, tuple[Tensor, Tensor]]

_RENAMED = {
    "proj_in": "video_patch_proj",
    "audio_proj_out": "final_layer.audio_out",
    "context_embedder": "condition_proj",
    "time_embedder.linear_1": "time_embedder.proj_in",
    "norm_out.linear": "final_layer.adaln_proj.linear",
}
_INNER = {
    "attn.to_out.0": "attn.out_proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
    "adaln_proj.linear": "adaln_proj.linear",
}


def make_factors(transformer: nn.Module, seed: int = 1, modules: Iterable[str] = MODULES, size: float = 0.5) -> Factors:
    """down (r, in) and up (out, r), rank 4, but 2 for AdaLN. Query, key and value share their down, as fused files do."""
    generator = torch.Generator().manual_seed(seed)
    factors: Factors = {}
    for name in modules:
        rows, columns = transformer.get_submodule(name).weight.shape
        rank = 2 if "adaln" in name or "norm_out" in name else 4
        down = torch.randn(rank, columns, generator=generator) * size / math.sqrt(columns)
        if name.endswith(("to_k", "to_v")):
            down = factors[name[:-1] + "q"][0]
        factors[name] = (down, torch.randn(rows, rank, generator=generator) * size)
    return factors


def by_hand(factors: Factors, scale: float = 1.0, alpha: float | None = ALPHA) -> dict[str, Tensor]:
    """What is added to each weight."""
    return {
        f"{name}.weight": scale * ((alpha or down.shape[0]) / down.shape[0]) * (up @ down)
        for name, (down, up) in factors.items()
    }


def changed(transformer: nn.Module, *updates: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add the updates in place, one after the other; the originals."""
    originals: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, delta in ((name, delta) for update in updates for name, delta in update.items()):
            parameter = transformer.get_parameter(name)
            originals.setdefault(name, parameter.clone())
            parameter.add_(delta)
    return originals


def put_back(transformer: nn.Module, originals: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, original in originals.items():
            transformer.get_parameter(name).copy_(original)


def original_names(factors: Factors, interleaved_heads: int | None = None) -> Factors:
    """Under the original checkpoint's names and in its layout."""
    found: Factors = {}
    for name, (down, up) in factors.items():
        if name in _RENAMED:
            found[_RENAMED[name]] = (down, up)
            continue
        block, inner = name.split(".attn.")[0], name
        for stack in ("transformer_blocks", "token_refiner.refiner_blocks"):
            if name.startswith(f"{stack}."):
                index, inner = name.removeprefix(f"{stack}.").split(".", 1)
                block = f"{stack.replace('transformer_blocks', 'blocks').replace('refiner_blocks', 'blocks')}.{index}"
        if inner in _INNER:
            if inner == "ff.net.0.proj":
                value, gate = up.chunk(2)
                up = torch.cat([gate, value])
            found[f"{block}.{_INNER[inner]}"] = (down, up)
        elif inner == "attn.to_q":
            ups = [factors[name[:-1] + letter][1] for letter in "qkv"]
            if interleaved_heads is not None:
                heads = [item.unflatten(0, (interleaved_heads, -1)) for item in ups]
                fused = torch.stack(heads, dim=1).flatten(0, 2)
            else:
                fused = torch.cat(ups)
            found[f"{block}.attn.qkv_proj"] = (down, fused)
    return found


def tensors_of(
    factors: Factors,
    prefix: str = "",
    *,
    infix: str = "",
    names: tuple[str, str] = ("lora_A", "lora_B"),
    alpha: float | None = None,
    flat: bool = False,
) -> dict[str, Tensor]:
    """A state dict."""
    found: dict[str, Tensor] = {}
    for module, (down, up) in factors.items():
        stem = prefix + (module.replace(".", "_") if flat else module)
        found[f"{stem}.{names[0]}{infix}.weight"] = down.contiguous().clone()
        found[f"{stem}.{names[1]}{infix}.weight"] = up.contiguous().clone()
        if alpha is not None:
            found[f"{stem}.alpha"] = torch.tensor(alpha)
    return found


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    save_file(dict(tensors), path, metadata=dict(metadata or {}))
    return path


def diffusers_metadata(component: str, **config: Any) -> dict[str, str]:
    """As diffusers keeps peft's configuration in the header."""
    return {"lora_adapter_metadata": json.dumps({f"{component}.{name}": value for name, value in config.items()})}
