"""Attention of one role: choose a backend for each part before weights load, put it into the layers, say what is in force.

What was asked for by name runs or start-up fails; only `auto` chooses. Nothing here changes what other models of this
process use: each layer's own backend is set, so diffusers' default for the process is never asked.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from splitreel.config import RoleSpec, known_backend
from splitreel.errors import ConfigError, WorkerNotReady
from splitreel.observe.logs import get_logger
from splitreel.roles.backends import AttentionCase, candidates, diffusers_backend, remedy, try_backend
from splitreel.roles.definition import AttentionPart

logger = get_logger(__name__)

DEFAULT_VARIABLE = "DIFFUSERS_ATTN_BACKEND"
# What the part is called in the config, and to people.
_SETTINGS = {
    "transformer": ("attention.backend", "the transformer's blocks"),
    "refiner": ("attention.refiner", "the text refiner"),
    "vae": ("attention.vae", "the VAE's decoder"),
}


@dataclass(frozen=True)
class AttentionChoice:
    """The backend of one part, and why."""

    part: AttentionPart
    backend: str
    reason: str


class Attention:
    """The attention of a role's components. `choose` before loading, `apply` to each component, then `in_force`."""

    def __init__(self, spec: RoleSpec) -> None:
        self._spec = spec
        self._choices: tuple[AttentionChoice, ...] = ()
        self._layers: dict[str, list[Any]] = {}
        self._text: dict[str, str] = {}

    def choose(self, parts: Sequence[AttentionPart]) -> tuple[AttentionChoice, ...]:
        """Choose and try a backend for each part, and log it once. Raises WorkerNotReady from the original cause."""
        self._choices = tuple(self._choose(part) for part in parts)
        for choice in self._choices:
            logger.info("attention of %s: %s (%s)", choice.part.name, choice.backend, choice.reason)
        return self._choices

    def apply(self, name: str, component: Any) -> None:
        """Give a loaded component's layers their backends; layers that no setting is for get native."""
        if not isinstance(component, torch.nn.Module):
            return
        layers = _attention_layers(component)
        for layer in layers:
            _set(layer, "native")
        parts = [choice for choice in self._choices if choice.part.component == name]
        chosen: set[int] = set()
        for choice in parts:
            inside = _attention_layers(component.get_submodule(choice.part.path))
            if not inside:
                raise WorkerNotReady(
                    f"{name}: expected attention layers in {choice.part.path}, found none. Install diffusers 0.42."
                )
            for layer in inside:
                _set(layer, choice.backend)
            self._layers[choice.part.name] = inside
            chosen.update(map(id, inside))
        others = [layer for layer in layers if id(layer) not in chosen]
        if others and not parts:
            self._layers[name] = others
        implementation = getattr(getattr(component, "config", None), "_attn_implementation", None)
        if implementation and not layers:
            self._text[name] = str(implementation)

    def in_force(self) -> dict[str, str]:
        """The backend of each part as its layers have it now; several are joined by commas."""
        found = {
            name: ", ".join(sorted({_backend(layer) for layer in layers})) for name, layers in self._layers.items()
        }
        return {**found, **self._text}

    def clear(self) -> None:
        """Forget the components."""
        self._layers.clear()
        self._text.clear()

    def _choose(self, part: AttentionPart) -> AttentionChoice:
        spec = self._spec.attention
        case = AttentionCase(self._spec.device, self._spec.torch_dtype(part.component), part.head_size)
        asked, reason = getattr(spec, part.setting), "asked for"
        if asked is None:
            asked, reason = _default()
        if asked == "auto":
            return _auto(part, case)
        if asked != "native":
            try:
                try_backend(asked, case, hub_kernels=spec.hub_kernels)
            except Exception as error:
                setting, people = _SETTINGS[part.setting]
                origin = setting if reason == "asked for" else f"{setting} ({DEFAULT_VARIABLE})"
                raise WorkerNotReady(
                    f"{origin}: expected {asked} to run for {people} ({case}), found {type(error).__name__}: {error} "
                    f"(python {sys.executable}). {remedy(asked, error)}",
                    error_type=type(error).__name__,
                    remote_traceback="".join(traceback.format_exception(error)),
                    python=sys.executable,
                    backend=asked,
                    setting=setting,
                ) from error
        return AttentionChoice(part, asked, reason)


def _auto(part: AttentionPart, case: AttentionCase) -> AttentionChoice:
    names, why = candidates(case)
    refused: list[str] = []
    for name in names:
        if name != "native":
            try:
                try_backend(name, case, hub_kernels=False)
            except Exception as error:
                refused.append(f"{name}: {type(error).__name__}: {error}")
                continue
        return AttentionChoice(part, name, "; ".join([f"auto: {why}", *refused]))
    raise AssertionError("native is always a candidate")


def _default() -> tuple[str, str]:
    """What a part gets whose setting is absent: what diffusers itself would use in this process."""
    value = os.environ.get(DEFAULT_VARIABLE)
    if not value:
        return "native", "default"
    try:
        return str(known_backend(value)), DEFAULT_VARIABLE
    except ValueError as error:
        raise ConfigError(f"{DEFAULT_VARIABLE}: {error}.") from None


def _attention_layers(module: torch.nn.Module) -> list[Any]:
    from diffusers.models.attention import AttentionModuleMixin  # seconds; a role without attention needs none of it

    return [layer for layer in module.modules() if isinstance(layer, AttentionModuleMixin)]


def _set(layer: Any, backend: str) -> None:
    if hasattr(layer.processor, "_attention_backend"):
        layer.processor._attention_backend = diffusers_backend(backend)


def _backend(layer: Any) -> str:
    """What a layer computes with: its processor's own word if it has one (`in_force`), else diffusers' backend."""
    processor = layer.processor
    own = getattr(processor, "in_force", None)
    if own is not None:
        return str(own)
    backend = getattr(processor, "_attention_backend", None)
    return str(getattr(backend, "value", backend)).lstrip("_") if backend is not None else type(processor).__name__
