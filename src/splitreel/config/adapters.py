"""Adapters that are loaded when a session opens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from splitreel.config.section import Section
from splitreel.lora import LoadOptions


class LoraConfig(Section):
    """One adapter; requests call it by its name in the config."""

    path: str = Field(
        description="A safetensors file, a folder with one, or a hub id: owner/name, or hf://owner/name/file.safetensors.",
        min_length=1,
    )
    scale: float = Field(default=1.0, description="For requests that name no adapters.")
    active: bool = Field(default=True, description="false: only requests that name it use it.")
    target: Literal["transformer", "transformer_ref"] | None = Field(
        default=None, description="Default: the one that the file names, else the first that is served."
    )
    alpha: float | None = Field(default=None, description="Instead of what the file states.")
    allow_unmatched: bool = Field(
        default=False, description="Ignore keys that fit nothing instead of refusing the file."
    )

    @field_validator("alpha")
    @classmethod
    def _not_nothing(cls, value: float | None) -> float | None:
        if value == 0:
            raise ValueError("expected a number other than 0, with which the adapter changes nothing")
        return value

    def options(self) -> LoadOptions:
        """What is said beside path, name and scale."""
        return {
            "target": self.target,
            "alpha": self.alpha,
            "allow_unmatched": self.allow_unmatched,
            "active": self.active,
        }
