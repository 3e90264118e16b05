"""Which steps a request's transformer calls are for: told to the AdaLN tables before the first, or while the role loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from diffusers.modular_pipelines import BlockState, ModularPipelineBlocks
from diffusers.modular_pipelines.modular_pipeline_utils import InputParam

from splitreel.h3.adaln import Step, Tables
from splitreel.h3.geometry import GeometryPipeline
from splitreel.roles.control import StageControl

_VIDEO, _TEXT, _AUDIO = 0, 1, 2

# Whether a workflow's sequence has rows of conditions, as (pictures, sounds); sounds alone are refused (`rules`).
_CONDITIONS = {
    "t2va": ((False, False),),
    "fl2va": ((True, False),),
    "ref2va": ((True, False), (True, True)),
}


class TablesBegin(ModularPipelineBlocks):  # type: ignore[misc]
    """A block of our own at the start of diffusers' denoising loop: before the first step, all steps' tables are there."""

    model_name = "minimax-h3"

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self.tables = tables
        self.control: StageControl | None = None

    @property
    def description(self) -> str:
        return "Makes the AdaLN tables of the schedule unless they are kept."

    @property
    def inputs(self) -> list[InputParam]:
        return [InputParam("row_timestep_plan", type_hint=list, required=True)]

    def __call__(self, components: Any, block_state: BlockState, i: int, t: torch.Tensor) -> tuple[Any, BlockState]:
        if i == 0:
            tags = block_state.denoiser_input_fields["token_tags"]
            steps = [Step.of(timestep, indices, tags) for timestep, indices in block_state.row_timestep_plan]
            if self.control is None:
                self.tables.use(steps)
            else:
                self.tables.use(steps, self.control.span, self.control.check)
        return components, block_state


def make_expected_tables(pipeline: GeometryPipeline, workflow: str, begin: TablesBegin | None) -> None:
    """Make the tables that `memory.adaln_steps` asks for, for every kind of sequence of this workflow."""
    if begin is None:
        return
    for number in begin.tables.expected:
        for steps in expected_steps(pipeline, workflow, number):
            begin.tables.use(steps, expected=True)


def expected_steps(pipeline: GeometryPipeline, workflow: str, num_inference_steps: int) -> Iterator[list[Step]]:
    """The steps of a schedule, for each kind of sequence that the workflow's requests have.

    From diffusers' own arithmetic, over a sequence that has one row of each kind.
    """
    block = pipeline.blocks.sub_blocks["denoise.set_timesteps"]
    timesteps = []
    for scheduler in (pipeline.scheduler, pipeline.audio_scheduler):
        scheduler.set_timesteps(num_inference_steps, device=pipeline._execution_device)
        timesteps.append([float(value) for value in scheduler.timesteps])
    for pictures, sounds in _CONDITIONS[workflow]:
        text = [_TEXT] if workflow == "t2va" else [_TEXT, _VIDEO]
        tags = torch.tensor([*text, *[_VIDEO] * (1 + pictures), *[_AUDIO] * (1 + sounds)])
        video = torch.arange(len(text), len(text) + 1 + pictures)
        audio = torch.arange(len(text) + len(video), len(tags))
        noise = pipeline.keyframe_noise_aug
        plan = [
            block.build_row_timesteps(
                video, audio, int(pictures), int(sounds), len(text), picture, sound, max(picture, noise), 1.0
            )
            for picture, sound in zip(*timesteps, strict=True)
        ]
        yield [Step.of(timestep.to(pipeline._execution_device), indices, tags) for timestep, indices in plan]
