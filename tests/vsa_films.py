"""diffusers' unsplit pipeline with our sparse attention, to compare split films with."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import MiniMaxH3Blocks
from diffusers.modular_pipelines.minimax_h3 import MiniMaxH3ImageReference, MiniMaxH3VideoReference
from diffusers.utils import load_image
from safetensors.torch import load_file

from samples import Samples
from splitreel.config import VsaSpec
from splitreel.h3.vsa.gates import add_gates
from splitreel.h3.vsa.processor import VsaBegin, VsaRun, install


class SharedRun(VsaRun):
    """Diffusers copies the blocks it is given; the processors must hear of the copy's steps."""

    def __deepcopy__(self, memo: object) -> SharedRun:
        return self


@functools.cache
def unsplit(root: Path, case: str, samples: Samples | None, spec: VsaSpec, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames and sound of diffusers' own pipeline with our processor in its transformer, seed 3, float32.

    `samples`: for cases with media.
    """
    blocks = MiniMaxH3Blocks().get_workflow(case)
    name = "transformer_ref" if case == "ref2va" else "transformer"
    run = SharedRun(spec, "gather")
    blocks.sub_blocks["denoise.denoise"].sub_blocks.insert("vsa", VsaBegin(run), 0)
    pipeline = blocks.init_pipeline(str(root))
    pipeline.load_components(pretrained_model_name_or_path=str(root), dtype=torch.float32)
    transformer = getattr(pipeline, name)
    add_gates(transformer)
    stored = {
        key: value for file in sorted((root / name).glob("*.safetensors")) for key, value in load_file(file).items()
    }
    transformer.load_state_dict(stored, strict=True)
    install(transformer, spec, torch.device("cpu"))
    for block in transformer.transformer_blocks:
        block.attn.processor.run = run
    inputs: dict[str, Any] = {}
    if case == "fl2va" and samples is not None:
        inputs = {"image": load_image(str(samples.first)), "last_image": load_image(str(samples.last))}
    if case == "ref2va" and samples is not None:
        inputs["references"] = [
            MiniMaxH3ImageReference.from_file(samples.first),
            MiniMaxH3VideoReference.from_file(samples.clip),
        ]
    state = pipeline(
        prompt=f"A lake, {case}.",
        num_frames=124,
        num_inference_steps=steps,
        generator=torch.Generator("cpu").manual_seed(3),
        output_type="pt",
        **inputs,
    )
    return state.get("videos")[0].numpy(), state.get("audio")[0].numpy()
