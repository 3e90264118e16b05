"""What of the model stays in a worker's memory, and in which form: the settings of a role."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from splitreel.config.section import Section
from splitreel.config.slices import MemorySpec


class MemoryConfig(Section):
    """What of a role's components stays in memory. The defaults change no bit of a result."""

    text_encoder: Literal["used", "full"] = Field(
        default="used",
        description="used: the 50 layers whose output is read, without the language head. full: all that the files hold.",
    )
    adaln: Literal["projections", "tables"] = Field(
        default="projections",
        description="tables: keep what the transformer's AdaLN projections give for a schedule instead of the projections "
        "(39 % of it). A schedule that is new reads them from the files once.",
    )
    adaln_steps: list[Annotated[int, Field(ge=2)]] = Field(
        default_factory=list, description="Steps of the schedules whose tables are made while the role loads."
    )
    adaln_schedules: int = Field(default=2, ge=1, le=64, description="Schedules whose tables are kept.")
    quantization: dict[Literal["transformer", "transformer_ref", "text_encoder"], Literal["int8", "fp8"]] = Field(
        default_factory=dict,
        description="Linear layers in 8 bits, per component: {transformer: int8}. Changes results; needs torchao.",
    )

    @model_validator(mode="after")
    def _whole(self) -> MemoryConfig:
        if self.adaln_steps and self.adaln == "projections":
            raise ValueError(f"adaln_steps: expected adaln: tables beside it, found {self.adaln}")
        return self

    def spec(self) -> MemorySpec:
        """The same for a worker."""
        return MemorySpec(
            text_encoder=self.text_encoder,
            adaln=self.adaln,
            adaln_steps=tuple(dict.fromkeys(self.adaln_steps)),
            adaln_schedules=self.adaln_schedules,
            quantization=tuple(sorted(self.quantization.items())),
        )
