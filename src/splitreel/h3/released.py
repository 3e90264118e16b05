"""Sizes of the released checkpoint, and what a request of some size takes in memory and on the wire.

Needs neither torch nor diffusers, so that a plan is made before anything is installed or downloaded. What is copied
from diffusers 0.42.1 here is compared with it by tests/contract/test_plan_facts.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from splitreel.config import MemorySpec
from splitreel.h3.limits import Limits
from splitreel.request import Stage

REPOSITORY = "MiniMaxAI/MiniMax-H3"

# The components with weights that each stage needs.
STAGE_COMPONENTS: dict[str, dict[Stage, tuple[str, ...]]] = {
    "t2va": {
        Stage.ENCODE: ("text_encoder",),
        Stage.DENOISE: ("transformer",),
        Stage.DECODE: ("vae", "audio_vae"),
    },
    "fl2va": {
        Stage.ENCODE: ("text_encoder", "vae"),
        Stage.DENOISE: ("transformer",),
        Stage.DECODE: ("vae", "audio_vae"),
    },
    "ref2va": {
        Stage.ENCODE: ("text_encoder", "vae", "audio_vae"),
        Stage.DENOISE: ("transformer_ref",),
        Stage.DECODE: ("vae", "audio_vae"),
    },
}


@dataclass(frozen=True)
class Values:
    """How many numbers a component's files hold.

    plain   in the dtype asked for, those below among them
    pinned  in float32 whatever is asked for
    unread  of the text encoder: what is only loaded with `text_encoder: full`
    adaln   of a transformer: the projections that `adaln: tables` does without
    matrices  in linear layers that quantising takes, without those above; `rows` of them, each with a scale
    gates     of a transformer: the gates of sparse attention, in `plain` and `matrices` too, with `gate_rows` of `rows`
    """

    plain: int
    pinned: int = 0
    unread: int = 0
    adaln: int = 0
    matrices: int = 0
    rows: int = 0
    gates: int = 0
    gate_rows: int = 0

    def without_gates(self) -> Values:
        """The same where no sparse attention is asked for, which leaves the gates in the files."""
        plain, matrices, rows = self.plain - self.gates, self.matrices - self.gates, self.rows - self.gate_rows
        return replace(self, plain=plain, matrices=matrices, rows=rows, gates=0, gate_rows=0)

    def bytes_in(self, item_size: int, memory: MemorySpec, quantization: str | None = None) -> int:
        """Bytes once loaded with `item_size` bytes per number and these memory settings."""
        plain = self.plain - (self.unread if memory.text_encoder == "used" else 0)
        plain -= self.adaln if memory.adaln == "tables" else 0
        if quantization is not None:
            small = self.matrices + (self.adaln if memory.adaln != "tables" else 0)
            return (plain - small) * item_size + small + self.rows * 5 + self.pinned * 4
        return plain * item_size + self.pinned * 4


# Counted on the classes: the defaults of diffusers', which are the released configuration (10.4 (float32), 0.6 (float32)
# and twice 66.3 GB), and Qwen3-VL-32B's (66.7 GB).
RELEASED: dict[str, Values] = {
    "text_encoder": Values(33_357_390_064, unread=7_604_294_144, matrices=24_379_392_000, rows=3_584_000),
    "vae": Values(2_423_232_088, 180_636_896),
    "audio_vae": Values(0, 151_321_489),
    "transformer": Values(33_105_770_752, 17_222_144, 0, 13_039_369_728, 19_267_584_000, 3_046_400),
    "transformer_ref": Values(33_105_770_752, 17_222_144, 0, 13_039_369_728, 19_267_584_000, 3_046_400),
}


@dataclass(frozen=True)
class Dims:
    """The dimensions that memory depends on. Defaults are the release's."""

    spatial_ratio: int = 16
    temporal_ratio: int = 4
    clip_length: int = 17
    latent_channels: int = 24
    audio_channels: int = 32
    patch: int = 2
    text_dim: int = 5120
    text_ffn: int = 25600
    hidden: int = 5376
    ffn: int = 14336
    layers: int = 50
    vae_encoder_channels: int = 128
    vae_decoder_dim: int = 2048

    @property
    def latents_per_chunk(self) -> int:
        """Latent frames of `clip_length` frames, 5 of 17 in the release."""
        return math.ceil(self.clip_length / self.temporal_ratio)

    @property
    def limits(self) -> Limits:
        """How long and how large films may be."""
        return Limits(self.spatial_ratio * self.patch, self.clip_length, self.latents_per_chunk)

    @classmethod
    def of_configs(cls, configs: Mapping[str, Mapping[str, Any]]) -> Dims:
        """From the components' config.json contents by component; what is absent keeps the release's value."""
        vae, text = configs.get("vae", {}), configs.get("text_encoder", {}).get("text_config", {})
        dit = configs.get("transformer") or configs.get("transformer_ref") or {}
        default = cls()
        heads, head = vae.get("decoder_num_attention_heads", 32), vae.get("decoder_attention_head_dim", 64)
        return cls(
            spatial_ratio=math.prod(vae.get("spatial_downsample_factors", [default.spatial_ratio])),
            temporal_ratio=math.prod(vae.get("temporal_downsample_factors", [default.temporal_ratio])),
            clip_length=vae.get("clip_length", default.clip_length),
            latent_channels=vae.get("latent_channels", default.latent_channels),
            audio_channels=dit.get("audio_in_channels", default.audio_channels),
            patch=dit.get("patch_size", [1, 2, default.patch])[2],
            text_dim=text.get("hidden_size", default.text_dim),
            text_ffn=text.get("intermediate_size", default.text_ffn),
            hidden=dit.get("hidden_size", default.hidden),
            ffn=dit.get("ffn_dim", default.ffn),
            layers=dit.get("num_layers", default.layers),
            vae_encoder_channels=vae.get("block_out_channels", [default.vae_encoder_channels])[0],
            vae_decoder_dim=heads * head,
        )


# Rows of (timestep, modality) that the steps of each kind of sequence use: its own three (picture, text, sound), and one for
# pictures and for sounds as conditions.
_TABLE_ROWS = {"t2va": (3,), "fl2va": (4,), "ref2va": (4, 5)}
# What is counted when no schedule is expected.
_USUAL_STEPS = 50


def table_bytes(component: str, workflows: Iterable[str], memory: MemorySpec, dims: Dims, item_size: int) -> int:
    """Bytes of a transformer's AdaLN tables: of the expected schedules, or of one of 50 steps per kind of sequence."""
    if memory.adaln != "tables" or not component.startswith("transformer"):
        return 0
    served = [name for name in workflows if (name == "ref2va") == (component == "transformer_ref")]
    calls = sum(steps - 1 for steps in memory.adaln_steps or (_USUAL_STEPS,))
    rows = sum(sum(_TABLE_ROWS[name]) for name in served)
    return calls * rows * dims.layers * 6 * dims.hidden * item_size


@dataclass(frozen=True)
class FilmSize:
    """What one request makes: pixels and frames, rows of prompt, and rows of conditions (keyframes, references)."""

    height: int = 768
    width: int = 1344
    num_frames: int = 124
    text_rows: int = 512
    condition_rows: int = 0
    references: bool = False

    def latent_frames(self, dims: Dims) -> int:
        """5 n + 2 for 17 n + 5 frames in the release."""
        per_chunk = dims.latents_per_chunk
        return (self.num_frames - per_chunk) // dims.clip_length * per_chunk + 2

    def latents(self, dims: Dims) -> int:
        """Numbers in the video latents."""
        area = (self.height // dims.spatial_ratio) * (self.width // dims.spatial_ratio)
        return dims.latent_channels * self.latent_frames(dims) * area

    def rows(self, dims: Dims) -> int:
        """Rows of the packed sequence: text, conditions, sound, picture."""
        area = (self.height // dims.spatial_ratio // dims.patch) * (self.width // dims.spatial_ratio // dims.patch)
        return self.text_rows + self.condition_rows + self._audio_rows + self.latent_frames(dims) * area

    @property
    def _audio_rows(self) -> int:
        return 2 * round(self.num_frames / 24 * 40)

    def encoded_bytes(self, dims: Dims) -> int:
        """The payload encode → denoise: prompt states in bfloat16, an int64 tag each, float32 condition latents."""
        condition = self.condition_rows * dims.latent_channels * dims.patch**2 * 4
        return self.text_rows * (dims.text_dim * 2 + 8) + condition

    def denoised_bytes(self, dims: Dims) -> int:
        """The payload denoise → decode: float32 latents of picture and sound."""
        return 4 * (self.latents(dims) + self._audio_rows * dims.audio_channels)

    def activation_bytes(self, stage: Stage, dims: Dims) -> int:
        """The most that a stage holds beside its weights, as diffusers' blocks run in bfloat16.

        encode: one layer's gated feed-forward and six row tensors; with references or keyframes one tile of the float32 VAE
        encoder: five feature maps at full resolution, and four frames.
        denoise: the block's gated feed-forward (both halves, their activation, the product) and five row tensors.
        decode: the film in float32 three times (decoded, scaled, clamped), or once and a tile of the VAE decoder.
        """
        match stage:
            case Stage.ENCODE:
                rows = self.text_rows * 2 * (6 * dims.text_dim + 3 * dims.text_ffn)
                tile = 256 * 256 * dims.vae_encoder_channels * 4
                frames = dims.clip_length if self.references else 1 if self.condition_rows else 0
                return max(rows, tile * (5 * frames + 4) if frames else 0)
            case Stage.DENOISE:
                return self.rows(dims) * 2 * (4 * dims.ffn + 5 * dims.hidden)
            case Stage.DECODE:
                film = self.num_frames * 3 * self.height * self.width * 4
                tokens = (256 // dims.spatial_ratio) ** 2 * (2 * dims.clip_length // dims.temporal_ratio)
                return max(3 * film, film + tokens * dims.vae_decoder_dim * 4 * 8)
