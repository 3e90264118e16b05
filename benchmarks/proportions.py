"""Checkpoints of random weights in the released proportions, every width divided, for benchmarks of memory and loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import MiniMaxH3Transformer3DModel
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration


def text_config(divisor: int = 1) -> Qwen3VLConfig:
    """Qwen3-VL-32B's configuration; with a divisor all widths and the vocabulary are that much smaller, layers are not."""
    hidden, head_dim = 5120 // divisor, 128 if divisor == 1 else 32
    return Qwen3VLConfig(
        text_config={
            "vocab_size": 151936 // divisor,
            "hidden_size": hidden,
            "intermediate_size": 25600 // divisor,
            "num_hidden_layers": 64,
            "num_attention_heads": 8192 // divisor // head_dim,
            "num_key_value_heads": max(1, 1024 // divisor // head_dim),
            "head_dim": head_dim,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20] if divisor == 1 else [8, 4, 4],
            },
        },
        vision_config={
            "depth": 27,
            "hidden_size": 1152 // divisor,
            "intermediate_size": 4304 // divisor,
            "num_heads": 16 if divisor == 1 else 2,
            "out_hidden_size": hidden,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
        tie_word_embeddings=False,
    )


def transformer_config(divisor: int = 1) -> dict[str, Any]:
    """The released transformer's arguments; with a divisor all widths are that much smaller, its 50 blocks are not."""
    head_dim = 128 if divisor == 1 else 64
    return {
        "num_attention_heads": 7168 // divisor // head_dim,
        "attention_head_dim": head_dim,
        "hidden_size": 5376 // divisor,
        "num_layers": 50,
        "ffn_dim": 14336 // divisor,
        "text_dim": 5120 // divisor,
        "freq_dim": 256 // divisor,
        "time_embed_hidden_dim": 5376 // divisor,
        "time_embed_dim": 2688 // divisor,
        "rope_freq_dim": 16 if divisor == 1 else 8,
    }


def write_text_encoder(root: Path, divisor: int) -> Path:
    """A bfloat16 text encoder in `root`/text_encoder."""
    with torch.device("meta"):
        encoder = Qwen3VLForConditionalGeneration(text_config(divisor))
    _fill(encoder, {}).save_pretrained(root / "text_encoder", max_shard_size="64MB")
    return root


def write_transformer(root: Path, divisor: int) -> Path:
    """A transformer in `root`/transformer, in bfloat16 with the modules that diffusers keeps in float32."""
    with torch.device("meta"):
        transformer = MiniMaxH3Transformer3DModel(**transformer_config(divisor))
    keep = set(MiniMaxH3Transformer3DModel._keep_in_fp32_modules)
    dtypes = {name: torch.float32 for name, _ in transformer.named_parameters() if keep & set(name.split("."))}
    _fill(transformer, dtypes).save_pretrained(root / "transformer", max_shard_size="64MB")
    return root


def _fill(module: Any, dtypes: dict[str, torch.dtype]) -> Any:
    generator = torch.Generator().manual_seed(0)
    for name, parameter in list(module.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        values = torch.randn(parameter.shape, generator=generator) * 0.02
        tensor = values.to(dtypes.get(name, torch.bfloat16))
        setattr(module.get_submodule(owner), leaf, torch.nn.Parameter(tensor, requires_grad=False))
    return module
