"""Where MiniMax-H3's attention layers are, and how large their heads."""

from __future__ import annotations

from collections.abc import Sequence

from splitreel.request import Stage
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.definition import AttentionPart


def attention_parts(
    checkpoint: Checkpoint, workflows: Sequence[str], stages: Sequence[Stage]
) -> tuple[AttentionPart, ...]:
    """The parts that an attention setting chooses for.

    Not among them: the sound VAE, whose one layer is causal (diffusers' varlen hub kernels would ignore that), and the
    text encoder, which is transformers'.
    """
    parts: list[AttentionPart] = []
    if Stage.DENOISE in stages:
        for name in sorted({"transformer_ref" if workflow == "ref2va" else "transformer" for workflow in workflows}):
            size = int(checkpoint.read_json(f"{name}/config.json", component=name).get("attention_head_dim", 128))
            parts += [
                AttentionPart(name, "transformer", name, "transformer_blocks", size),
                AttentionPart(f"{name}.refiner", "refiner", name, "token_refiner", size),
            ]
    if Stage.DECODE in stages:
        config = checkpoint.read_json("vae/config.json", component="vae")
        size = int(config.get("decoder_attention_head_dim", 64))
        parts.append(AttentionPart("vae", "vae", "vae", "decoder", size))
    return tuple(parts)
