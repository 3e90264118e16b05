"""What of the model stays in a worker's memory, and in which form: the settings of a role."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from splitreel.config.section import Section
from splitreel.config.slices import MemorySpec


class MemoryConfig(Section):
    """What of a role's components stays in memory. The defaults change no bit of a result."""

    text_encoder: Literal["used", "full"] = Field(
        default="used",
        description="used: the 50 layers whose output is read, without the language head. full: all that the files hold.",
    )

    def spec(self) -> MemorySpec:
        """The same for a worker."""
        return MemorySpec(text_encoder=self.text_encoder)
