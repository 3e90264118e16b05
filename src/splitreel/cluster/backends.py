"""Chooses the backend that a config asks for."""

from __future__ import annotations

from splitreel.cluster.local import LocalBackend
from splitreel.config import Config
from splitreel.engine.backend import Backend
from splitreel.roles.definition import ModelDefinition


def make_backend(model: ModelDefinition, config: Config) -> Backend:
    """`cluster.address: local` gives the local backend, anything else Ray (which is imported only then)."""
    if config.cluster.address == "local":
        return LocalBackend(model, config)
    from splitreel.cluster.ray_backend import RayBackend

    return RayBackend(model, config)
