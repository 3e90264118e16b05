"""Chooses the backend that a config asks for."""

from __future__ import annotations

from collections.abc import Sequence

from splitreel.cluster.local import LocalBackend
from splitreel.config import Config
from splitreel.engine.backend import Backend
from splitreel.engine.limits import Deadlines, Limits
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


def bounds_of(config: Config) -> tuple[Limits, Deadlines]:
    """What the engine keeps to, as a config has it."""
    settings = config.engine
    limits = Limits(
        config.max_in_flight,
        settings.max_waiting,
        settings.retries,
        look_ahead=settings.look_ahead,
        parallel_decode=settings.parallel_decode,
    )
    return limits, Deadlines(
        settings.start_timeout, settings.request_timeout, settings.stage_timeout, settings.stop_timeout
    )
