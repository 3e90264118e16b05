"""The random weights of a tiny checkpoint: which numbers, and how large.

Each tensor is drawn from a counter-based generator keyed by seed, component and tensor name. The numbers are integers
scaled by one multiplication, so they depend neither on the order of drawing nor on threads, torch's generators or the
kind of CPU: two machines that make the same checkpoint get the same weights.

Sizes follow from one rule, `gain / sqrt(fan_in)`, with exceptions per component. They keep every activation near one,
so that nothing overflows in bfloat16, nothing saturates, and every input (prompt, keyframes, references, sound, time)
is seen in what comes out. The exceptions also fill what diffusers initializes to zero.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn


@dataclass(frozen=True)
class Rule:
    """How to fill the tensors whose name matches `pattern` (a regular expression, searched).

    Values are uniform around `mean` with standard deviation `std`, or `gain / sqrt(fan_in)` when `std` is None.
    """

    pattern: str
    mean: float = 0.0
    std: float | None = None
    gain: float = 1.0


GENERAL: tuple[Rule, ...] = (
    Rule(r"norm\w*(\.\d+)?\.weight$", mean=1.0, std=0.1),
    Rule(r"bias$", std=0.1),
    Rule(r""),
)

TRANSFORMER: tuple[Rule, ...] = (
    # Sharper attention than unit queries give: a row must feel a few rows, not the mean of 700.
    Rule(r"norm_[qk]\.weight$", mean=2.0, std=0.2),
    Rule(r"(adaln_proj|norm_out)\.linear\.weight$", gain=1.0),
    Rule(r"(adaln_proj|norm_out)\.linear\.bias$", std=0.4),
    Rule(r"ff\.net\.2\.weight$", gain=2.0),
    Rule(r"attn\.to_out\.0\.weight$", gain=4.0),
)

VAE: tuple[Rule, ...] = (
    Rule(r"encoder\..*conv\d?\.weight$", gain=1.4),
    Rule(r"decoder\..*scale[12]$", mean=0.6, std=0.2),
    Rule(r"decoder\.register_tokens$", std=1.0),
    Rule(r"decoder\..*ff\.net\.2\.weight$", gain=2.0),
)

AUDIO_VAE: tuple[Rule, ...] = (
    # Weight norm: `weight_g` alone is the size of a filter, `weight_v` only its direction.
    Rule(r"weight_v$", std=1.0),
    Rule(r"encoder\..*block\.\d+\.block\.3\.weight_g$", mean=0.4, std=0.04),
    Rule(r"decoder\.resblocks\..*convs2\.\d+\.weight_g$", mean=0.4, std=0.04),
    # A fifth of full scale: loud enough to hear, far from the clamp.
    Rule(r"decoder\.conv_post\.weight_g$", mean=0.1, std=0.01),
    Rule(r"weight_g$", mean=1.0, std=0.1),
    Rule(r"encoder\..*alpha$", mean=1.0, std=0.1),
    Rule(r"decoder\..*(alpha|beta)$", std=0.2),
)

TEXT_ENCODER: tuple[Rule, ...] = (
    # Small steps: the stack adds up 64 of them (the state that is read comes out at a standard deviation of about 3).
    Rule(r"language_model\.layers\..*(o_proj|down_proj)\.weight$", gain=0.5),
    Rule(r"embed_tokens\.weight$", std=1.0),
    Rule(r"visual\.pos_embed\.weight$", std=0.5),
    Rule(r"deepstack_merger_list\..*linear_fc2\.weight$", gain=0.5),
    Rule(r"[qk]_norm\.weight$", mean=1.5, std=0.1),
)

RULES: dict[str, tuple[Rule, ...]] = {
    "transformer": TRANSFORMER,
    "transformer_ref": TRANSFORMER,
    "vae": VAE,
    "audio_vae": AUDIO_VAE,
    "text_encoder": TEXT_ENCODER,
}


def unit_values(seed: int, component: str, name: str, count: int) -> NDArray[np.float32]:
    """`count` values of mean 0 and variance 1, uniform, on a grid of 2**16 steps."""
    digest = hashlib.sha256(f"{seed}/{component}/{name}".encode()).digest()
    generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
    words = generator.random_raw(-(-count // 4)).astype("<u8")
    steps = words.view("<i2")[:count].astype(np.float32)
    return np.asarray((steps + np.float32(0.5)) * np.float32(math.sqrt(3.0) / 2**15), dtype=np.float32)


def fill(model: nn.Module, component: str, seed: int) -> None:
    """Overwrite every parameter of `model` in place; buffers (the resampling filters) stay as computed."""
    rules = RULES[component] + GENERAL
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.from_numpy(unit_values(seed, component, name, parameter.numel())).view(parameter.shape)
            rule = next(rule for rule in rules if re.search(rule.pattern, name))
            std = rule.gain / math.sqrt(fan_in(parameter.shape)) if rule.std is None else rule.std
            parameter.copy_(values * std + rule.mean)


def fan_in(shape: Sequence[int]) -> int:
    """Inputs that one output of this weight sums over; the length of a vector."""
    return math.prod(shape[1:]) if len(shape) > 1 else shape[0]


def latent_statistics(seed: int, component: str, channels: int) -> dict[str, tuple[float, ...]]:
    """`latents_mean` and `latents_std` of a VAE config: different for every channel, four decimals."""
    means = unit_values(seed, component, "latents_mean", channels) * 0.3
    stds = 1.0 + unit_values(seed, component, "latents_std", channels) * 0.2
    return {
        "latents_mean": tuple(round(float(value), 4) for value in means),
        "latents_std": tuple(round(float(value), 4) for value in stds),
    }


def adjust_vae(vae: Any) -> None:
    """Two things that depend on more than a tensor's name and shape, in place.

    The second half of the moments is a log variance: a small one, or the posterior's noise hides the image. And the
    decoder paints cells of 4 frames x 4 x 4 pixels, all of one color, because noise per pixel is nothing that an mp4
    can carry.
    """
    ratio, ratio_t = vae.spatial_compression_ratio, vae.temporal_compression_ratio
    with torch.no_grad():
        moments = vae.quant_conv.bias
        moments[moments.numel() // 2 :] -= 5.0
        for tensor in vae.decoder.proj_out.parameters():
            pixels = tensor.view(3, ratio_t, ratio, ratio, -1)
            cells = pixels[:, :1, ::4, ::4].clone()
            pixels.copy_(cells.repeat_interleave(4, 2).repeat_interleave(4, 3).expand_as(pixels))


def adjust_audio_vae(audio_vae: nn.Module) -> None:
    """Make up for the upsamplers, in place: one by r spreads its input over r times the samples."""
    with torch.no_grad():
        for module in audio_vae.modules():
            if isinstance(module, nn.ConvTranspose1d):
                module.get_parameter("weight_g").mul_(math.sqrt(module.stride[0] / 2))
