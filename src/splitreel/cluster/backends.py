"""Chooses the backend that a config asks for."""

from __future__ import annotations

from collections.abc import Sequence

from splitreel.cluster.local import LocalBackend
from splitreel.config import Config
from splitreel.engine.backend import Backend
from splitreel.lora import AdapterOutline
from splitreel.roles.definition import ModelDefinition


def make_backend(model: ModelDefinition, config: Config, adapters: Sequence[AdapterOutline] = ()) -> Backend:
    """`cluster.address: local` gives the local backend, anything else Ray (which is imported only then).

    `adapters`: what workers that denoise check before they load.
    """
    if config.cluster.address == "local":
        return LocalBackend(model, config, adapters)
    from splitreel.cluster.ray_backend import RayBackend

    return RayBackend(model, config, adapters)
