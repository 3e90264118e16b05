"""The tables of the tiny checkpoints: what a geometry fixes, what a size scales, and the component configs of both.

A *geometry* is what the other stages must agree on (ratios, channels, chunk lengths, rates). A *size* only makes the
work heavier (widths, layers, the default canvas), so that every size of one geometry takes the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Geometry = Literal["released", "other"]
Size = Literal["tiny", "small", "medium"]
Dtype = Literal["float32", "bfloat16"]

GEOMETRIES: tuple[Geometry, ...] = get_args(Geometry)
SIZES: tuple[Size, ...] = get_args(Size)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

# The released text encoder has 64 decoder layers, of which the model reads the state after the 50th.
TEXT_LAYERS = 64


@dataclass(frozen=True)
class GeometrySpec:
    """What every role must agree on, and the short edge of the default canvas and of image references by size."""

    spatial_factors: tuple[int, ...]
    temporal_factors: tuple[int, ...]
    latent_channels: int
    clip_length: int
    token_drop: int
    patch_size: tuple[int, int, int]
    audio_latent_channels: int
    audio_encoder_rates: tuple[int, ...]
    audio_decoder_rates: tuple[int, ...]
    audio_decoder_kernels: tuple[int, ...]
    sampling_rate: int
    short_edges: dict[Size, int]


@dataclass(frozen=True)
class SizeSpec:
    """Widths and layer counts. `vae_channels` has one entry per VAE encoder level; a geometry takes its first ones."""

    hidden_size: int
    heads: int
    head_dim: int
    layers: int
    ffn_dim: int
    rope_freq_dim: int
    text_dim: int
    text_heads: int
    text_ffn_dim: int
    vision_dim: int
    vision_layers: int
    vae_channels: tuple[int, ...]
    vae_layers_per_block: int
    vae_groups: int
    vae_decoder_layers: int
    vae_decoder_heads: int
    audio_encoder_dim: int
    audio_latent_multiple: int
    audio_decoder_dim: int
    audio_kernels: tuple[int, ...]
    audio_dilations: tuple[int, ...]


GEOMETRY_SPECS: dict[Geometry, GeometrySpec] = {
    "released": GeometrySpec(
        spatial_factors=(2, 2, 2, 2, 1, 1),
        temporal_factors=(1, 2, 2, 1, 1, 1),
        latent_channels=24,
        clip_length=17,
        token_drop=3,
        patch_size=(1, 2, 2),
        audio_latent_channels=32,
        audio_encoder_rates=(2, 4, 4, 5, 5),
        audio_decoder_rates=(10, 10, 8),
        audio_decoder_kernels=(20, 20, 16),
        sampling_rate=32000,
        short_edges={"tiny": 64, "small": 128, "medium": 192},
    ),
    "other": GeometrySpec(
        spatial_factors=(2, 2, 2, 1),
        temporal_factors=(1, 2, 2, 1),
        latent_channels=16,
        clip_length=22,
        token_drop=4,
        patch_size=(1, 3, 3),
        audio_latent_channels=20,
        audio_encoder_rates=(2, 3, 4, 5, 5),
        audio_decoder_rates=(10, 10, 6),
        audio_decoder_kernels=(20, 20, 12),
        sampling_rate=24000,
        short_edges={"tiny": 72, "small": 96, "medium": 120},
    ),
}

SIZE_SPECS: dict[Size, SizeSpec] = {
    "tiny": SizeSpec(
        hidden_size=64,
        heads=4,
        head_dim=32,
        layers=3,
        ffn_dim=128,
        rope_freq_dim=4,
        text_dim=32,
        text_heads=2,
        text_ffn_dim=64,
        vision_dim=32,
        vision_layers=3,
        vae_channels=(4, 8, 16, 16, 16, 16),
        vae_layers_per_block=1,
        vae_groups=4,
        vae_decoder_layers=2,
        vae_decoder_heads=2,
        audio_encoder_dim=4,
        audio_latent_multiple=4,
        audio_decoder_dim=32,
        audio_kernels=(3,),
        audio_dilations=(1,),
    ),
    "small": SizeSpec(
        hidden_size=192,
        heads=16,
        head_dim=64,
        layers=14,
        ffn_dim=384,
        rope_freq_dim=8,
        text_dim=64,
        text_heads=4,
        text_ffn_dim=128,
        vision_dim=64,
        vision_layers=6,
        vae_channels=(4, 8, 16, 16, 32, 32),
        vae_layers_per_block=1,
        vae_groups=4,
        vae_decoder_layers=14,
        vae_decoder_heads=8,
        audio_encoder_dim=8,
        audio_latent_multiple=4,
        audio_decoder_dim=64,
        audio_kernels=(3, 7, 11),
        audio_dilations=(1, 3),
    ),
    "medium": SizeSpec(
        hidden_size=256,
        heads=16,
        head_dim=64,
        layers=14,
        ffn_dim=768,
        rope_freq_dim=8,
        text_dim=128,
        text_heads=8,
        text_ffn_dim=256,
        vision_dim=128,
        vision_layers=8,
        vae_channels=(8, 8, 16, 32, 32, 32),
        vae_layers_per_block=1,
        vae_groups=4,
        vae_decoder_layers=16,
        vae_decoder_heads=10,
        audio_encoder_dim=8,
        audio_latent_multiple=8,
        audio_decoder_dim=128,
        audio_kernels=(3, 7, 11),
        audio_dilations=(1, 3),
    ),
}


def transformer_config(geometry: GeometrySpec, size: SizeSpec) -> dict[str, Any]:
    """Arguments of the transformer's class; both partitions share them."""
    return {
        "num_attention_heads": size.heads,
        "attention_head_dim": size.head_dim,
        "hidden_size": size.hidden_size,
        "num_layers": size.layers,
        "num_refiner_layers": 2,
        "ffn_dim": size.ffn_dim,
        "in_channels": geometry.latent_channels,
        "audio_in_channels": geometry.audio_latent_channels,
        "patch_size": geometry.patch_size,
        "text_dim": size.text_dim,
        "freq_dim": 64,
        "time_embed_hidden_dim": size.hidden_size,
        "time_embed_dim": 32,
        "rope_freq_dim": size.rope_freq_dim,
    }


def vae_config(geometry: GeometrySpec, size: SizeSpec) -> dict[str, Any]:
    """Arguments of the video VAE's class, latent statistics left out."""
    levels = len(geometry.spatial_factors)
    return {
        "latent_channels": geometry.latent_channels,
        "block_out_channels": size.vae_channels[:levels],
        "layers_per_block": size.vae_layers_per_block,
        "spatial_downsample_factors": geometry.spatial_factors,
        "temporal_downsample_factors": geometry.temporal_factors,
        "norm_num_groups": size.vae_groups,
        "decoder_num_layers": size.vae_decoder_layers,
        "decoder_num_attention_heads": size.vae_decoder_heads,
        "decoder_attention_head_dim": 32,
        "clip_length": geometry.clip_length,
        "token_drop": geometry.token_drop,
    }


def audio_vae_config(geometry: GeometrySpec, size: SizeSpec) -> dict[str, Any]:
    """Arguments of the audio VAE's class, latent statistics left out."""
    return {
        "encoder_dim": size.audio_encoder_dim,
        "encoder_rates": geometry.audio_encoder_rates,
        "latent_dim": geometry.audio_latent_channels * size.audio_latent_multiple,
        "latent_channels": geometry.audio_latent_channels,
        "num_attention_heads": 2,
        "decoder_dim": size.audio_decoder_dim,
        "decoder_rates": geometry.audio_decoder_rates,
        "decoder_kernel_sizes": geometry.audio_decoder_kernels,
        "resblock_kernel_sizes": size.audio_kernels,
        "resblock_dilation_sizes": tuple(size.audio_dilations for _ in size.audio_kernels),
        "sampling_rate": geometry.sampling_rate,
    }


def index_configs(geometry: GeometrySpec, size: Size) -> dict[str, int]:
    """The sizes that the blocks read from the index: the default canvas and the short edge of image references."""
    short_edge = geometry.short_edges[size]
    return {
        "canvas_short_edge": short_edge,
        "canvas_max_pixels": 2 * short_edge**2,
        "reference_image_short_edge": short_edge,
    }
