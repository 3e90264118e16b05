"""MiniMax-H3 as a `ModelDefinition`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from splitreel.config import CacheSpec, RoleSpec
from splitreel.errors import CheckpointError
from splitreel.h3 import cut
from splitreel.h3.attention import attention_parts
from splitreel.h3.decoding import DecodeProgram
from splitreel.h3.geometry import Geometry, read_geometry
from splitreel.h3.ladder import scheduled
from splitreel.h3.lora import adapter_resolve, closed_modules
from splitreel.h3.payloads import SCHEMA, payload_spec
from splitreel.h3.programs import DenoiseProgram, EncodeProgram, Watches, build_pipeline
from splitreel.h3.recipes import recipe_for
from splitreel.h3.schedules import make_expected_tables
from splitreel.h3.tiny import cached_tiny
from splitreel.h3.warmup import warm_up
from splitreel.request import Stage
from splitreel.roles.adapters.bind import Resolve
from splitreel.roles.checkpoint import Checkpoint, ComponentFiles
from splitreel.roles.definition import AttentionPart, StageProgram
from splitreel.roles.loading import Recipe
from splitreel.roles.step_cache import enable_cache
from splitreel.wire import PayloadSpec


@dataclass(frozen=True)
class MiniMaxH3:
    """Video with stereo sound, in three workflows."""

    name: str = "MiniMax-H3"
    workflows: tuple[str, ...] = cut.WORKFLOWS

    @property
    def schema(self) -> tuple[int, int]:
        """The version of payloads of this machine's package: no field, which would travel with the driver's."""
        return SCHEMA

    def locate(self, path: str) -> str:
        """`tiny` and `tiny:other` make and cache a tiny checkpoint on this machine; anything else is a path already."""
        name, _, geometry = path.partition(":")
        if name != "tiny":
            return path
        if geometry not in ("", "released", "other"):
            raise CheckpointError(
                f"model.path: expected tiny, tiny:released or tiny:other, found {path!r}.", component="", file=path
            )
        return str(cached_tiny("other" if geometry == "other" else "released"))

    def components(self, workflows: Sequence[str], stages: Sequence[Stage]) -> tuple[ComponentFiles, ...]:
        """The components that these stages need, small ones first."""
        return cut.component_files(tuple(workflows), tuple(stages))

    def attention_parts(
        self, checkpoint: Checkpoint, workflows: Sequence[str], stages: Sequence[Stage]
    ) -> tuple[AttentionPart, ...]:
        """The transformer's blocks and text refiner, and the video VAE's decoder, as far as these stages run them."""
        return attention_parts(checkpoint, workflows, stages)

    def repeated_blocks(self, name: str, component: Any) -> list[Any]:
        """The transformer's blocks and refiner, the text encoder's decoder layers, the VAE decoder's blocks."""
        if name.startswith("transformer"):
            return [*component.transformer_blocks, *component.token_refiner.refiner_blocks]
        if name == "text_encoder":
            return list(component.model.language_model.layers)
        return list(component.decoder.transformer_blocks)

    def warm_up(self, name: str, component: Any, device: str) -> None:
        """One small pass."""
        warm_up(name, component, device)

    def enable_cache(self, name: str, component: Any, cache: CacheSpec) -> bool:
        """Hook a step cache into a transformer."""
        if not name.startswith("transformer"):
            return False
        enable_cache(component, cache, "transformer_blocks")
        return True

    def component_class(self, name: str) -> type:
        """The class that diffusers' blocks declare for a component."""
        for workflow in cut.WORKFLOWS:
            for stage in Stage:
                types = cut.component_types(workflow, stage)
                if name in types:
                    return types[name]
        raise KeyError(name)

    def recipe(self, name: str, checkpoint: Checkpoint, spec: RoleSpec) -> Recipe:
        """How a component with weights is built and filled."""
        return recipe_for(name, self.component_class(name), checkpoint, spec)

    def adapted(self, name: str, component: Any, checkpoint: Checkpoint, spec: RoleSpec) -> Any:
        """Schedulers, checked against the preset and with its noise levels."""
        return scheduled(name, component, spec.schedule, str(checkpoint.root / name / "scheduler_config.json"))

    def read_geometry(self, checkpoint: Checkpoint, workflows: Sequence[str]) -> Geometry:
        """Read and cross-check the components' configurations."""
        return read_geometry(checkpoint, workflows)

    def payload_spec(self, stage: Stage, workflow: str, geometry: Geometry) -> PayloadSpec:
        """What a stage takes in."""
        return payload_spec(stage, workflow, geometry)

    def passing_values(self, stage: Stage) -> Set[str] | None:
        """Prompt states and condition latents do not depend on what the denoise stage draws or the decode stage writes."""
        return frozenset({"seed", "steps", "output", "lora"}) if stage is Stage.ENCODE else None

    def adapted_component(self, workflow: str) -> str:
        """The transformer that denoises: the two have modules of the same names and different weights."""
        return next(name for name in cut.component_types(workflow, Stage.DENOISE) if name.startswith("transformer"))

    def adapter_surface(self, name: str, component: Any) -> tuple[Resolve, Mapping[str, str]]:
        """diffusers' names and the original checkpoint's."""
        return adapter_resolve(component), closed_modules(component)

    def build_stage(
        self, stage: Stage, workflow: str, components: Mapping[str, Any], checkpoint: Checkpoint, geometry: Geometry
    ) -> StageProgram:
        """Make the program of one stage."""
        pipeline, report = build_pipeline(workflow, stage, components, checkpoint, geometry)
        match stage:
            case Stage.ENCODE:
                return EncodeProgram(workflow, pipeline, Watches(components))
            case Stage.DENOISE:
                make_expected_tables(pipeline, workflow, report.tables)
                return DenoiseProgram(workflow, pipeline, report)
            case Stage.DECODE:
                return DecodeProgram(pipeline, components["vae"], Watches(components))
