"""The tiny checkpoint's Qwen3-VL side: tokenizer, processor and the text encoder's config.

The vocabulary is the 256 byte symbols, a few merges and Qwen's special tokens, so that any prompt can be read and one
character of English is about one token.
"""

from __future__ import annotations

from typing import Any

from transformers import (
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from splitreel.h3.tiny_spec import TEXT_LAYERS, SizeSpec

MERGES = (("t", "h"), ("i", "n"), ("a", "n"), ("e", "r"), ("th", "e"), ("in", "g"))
# In the order of the released vocabulary.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PATCH = 16
MERGE = 2
# Per image, and per video over all its frames; small enough that a tiny canvas is not enlarged.
PIXEL_BUDGET = {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": (PATCH * MERGE) ** 2 * 64}
VIDEO_PIXEL_BUDGET = {"shortest_edge": 2 * (PATCH * MERGE) ** 2, "longest_edge": (PATCH * MERGE) ** 2 * 768}


def byte_symbols() -> list[str]:
    """The printable character that byte-level BPE writes for each of the 256 bytes, by byte value."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    symbols = {byte: chr(byte) for byte in printable}
    rest = [byte for byte in range(256) if byte not in symbols]
    symbols.update({byte: chr(256 + position) for position, byte in enumerate(rest)})
    return [symbols[byte] for byte in range(256)]


def make_tokenizer() -> Qwen2Tokenizer:
    """A real Qwen2 tokenizer; its ids count the bytes first, then the merges, then the special tokens."""
    words = [*byte_symbols(), *(left + right for left, right in MERGES)]
    return Qwen2Tokenizer(
        vocab={word: index for index, word in enumerate(words)},
        merges=list(MERGES),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL_TOKENS),
        model_max_length=32768,
    )


def make_processor(tokenizer: Qwen2Tokenizer) -> Qwen3VLProcessor:
    """A real Qwen3-VL processor: image and video processor plus `tokenizer`."""
    common = {"patch_size": PATCH, "temporal_patch_size": 2, "merge_size": MERGE}
    mean_std = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=PIXEL_BUDGET, **common, **mean_std),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(
            size=VIDEO_PIXEL_BUDGET, cap_pixels_per_frame=False, **common, **mean_std
        ),
    )


def text_encoder_config(size: SizeSpec, tokenizer: Qwen2Tokenizer) -> Qwen3VLConfig:
    """A Qwen3-VL config of `TEXT_LAYERS` thin layers that agrees with the tokenizer's ids."""
    token_ids: dict[str, int] = tokenizer.get_vocab()
    head_dim = size.text_dim // size.text_heads
    half = head_dim // 2
    quarter = half // 4
    text: dict[str, Any] = {
        "vocab_size": len(token_ids),
        "hidden_size": size.text_dim,
        "intermediate_size": size.text_ffn_dim,
        "num_hidden_layers": TEXT_LAYERS,
        "num_attention_heads": size.text_heads,
        "num_key_value_heads": max(1, size.text_heads // 2),
        "head_dim": head_dim,
        "max_position_embeddings": 32768,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5000000.0,
            "mrope_interleaved": True,
            "mrope_section": [half - 2 * quarter, quarter, quarter],
        },
    }
    vision: dict[str, Any] = {
        "depth": size.vision_layers,
        "hidden_size": size.vision_dim,
        "intermediate_size": 2 * size.vision_dim,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": size.text_dim,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, size.vision_layers - 2],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token_ids["<|image_pad|>"],
        video_token_id=token_ids["<|video_pad|>"],
        vision_start_token_id=token_ids["<|vision_start|>"],
        vision_end_token_id=token_ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
