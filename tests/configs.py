"""What several test folders build configs with."""

from __future__ import annotations

from typing import Any

from splitreel.config import Config, parse_config


def roles_config(
    address: str,
    model: str = "tiny",
    workflow: Any = "t2va",
    *,
    encoder_decoder: dict[str, Any] | None = None,
    dit: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
) -> Config:
    """Two roles on the CPU, one thread each."""
    role = {"device": "cpu", "dtype": "float32", "threads": 1}
    return parse_config(
        {
            "model": {"path": model, "workflow": workflow},
            "cluster": {"address": address},
            "roles": {"encoder_decoder": {**role, **(encoder_decoder or {})}, "dit": {**role, **(dit or {})}},
            "engine": {"start_timeout": 120.0, **(engine or {})},
        }
    )
