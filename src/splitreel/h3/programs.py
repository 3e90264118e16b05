"""Encode and denoise as programs: payload in, diffusers' blocks, payload out. No model code of our own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from diffusers.modular_pipelines import BlockState, ModularPipelineBlocks
from diffusers.modular_pipelines.modular_pipeline_utils import InputParam
from torch import nn

from splitreel.h3.adaln import tables_of
from splitreel.h3.cut import stage_blocks
from splitreel.h3.geometry import Geometry, GeometryPipeline
from splitreel.h3.media import encode_inputs
from splitreel.h3.payloads import KINDS, SCHEMA
from splitreel.h3.schedules import TablesBegin
from splitreel.h3.vsa.processor import VsaBegin, VsaEnd, run_of
from splitreel.h3.watch import ModuleWatch, watched
from splitreel.request import Stage
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.control import StageControl
from splitreel.roles.step_cache import StepCache
from splitreel.wire import Payload

# diffusers logs "Error in block" and the traceback of whatever leaves its blocks, a cancel included; what is an error is
# reported by the role, once.
logging.getLogger("diffusers.modular_pipelines.modular_pipeline").addFilter(
    lambda record: not record.getMessage().lstrip().startswith("Error in block")
)

# Values of the request that travel on with every payload.
_CARRIED = ("num_frames", "height", "width", "steps", "seed", "output", "lora")


class EncodeProgram:
    """Prompt, keyframes and references → prompt states and condition latents."""

    def __init__(self, workflow: str, pipeline: GeometryPipeline, watches: Watches) -> None:
        self._workflow = workflow
        self._pipeline = pipeline
        self._watches = watches

    def __call__(self, payload: Payload, control: StageControl) -> Payload:
        inputs = encode_inputs(payload, self._pipeline.geometry)
        with (
            self._watches.layers.reporting(control, self._watches.num_layers),
            self._watches.encoder.reporting(control),
        ):
            state = self._pipeline(**inputs)
        names = ["prompt_embeds", "text_token_tags"]
        values: dict[str, Any] = {}
        if self._workflow != "t2va":
            names.append("condition_latents")
        if self._workflow == "fl2va":
            values["keyframe_anchors"] = list(state.get("keyframe_anchors"))
        if self._workflow == "ref2va":
            names.append("audio_condition_latents")
            values["references"] = [
                {"kind": reference.kind, "has_audio": bool(reference.has_audio)}
                for reference in state.get("normalized_references")
            ]
        return _onward(payload, Stage.DENOISE, {name: state.get(name) for name in names}, values)


class DenoiseProgram:
    """Prompt states and condition latents → latents. The noise is drawn here, on the CPU, from the request's seed."""

    def __init__(self, workflow: str, pipeline: GeometryPipeline, report: StepReport) -> None:
        self._workflow = workflow
        self._pipeline = pipeline
        self._report = report
        transformer = pipeline.transformer_ref if workflow == "ref2va" else pipeline.transformer
        self._cache = StepCache(transformer)
        self._vsa = run_of(transformer)
        # A step may take minutes: the wish to stop is looked at before each block.
        self._blocks = watched(transformer, transformer.transformer_blocks, "block")
        report.on_step = self._cache.step_done

    def __call__(self, payload: Payload, control: StageControl) -> Payload:
        values = payload.header.values
        inputs: dict[str, Any] = {
            **payload.tensors,
            "num_frames": values["num_frames"],
            "height": values["height"],
            "width": values["width"],
            "num_inference_steps": values["steps"],
            "generator": torch.Generator("cpu").manual_seed(values["seed"]),
        }
        if self._workflow == "fl2va":
            inputs["keyframe_anchors"] = tuple(values["keyframe_anchors"])
        if self._workflow == "ref2va":
            inputs["normalized_references"] = [ReferenceShape(**item) for item in values["references"]]
        control.step("step", 0, values["steps"] - 1)
        device = self._pipeline._execution_device
        with self._cache.request(), self._report.reporting(control), self._blocks.reporting(control, pace=device):
            state = self._pipeline(**inputs)
        tensors = {"latents": state.get("latents"), "audio_latents": state.get("audio_latents")}
        return _onward(
            payload,
            Stage.DECODE,
            tensors,
            {
                "transformer_calls": self._report.calls,
                "cached_steps": self._cache.saved,
                "sparse_attention_calls": self._vsa.counts["sparse"] if self._vsa is not None else 0,
                "dense_attention_calls": self._vsa.counts["dense"] if self._vsa is not None else 0,
            },
        )


class ReferenceShape:
    """What the ref2va layout reads of a reference: its kind and whether it has sound. The media stay behind."""

    def __init__(self, kind: str, has_audio: bool) -> None:
        self.kind = kind
        self.has_audio = has_audio


class StepReport(ModularPipelineBlocks):  # type: ignore[misc]
    """A block of our own at the end of diffusers' denoising loop: reports each step, and stops there when asked to."""

    model_name = "minimax-h3"

    def __init__(self) -> None:
        super().__init__()
        self._control: StageControl | None = None
        self.calls = 0
        self.on_step: Callable[[], bool] = lambda: False
        self.tables: TablesBegin | None = None

    @property
    def description(self) -> str:
        return "Reports that a denoising step is done."

    @property
    def inputs(self) -> list[InputParam]:
        return [InputParam("timesteps", type_hint=torch.Tensor, required=True)]

    def reporting(self, control: StageControl) -> StepReport:
        """Attach the control of the run that follows; a context manager."""
        self._control = control
        self.calls = 0
        if self.tables is not None:
            self.tables.control = control
        return self

    def begin(self, i: int) -> None:
        """A step begins, number `i` from 0."""
        if self._control is not None:
            self._control.begin_part("step", i + 1)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        self._control = None
        if self.tables is not None:
            self.tables.control = None

    def __call__(self, components: Any, block_state: BlockState, i: int, t: torch.Tensor) -> tuple[Any, BlockState]:
        self.calls = i + 1
        self.on_step()
        if self._control is not None:
            self._control.end_part()
            self._control.step("step", i + 1, len(block_state.timesteps))
        return components, block_state


class StepBegin(ModularPipelineBlocks):  # type: ignore[misc]
    """A block of our own at the start of diffusers' denoising loop: what lies before it is not part of the first step."""

    model_name = "minimax-h3"

    def __init__(self, report: StepReport) -> None:
        super().__init__()
        self._report = report

    @property
    def description(self) -> str:
        return "Notes that a denoising step begins."

    def __call__(self, components: Any, block_state: BlockState, i: int, t: torch.Tensor) -> tuple[Any, BlockState]:
        self._report.begin(i)
        return components, block_state


class Watches:
    """The hooks on the components of encode and decode; all programs of a role have the same."""

    def __init__(self, components: Mapping[str, Any]) -> None:
        text_encoder, vae = components.get("text_encoder"), components.get("vae")
        none = ModuleWatch([], "")
        self.num_layers, self.layers, self.encoder, self.decoder = 0, none, none, none
        if text_encoder is not None:
            layers: nn.ModuleList = text_encoder.model.language_model.layers
            self.num_layers = len(layers)
            self.layers = watched(text_encoder, layers, "layer")
        if vae is not None:
            self.encoder = watched(vae.encoder, [vae.encoder], "tile")
            self.decoder = watched(vae.decoder, [vae.decoder], "chunk", spans=True)


def build_pipeline(
    workflow: str, stage: Stage, components: Mapping[str, Any], checkpoint: Checkpoint, geometry: Geometry
) -> tuple[GeometryPipeline, StepReport]:
    """diffusers' pipeline over the blocks of one stage, with the components that these blocks declare.

    Of decode's, only the sound's: pictures are decoded chunk by chunk (`decoding`).
    """
    blocks = stage_blocks(workflow, stage)
    if stage is Stage.DECODE:
        blocks.sub_blocks.pop("decode.video")
    report = StepReport()
    if stage is Stage.DENOISE:
        loop = blocks.sub_blocks["denoise.denoise"]
        loop.sub_blocks.insert("begin", StepBegin(report), 0)
        loop.sub_blocks.insert("report", report, len(loop.sub_blocks))
        transformer = components["transformer_ref" if workflow == "ref2va" else "transformer"]
        tables = tables_of(transformer)
        if tables is not None:
            report.tables = TablesBegin(tables)
            loop.sub_blocks.insert("tables", report.tables, 0)
        vsa = run_of(transformer)
        if vsa is not None:
            loop.sub_blocks.insert("vsa", VsaBegin(vsa), 0)
            loop.sub_blocks.insert("vsa_end", VsaEnd(vsa), len(loop.sub_blocks))
        loop.set_progress_bar_config(disable=True)
    pipeline = GeometryPipeline(
        blocks=blocks, pretrained_model_name_or_path=str(checkpoint.root), local_files_only=True
    )
    pipeline.geometry = geometry
    names = [spec.name for spec in blocks.expected_components if spec.default_creation_method == "from_pretrained"]
    pipeline.update_components(**{name: components[name] for name in names})
    return pipeline, report


def carried(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that travel on."""
    return {name: values[name] for name in _CARRIED}


def _onward(payload: Payload, to: Stage, tensors: Mapping[str, Any], values: Mapping[str, Any]) -> Payload:
    onward = {**carried(payload.header.values), **values}
    return Payload(replace(payload.header, kind=KINDS[to], schema=SCHEMA, values=onward), tensors)
