"""A small run of a component on made-up inputs, so that what compiles at first use compiles while loading."""

from __future__ import annotations

from typing import Any

import torch

_VIDEO_GRID = (2, 4, 4)
_TEXT_ROWS, _AUDIO_ROWS = 8, 4
# A temporal chunk of the video VAE is several latent frames; one spatial tile of 2 x 2 latents is enough.
_VAE_TILE = 2


def warm_up(name: str, component: Any, device: str) -> None:
    """Run a component once; seconds for the tiny model, one short pass through all weights for the released one.

    `name` is `transformer`, `transformer_ref`, `text_encoder` or `vae`; `device` is where it computes, which its first
    parameter need not say. Nothing is kept of the result.
    """
    with torch.inference_mode():
        if name.startswith("transformer"):
            component(**transformer_inputs(component, device), return_dict=False)
        elif name == "text_encoder":
            component.model(input_ids=torch.ones((1, _TEXT_ROWS), dtype=torch.long, device=device), use_cache=False)
        else:
            shape = (1, component.config.latent_channels, component.tokens_chunk_size, _VAE_TILE, _VAE_TILE)
            component.decoder(torch.zeros(shape, device=device, dtype=torch.float32))


def transformer_inputs(
    transformer: Any, device: str = "cpu", *, text_rows: int = _TEXT_ROWS, seed: int = 0
) -> dict[str, torch.Tensor]:
    """A packed sequence of 8 text, 4 sound and 32 video rows at two noise levels; the same random values for one seed."""
    config = transformer.config
    generator = torch.Generator().manual_seed(seed)
    frames, height, width = _VIDEO_GRID
    video = frames * height * width
    rows = text_rows + _AUDIO_ROWS + video
    patch_t, patch_h, patch_w = config.patch_size
    sizes = {
        "hidden_states": (1, video, config.in_channels * patch_t * patch_h * patch_w),
        "audio_hidden_states": (1, _AUDIO_ROWS, config.audio_in_channels),
        "encoder_hidden_states": (1, text_rows, config.text_dim),
    }
    tensors = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    index = torch.arange(rows)
    is_video, is_text = index >= text_rows + _AUDIO_ROWS, index < text_rows
    positions = torch.zeros((rows, 3))
    positions[:, 0] = index
    positions[is_video] = torch.cartesian_prod(*(torch.arange(float(size)) for size in _VIDEO_GRID))
    tensors |= {
        "timestep": torch.tensor([0.25, 0.75]),
        "timestep_indices": is_video.long(),
        "token_tags": torch.where(is_video, 0, torch.where(is_text, 1, 2)),
        "position_ids": positions,
        "video_indices": index[is_video],
        "audio_indices": index[~is_video & ~is_text],
        "text_indices": index[is_text],
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()}
