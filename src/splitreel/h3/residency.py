"""Which of a component's tensors stay in memory, and in what form, told from their names alone.

One place for the loader, the checks before loading and `plan`. Needs neither torch nor diffusers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from splitreel.config import MemorySpec

# hidden_states[50] conditions the transformer: what goes into the decoder layer of that index, so neither this layer nor
# any after it, nor the final norm, nor the language head is of use.
TEXT_LAYERS_USED = 50
_TEXT_LAYER = re.compile(r"language_model\.layers\.(\d+)\.")
# What diffusers' guide for this model leaves to quantise: the linear layers of the blocks. The text refiner, the time
# embedding, the projections in and out, the norms, and the encoder's pictures and embeddings are excluded there.
_BLOCK_MATRIX = re.compile(r"transformer_blocks\.\d+\.(attn\.to_|ff\.net\.|adaln_proj\.).*\bweight$")
GATE = "to_gate_compress"
_TEXT_UNUSED = ("lm_head.", "model.language_model.norm.")

# Modules that diffusers keeps in float32 whatever dtype is asked for; matched against the parts of a tensor's name.
KEPT_IN_FLOAT32: dict[str, frozenset[str]] = {
    "vae": frozenset({"encoder", "quant_conv", "norm1", "norm2", "norm_out", "scale1", "scale2"}),
    "audio_vae": frozenset({"encoder", "decoder", "pre_block", "dec_in_proj", "mean_proj", "logs_proj"}),
    "transformer": frozenset({"proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out", "rope"}),
    "transformer_ref": frozenset({"proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out", "rope"}),
    "text_encoder": frozenset(),
}


@dataclass(frozen=True)
class Form:
    """How one tensor is held: `resident` or not at all; `pinned` to float32 whatever dtype its component has; `matrix`:
    of a linear layer that is held in 8 bits when its component is quantised.
    """

    resident: bool = True
    pinned: bool = False
    matrix: bool = False


def form(component: str, tensor: str, memory: MemorySpec) -> Form:
    """The form of the tensor that a component's files call `tensor`."""
    if component == "text_encoder":
        resident = memory.text_encoder == "full" or not _text_unused(tensor)
        return Form(resident, matrix=_TEXT_LAYER.search(tensor) is not None and tensor.endswith("_proj.weight"))
    if component.startswith("transformer") and memory.adaln == "tables" and is_adaln(tensor):
        return Form(resident=False)
    return Form(
        pinned=not KEPT_IN_FLOAT32[component].isdisjoint(tensor.split(".")),
        matrix=component.startswith("transformer") and _BLOCK_MATRIX.match(tensor) is not None,
    )


def is_gate(tensor: str) -> bool:
    """Whether a transformer's tensor is of a gate of sparse attention, which is loaded only where that is asked for."""
    return GATE in tensor.split(".")


def is_adaln(tensor: str) -> bool:
    """Whether a transformer's tensor is of the projections that read nothing but the timestep."""
    return ".adaln_proj." in tensor or tensor.startswith("norm_out.linear.")


def _text_unused(tensor: str) -> bool:
    layer = _TEXT_LAYER.search(tensor)
    return int(layer[1]) >= TEXT_LAYERS_USED if layer else tensor.startswith(_TEXT_UNUSED)
