"""The cut: which diffusers block of which workflow belongs to which stage.

The table is written out rather than derived, so that a diffusers release which adds, drops or renames a block is
noticed (`check_cut`) instead of being cut by accident.
"""

from __future__ import annotations

from typing import Any

import diffusers

from splitreel.errors import CheckpointError
from splitreel.request import Stage
from splitreel.roles.checkpoint import ComponentFiles

WORKFLOWS = ("t2va", "fl2va", "ref2va")

_DECODE = {"decode.video": Stage.DECODE, "decode.audio": Stage.DECODE}

CUT: dict[str, dict[str, Stage]] = {
    "t2va": {
        "text_encoder": Stage.ENCODE,
        "denoise.no_keyframe_anchors": Stage.DENOISE,
        "denoise.prepare_layout": Stage.DENOISE,
        "denoise.prepare_latents": Stage.DENOISE,
        "denoise.set_timesteps": Stage.DENOISE,
        "denoise.denoise": Stage.DENOISE,
        "denoise.after_denoise": Stage.DENOISE,
        **_DECODE,
    },
    "fl2va": {
        "before_encode": Stage.ENCODE,
        "text_encoder": Stage.ENCODE,
        "vae_encoder": Stage.ENCODE,
        "denoise.prepare_layout": Stage.DENOISE,
        "denoise.prepare_condition_latents": Stage.DENOISE,
        "denoise.prepare_latents": Stage.DENOISE,
        "denoise.prepare_latents_fl2va": Stage.DENOISE,
        "denoise.set_timesteps": Stage.DENOISE,
        "denoise.denoise": Stage.DENOISE,
        "denoise.after_denoise": Stage.DENOISE,
        **_DECODE,
    },
    "ref2va": {
        "before_encode": Stage.ENCODE,
        "text_encoder": Stage.ENCODE,
        "vae_encoder": Stage.ENCODE,
        "denoise.prepare_layout": Stage.DENOISE,
        "denoise.prepare_condition_latents": Stage.DENOISE,
        "denoise.prepare_latents": Stage.DENOISE,
        "denoise.prepare_latents_ref2va": Stage.DENOISE,
        "denoise.set_timesteps": Stage.DENOISE,
        "denoise.denoise": Stage.DENOISE,
        "denoise.after_denoise": Stage.DENOISE,
        **_DECODE,
    },
}

# Which files each component's folder must hold. The order is the order of loading: large weights last would leave a
# broken small file unnoticed for minutes, so small ones come first.
_FILES: dict[str, ComponentFiles] = {
    "tokenizer": ComponentFiles(
        "tokenizer", (("tokenizer_config.json",), ("tokenizer.json", "vocab.json")), weights=False
    ),
    "processor": ComponentFiles("processor", (("processor_config.json", "preprocessor_config.json"),), weights=False),
    "scheduler": ComponentFiles("scheduler", (("scheduler_config.json",),), weights=False),
    "audio_scheduler": ComponentFiles("audio_scheduler", (("scheduler_config.json",),), weights=False),
    "audio_vae": ComponentFiles("audio_vae", (("config.json",),), weights=True),
    "vae": ComponentFiles("vae", (("config.json",),), weights=True),
    "text_encoder": ComponentFiles("text_encoder", (("config.json",),), weights=True),
    "transformer": ComponentFiles("transformer", (("config.json",),), weights=True),
    "transformer_ref": ComponentFiles("transformer_ref", (("config.json",),), weights=True),
}


def stage_blocks(workflow: str, stage: Stage) -> Any:
    """The blocks of one stage, in order, as diffusers' sequential blocks. Fresh objects on every call."""
    blocks = workflow_blocks(workflow)
    chosen = {name: block for name, block in blocks.items() if CUT[workflow][name] is stage}
    return diffusers.modular_pipelines.SequentialPipelineBlocks.from_blocks_dict(chosen)


def workflow_blocks(workflow: str) -> dict[str, Any]:
    """diffusers' pruned blocks of a workflow, by name; checked against the cut."""
    blocks = dict(diffusers.MiniMaxH3Blocks().get_workflow(workflow).sub_blocks)
    check_cut(workflow, list(blocks))
    return blocks


def check_cut(workflow: str, names: list[str]) -> None:
    """Raise unless the cut covers exactly these blocks, in this order."""
    known = list(CUT[workflow])
    if names != known:
        missing = [name for name in names if name not in known]
        gone = [name for name in known if name not in names]
        raise CheckpointError(
            f"diffusers {diffusers.__version__}: expected the {workflow} blocks of 0.42.1, found "
            f"{'new ' + ', '.join(missing) if missing else ''}{' without ' + ', '.join(gone) if gone else ''}"
            f"{'' if missing or gone else 'another order'}. Install diffusers 0.42.",
            component="diffusers",
            file="",
        )


def component_types(workflow: str, stage: Stage) -> dict[str, type]:
    """The loadable components that one stage's blocks declare, with their classes."""
    return {
        spec.name: spec.type_hint
        for spec in stage_blocks(workflow, stage).expected_components
        if spec.default_creation_method == "from_pretrained"
    }


def component_files(workflows: tuple[str, ...], stages: tuple[Stage, ...]) -> tuple[ComponentFiles, ...]:
    """The components of these stages in loading order."""
    needed = {name for workflow in workflows for stage in stages for name in component_types(workflow, stage)}
    return tuple(files for name, files in _FILES.items() if name in needed)
