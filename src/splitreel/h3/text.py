"""The text encoder without what is never read: 50 of its 64 layers, no final norm, no language head, one hidden state.

diffusers' blocks ask for all hidden states and read number 50, which is what goes into the layer of index 50. Here the
stack ends before that layer, and its output is that state, bit for bit.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from torch import nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from splitreel.h3.residency import TEXT_LAYERS_USED


def used_text_encoder(config: Qwen3VLConfig) -> Any:
    """The part of the encoder that conditions the transformer; `.model(...)` answers as diffusers' blocks expect."""
    config = copy.deepcopy(config)
    # One more than are kept: diffusers refuses an encoder of 50, whose last state would be normed.
    config.text_config.num_hidden_layers = TEXT_LAYERS_USED + 1
    encoder: Any = Qwen3VLForConditionalGeneration(config)
    language_model = encoder.model.language_model
    del language_model.layers[TEXT_LAYERS_USED:]
    language_model.norm = nn.Identity()
    encoder.lm_head = nn.Identity()
    encoder.model.forward = _one_state(encoder.model.forward)
    return encoder


def _one_state(forward: Any) -> Any:
    """The model's forward, keeping the one state instead of one per layer, and no keys and values."""

    def one_state(*args: Any, **inputs: Any) -> SimpleNamespace:
        inputs.update(use_cache=False, output_hidden_states=False)
        state = forward(*args, **inputs).last_hidden_state
        return SimpleNamespace(last_hidden_state=state, hidden_states={TEXT_LAYERS_USED: state})

    return one_state
