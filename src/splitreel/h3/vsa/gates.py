"""The gates of the coarse branch: one projection per block, which FastH3's checkpoints have and diffusers' class has not.

Their tensors are called `transformer_blocks.N.attn.to_gate_compress.weight`, (heads * head size, hidden size), one for
each of the 50 blocks, in diffusers' layout: so FastVideo's exporter writes them (its
`docs/inference/fasth3-distilled.md` and adapter extraction name 688 tensors against the base's 638).
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from splitreel.errors import IncompleteCheckpoint
from splitreel.h3.residency import GATE, is_gate
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.weights import stored_tensors

MODULE = GATE
_KEY = re.compile(rf"transformer_blocks\.(\d+)\.attn\.{MODULE}\.weight")


def has_gates(checkpoint: Checkpoint, component: str) -> bool:
    """Whether a transformer's files hold gates. Reads headers and the configuration.

    Raises IncompleteCheckpoint, naming the tensors, when some blocks have one and others not, when one has another shape, or
    when one is where there should be none.
    """
    shapes = {item.name: item.shape for item in stored_tensors(checkpoint, component) if is_gate(item.name)}
    if not shapes:
        return False
    config = checkpoint.read_json(f"{component}/config.json", component=component)
    layers = int(config.get("num_layers", 50))
    hidden = int(config.get("hidden_size", 5376))
    shape = (int(config.get("num_attention_heads", 56)) * int(config.get("attention_head_dim", 128)), hidden)
    expected = {_name(layer) for layer in range(layers)}

    def refuse(what: str, found: str) -> IncompleteCheckpoint:
        return IncompleteCheckpoint(
            f"{component}: expected {what} in {checkpoint.root / component}, found {found}. Copy or download the "
            "checkpoint again, or use one without gates.",
            component=component,
            file=str(checkpoint.root / component),
        )

    if strange := sorted(set(shapes) - expected):
        raise refuse(f"gates of {layers} blocks ({_name(0)} and so on) only", ", ".join(strange))
    if missing := sorted(expected - set(shapes), key=_layer):
        raise refuse(f"a gate in each of {layers} blocks", f"none of these: {', '.join(missing)}")
    if wrong := sorted((name for name in shapes if shapes[name] != shape), key=_layer):
        raise refuse(f"gates of {shape}", ", ".join(f"{name} {shapes[name]}" for name in wrong))
    return True


def add_gates(transformer: Any) -> None:
    """Give each block's attention its projection, with weights of no particular value."""
    for block in transformer.transformer_blocks:
        attention = block.attn
        attention.add_module(MODULE, nn.Linear(attention.to_q.in_features, attention.inner_dim, bias=False))


def _name(layer: int) -> str:
    return f"transformer_blocks.{layer}.attn.{MODULE}.weight"


def _layer(name: str) -> int:
    match = _KEY.fullmatch(name)
    return int(match[1]) if match else -1
