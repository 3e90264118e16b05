"""MiniMax-H3's module names as adapters' producers write them, and what each means in diffusers' transformer.

Two namings are in use: diffusers' own (peft, diffusers, FastVideo) and the original checkpoint's (ai-toolkit, ComfyUI,
LightX2V, musubi-tuner, DiffSynth-Studio), in which query, key and value are one projection and the feed-forward's gate
comes before its value. A test holds the translation against diffusers' own converter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from splitreel.roles.adapters.bind import Resolve, Slot

# The original's modules outside the blocks.
_OUTSIDE = {
    "video_patch_proj": "proj_in",
    "audio_patch_proj": "audio_proj_in",
    "condition_proj": "context_embedder",
    "time_embedder.proj_in": "time_embedder.linear_1",
    "time_embedder.proj_out": "time_embedder.linear_2",
    "token_refiner.final_norm": "token_refiner.final_norm",
    "final_layer.adaln_proj.linear": "norm_out.linear",
    "final_layer.norm": "norm_out.norm",
    "final_layer.video_out": "proj_out",
    "final_layer.audio_out": "audio_proj_out",
}
# Those of a block, main or refiner, that are one module on both sides.
_INSIDE = {
    "attn.out_proj": "attn.to_out.0",
    "attn.q_norm": "attn.norm_q",
    "attn.k_norm": "attn.norm_k",
    "attn.to_gate_compress": "attn.to_gate_compress",
    "mlp.fc2": "ff.net.2",
    "adaln_proj.linear": "adaln_proj.linear",
    "norm1": "norm1",
    "norm2": "norm2",
}
_BLOCK = re.compile(r"^(?P<stack>token_refiner\.blocks|blocks)\.(?P<index>\d+)\.(?P<inner>.+)$")
_STACKS = {"blocks": "transformer_blocks", "token_refiner.blocks": "token_refiner.refiner_blocks"}
# musubi-tuner joins the original's names with underscores, some of which the names have themselves.
_FLAT_PREFIX = "lora_unet_"
_FLAT = {name.replace(".", "_"): name for name in _OUTSIDE}
_FLAT_INNER = {name.replace(".", "_"): name for name in (*_INSIDE, "attn.qkv_proj", "mlp.fc1")}
_FLAT_BLOCK = re.compile(r"^(?P<stack>token_refiner_blocks|blocks)_(?P<index>\d+)_(?P<inner>.+)$")


def adapter_resolve(transformer: nn.Module) -> Resolve:
    """How to find a module of an adapter's file in diffusers' transformer."""
    heads = int(cast(Any, transformer).config.num_attention_heads)
    return partial(_resolve, frozenset(name for name, _ in transformer.named_modules()), heads)


def _resolve(names: frozenset[str], heads: int, module: str, infix: bool) -> tuple[str, tuple[Slot, ...]] | None:
    """Whose name it is and where it lies; None when nowhere.

    `infix`: PEFT's adapter name stands in the keys. Over the original's names only DiffSynth-Studio writes it, and it
    alone keeps query, key and value interleaved head by head, as the original's files have them.
    """
    if module in names:
        return "diffusers", (Slot(module),)
    naming, original, interleaved = "original", module, None
    if module.startswith(_FLAT_PREFIX):
        naming, original = "kohya", _unflattened(module.removeprefix(_FLAT_PREFIX))
    elif infix:
        naming, interleaved = "DiffSynth", heads
    slots = _slots_of_original(original, interleaved)
    return (naming, slots) if slots and all(slot.module in names for slot in slots) else None


def closed_modules(transformer: nn.Module) -> dict[str, str]:
    """Modules that are there and not used as they are, so that changing them would do nothing, or not all of it."""
    closed: dict[str, str] = {}
    for name, module in transformer.named_modules():
        if name.endswith(".attn") and not hasattr(module, "to_gate_compress"):
            closed[f"{name}.to_gate_compress"] = (
                "this worker's transformer has no gates, which attention.vsa takes from a checkpoint that has them"
            )
        if getattr(module, "fused_projections", False):
            for part in ("to_q", "to_k", "to_v"):
                closed[f"{name}.{part}"] = "the transformer's query, key and value were fused into one projection"
        if name.endswith(("adaln_proj.linear", "norm_out.linear")) and not isinstance(module, nn.Linear):
            # Tables were made with the time embedder as it was loaded.
            for each in (name, "time_embedder.linear_1", "time_embedder.linear_2"):
                closed[each] = "this worker holds AdaLN as tables (memory.adaln: tables); projections keeps them"
    return closed


def _slots_of_original(module: str, interleaved_heads: int | None) -> tuple[Slot, ...]:
    if module in _OUTSIDE:
        return (Slot(_OUTSIDE[module]),)
    found = _BLOCK.match(module)
    if found is None:
        return ()
    block, inner = f"{_STACKS[found['stack']]}.{found['index']}", found["inner"]
    if inner in _INSIDE:
        return (Slot(f"{block}.{_INSIDE[inner]}"),)
    if inner == "mlp.fc1":
        return (Slot(f"{block}.ff.net.0.proj", _halves_swapped),)
    if inner == "attn.qkv_proj":
        return tuple(
            Slot(f"{block}.attn.{name}", _third(index, interleaved_heads))
            for index, name in enumerate(("to_q", "to_k", "to_v"))
        )
    return ()


def _unflattened(flat: str) -> str:
    """The original's name; "" when it is none."""
    if flat in _FLAT:
        return _FLAT[flat]
    found = _FLAT_BLOCK.match(flat)
    if found is None or found["inner"] not in _FLAT_INNER:
        return ""
    stack = "token_refiner.blocks" if found["stack"].startswith("token") else "blocks"
    return f"{stack}.{found['index']}.{_FLAT_INNER[found['inner']]}"


def _halves_swapped(rows: Tensor) -> Tensor:
    """The original computes silu(first half) * second half, diffusers first * silu(second)."""
    gate, value = rows.chunk(2)
    return torch.cat([value, gate])


def _third(index: int, interleaved_heads: int | None) -> Callable[[Tensor], Tensor]:
    """Query, key or value out of all three: one after the other, or `[q k v]` for each head in turn."""

    def take(rows: Tensor) -> Tensor:
        if interleaved_heads is None:
            return rows.chunk(3)[index].contiguous()
        heads = rows.reshape(interleaved_heads, 3, -1, *rows.shape[1:])
        return heads[:, index].flatten(0, 1).contiguous()

    return take
