"""Adapters against a checkpoint before either is loaded: keys and sizes, from headers and the model's configuration."""

from __future__ import annotations

import torch
from torch import Tensor

from splitreel.config import RoleSpec
from splitreel.errors import AdapterError
from splitreel.lora import AdapterOutline
from splitreel.request import Stage
from splitreel.roles.adapters.bind import Surface, bind_tensors
from splitreel.roles.adapters.rack import prefixes_of, surface_of
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.definition import ModelDefinition
from splitreel.roles.loading import unfilled
from splitreel.roles.weights import DTYPES


def check_adapters(model: ModelDefinition, spec: RoleSpec, checkpoint: Checkpoint) -> None:
    """Raise AdapterError for the first of `spec.adapters` that would be refused once everything is loaded.

    What only values show (NaN, an update of nothing) and memory are left to loading.
    """
    held = {need.name for need in model.components(spec.workflows, spec.stages)} if spec.adapters else set()
    for name in sorted({model.adapted_component(workflow) for workflow in spec.workflows}):
        outlines = [outline for outline in spec.adapters if outline.order.target == name]
        if name in held and outlines and Stage.DENOISE in spec.stages:
            recipe = model.recipe(name, checkpoint, spec)
            surface = surface_of(model, name, unfilled(recipe), "meta", lambda: 1 << 62, recipe)
            for outline in outlines:
                _check(outline, surface, prefixes_of(model))


def _check(outline: AdapterOutline, surface: Surface, prefixes: list[str]) -> None:
    tensors: dict[str, Tensor] = {key: torch.tensor(value) for key, value in outline.numbers.items()}
    for key, (dtype, shape) in outline.tensors.items():
        if dtype not in DTYPES:
            raise AdapterError(
                f"lora {outline.order.name}, {outline.order.source}: expected values of {', '.join(DTYPES)}, found {key} of "
                f"{dtype}. Convert the file.",
                file=outline.order.source,
            )
        tensors[key] = torch.empty(shape, dtype=DTYPES[dtype], device="meta")
    bind_tensors(outline.order, tensors, outline.metadata, surface, prefixes)
