"""The facts that every role must agree on, read from the components' configurations and never guessed.

diffusers' pipeline reads them off its components and, when one is absent (always so in a split role), silently takes
the released constants. `GeometryPipeline` takes them from here instead.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from diffusers import AutoencoderKLMiniMaxH3, MiniMaxH3ModularPipeline

from splitreel.errors import GeometryMismatch, MissingComponent
from splitreel.h3.limits import CANVAS_MAX_PIXELS, FPS, Limits
from splitreel.h3.residency import TEXT_LAYERS_USED
from splitreel.roles.checkpoint import Checkpoint

# Fixed in diffusers' code for every checkpoint (modular_pipelines/minimax_h3/modular_pipeline.py).
AUDIO_LATENTS_PER_SECOND = 40
# With exactly as many layers as are used the last state would be normed.
MIN_TEXT_LAYERS = TEXT_LAYERS_USED + 1
# Defaults of diffusers' blocks, used when the index does not name them.
_CANVAS_DEFAULTS = {
    "canvas_short_edge": 768,
    "canvas_max_pixels": CANVAS_MAX_PIXELS,
    "reference_image_short_edge": 2048,
}


@dataclass(frozen=True)
class Geometry:
    """Sizes and rates of one checkpoint.

    Ratios are pixels per latent; `frames_per_chunk` pixel frames become `latents_per_chunk` latent frames;
    `patch_size` is (t, h, w) latents per transformer row.
    """

    spatial_ratio: int
    latent_channels: int
    frames_per_chunk: int
    latents_per_chunk: int
    sample_rate: int
    audio_channels: int
    patch_size: tuple[int, int, int]
    text_dim: int
    canvas_short_edge: int
    canvas_max_pixels: int
    reference_image_short_edge: int

    @property
    def canvas_multiple(self) -> int:
        """Height and width are multiples of this, 32 in the release."""
        return self.spatial_ratio * self.patch_size[2]

    @property
    def fingerprint(self) -> str:
        """16 hex digits over all facts."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {**asdict(self), "patch_size": list(self.patch_size)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Geometry:
        """The inverse of `to_dict`."""
        return cls(**{**values, "patch_size": tuple(values["patch_size"])})

    @property
    def limits(self) -> Limits:
        """How long and how large its films may be."""
        return Limits(self.canvas_multiple, self.frames_per_chunk, self.latents_per_chunk, self.canvas_max_pixels)

    def legal_num_frames(self) -> range:
        """Every frame count that can be generated, from 5 to 15 seconds: 124, 141, ... 345 in the release."""
        return self.limits.legal_num_frames()

    def latent_frames(self, num_frames: int) -> int:
        """Latent frames of an aligned frame count: `5 n + 2` for `17 n + 5` in the release."""
        return (num_frames - self.latents_per_chunk) // self.frames_per_chunk * self.latents_per_chunk + 2

    def audio_latents(self, num_frames: int) -> int:
        """Audio latents per channel that cover a film of this many frames."""
        return round(num_frames / FPS * AUDIO_LATENTS_PER_SECOND)


class GeometryPipeline(MiniMaxH3ModularPipeline):  # type: ignore[misc]
    """diffusers' pipeline with its geometry given instead of read off components that a split role lacks."""

    geometry: Geometry

    @property
    def vae_spatial_compression_ratio(self) -> int:
        return self.geometry.spatial_ratio

    @property
    def vae_latent_channels(self) -> int:
        return self.geometry.latent_channels

    @property
    def vae_frames_per_chunk(self) -> int:
        return self.geometry.frames_per_chunk

    @property
    def vae_latents_per_chunk(self) -> int:
        return self.geometry.latents_per_chunk

    @property
    def audio_sampling_rate(self) -> int:
        return self.geometry.sample_rate

    @property
    def audio_latent_channels(self) -> int:
        return self.geometry.audio_channels

    @property
    def patch_size(self) -> tuple[int, int, int]:
        return self.geometry.patch_size


def read_geometry(checkpoint: Checkpoint, workflows: Sequence[str]) -> Geometry:
    """Read and cross-check the configurations. Raises MissingComponent or GeometryMismatch naming the files."""
    vae = checkpoint.read_json("vae/config.json", component="vae")
    audio = checkpoint.read_json("audio_vae/config.json", component="audio_vae")
    text = checkpoint.read_json("text_encoder/config.json", component="text_encoder").get("text_config", {})
    names = sorted({"transformer_ref" if workflow == "ref2va" else "transformer" for workflow in workflows})
    transformers = {name: checkpoint.read_json(f"{name}/config.json", component=name) for name in names}
    index = checkpoint.index()

    meta_vae = _vae_on_meta(vae, checkpoint)
    hop = math.prod(_number_list(audio, "encoder_rates", "audio_vae", checkpoint))
    sample_rate = _fact(audio, "sampling_rate", "audio_vae", checkpoint)
    _agree(
        "audio_vae/config.json: sampling_rate / encoder_rates",
        sample_rate / hop,
        "latents per second in diffusers",
        AUDIO_LATENTS_PER_SECOND,
    )
    layers = _fact(text, "num_hidden_layers", "text_encoder", checkpoint)
    if layers < MIN_TEXT_LAYERS:
        raise GeometryMismatch(
            f"text_encoder/config.json: expected {MIN_TEXT_LAYERS} or more decoder layers, because hidden_states[50] "
            f"conditions the transformer, found {layers}.",
            component="text_encoder",
            file=str(checkpoint.root / "text_encoder/config.json"),
        )
    geometry = Geometry(
        spatial_ratio=meta_vae.spatial_compression_ratio,
        latent_channels=_fact(vae, "latent_channels", "vae", checkpoint),
        frames_per_chunk=_fact(vae, "clip_length", "vae", checkpoint),
        latents_per_chunk=meta_vae.tokens_chunk_size,
        sample_rate=sample_rate,
        audio_channels=_fact(audio, "latent_channels", "audio_vae", checkpoint),
        patch_size=_patch(next(iter(transformers.values())), names[0], checkpoint),
        text_dim=_fact(text, "hidden_size", "text_encoder", checkpoint),
        **{name: int(index.get(name, default)) for name, default in _CANVAS_DEFAULTS.items()},
    )
    for name, config in transformers.items():
        where = f"{name}/config.json"
        _agree(f"{where}: in_channels", config.get("in_channels"), "vae latent_channels", geometry.latent_channels)
        _agree(
            f"{where}: audio_in_channels",
            config.get("audio_in_channels"),
            "audio_vae latent_channels",
            geometry.audio_channels,
        )
        _agree(f"{where}: text_dim", config.get("text_dim"), "text_encoder hidden_size", geometry.text_dim)
        _agree(f"{where}: patch_size", _patch(config, name, checkpoint), f"{names[0]} patch_size", geometry.patch_size)
    return geometry


def _vae_on_meta(config: dict[str, Any], checkpoint: Checkpoint) -> Any:
    """A VAE without weights, for the facts that its constructor derives (`tokens_chunk_size`, the spatial ratio)."""
    try:
        with torch.device("meta"):
            return AutoencoderKLMiniMaxH3.from_config(config)
    except Exception as error:
        raise MissingComponent(
            f"vae: expected a configuration that builds, found {type(error).__name__}: {error}",
            component="vae",
            file=str(checkpoint.root / "vae/config.json"),
        ) from error


def _fact(config: dict[str, Any], key: str, component: str, checkpoint: Checkpoint) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise MissingComponent(
            f"{component}: expected a positive whole number for {key} in {checkpoint.root / component / 'config.json'}, "
            f"found {value!r}.",
            component=component,
            file=str(checkpoint.root / component / "config.json"),
        )
    return value


def _number_list(config: dict[str, Any], key: str, component: str, checkpoint: Checkpoint) -> list[int]:
    value = config.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, int) and item > 0 for item in value):
        raise MissingComponent(
            f"{component}: expected whole numbers for {key} in {checkpoint.root / component / 'config.json'}, found "
            f"{value!r}.",
            component=component,
            file=str(checkpoint.root / component / "config.json"),
        )
    return value


def _patch(config: dict[str, Any], component: str, checkpoint: Checkpoint) -> tuple[int, int, int]:
    values = _number_list(config, "patch_size", component, checkpoint)
    if len(values) != 3:
        raise GeometryMismatch(f"{component}/config.json: patch_size: expected (t, h, w), found {values}.")
    return (values[0], values[1], values[2])


def _agree(where: str, found: Any, with_what: str, expected: Any) -> None:
    if found != expected:
        raise GeometryMismatch(
            f"{where}: expected {expected} ({with_what}), found {found}. The folders come from different checkpoints."
        )
