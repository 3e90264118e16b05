"""What makes a role faster at a price: steps that reuse earlier work, and compiled blocks. Nothing here is on by itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from splitreel.config.section import Section
from splitreel.config.slices import CacheSpec

_SETTINGS = {"first_block": ("threshold",), "taylor_seer": ("interval", "start", "order")}


class CacheConfig(Section):
    """Denoising steps that reuse what earlier steps of the same request computed. Changes the film."""

    kind: Literal["first_block", "taylor_seer"] = Field(
        description="first_block: skip the other blocks while the first one's change is small. taylor_seer: predict the "
        "attention outputs of most steps from earlier ones."
    )
    threshold: float | None = Field(
        default=None, gt=0, lt=10, description="first_block: relative change below which a step is skipped (0.05)."
    )
    interval: int | None = Field(default=None, ge=2, le=100, description="taylor_seer: one full step in so many (5).")
    start: int | None = Field(
        default=None, ge=1, description="taylor_seer: full steps before the first prediction (3)."
    )
    order: int | None = Field(default=None, ge=0, le=4, description="taylor_seer: order of the prediction (1).")

    @model_validator(mode="after")
    def _own_settings(self) -> CacheConfig:
        foreign = [
            name
            for kind, names in _SETTINGS.items()
            for name in names
            if kind != self.kind and getattr(self, name) is not None
        ]
        if foreign:
            raise ValueError(
                f"expected settings of {self.kind} ({', '.join(_SETTINGS[self.kind])}), found {', '.join(foreign)}"
            )
        return self

    def spec(self) -> CacheSpec:
        """The same for a worker, with the defaults filled in."""
        given = {name: getattr(self, name) for name in _SETTINGS[self.kind] if getattr(self, name) is not None}
        return CacheSpec(self.kind, **given)


class CompileConfig(Section):
    """Components whose repeated blocks go through torch.compile while loading. Changes last bits."""

    transformer: bool = Field(default=False, description="The transformer's blocks and its text refiner.")
    text_encoder: bool = Field(default=False, description="The text encoder's decoder layers.")
    vae: bool = Field(default=False, description="The blocks of the video VAE's decoder.")

    def components(self) -> tuple[str, ...]:
        """The names of the components to compile."""
        names = {
            "transformer": ("transformer", "transformer_ref"),
            "text_encoder": ("text_encoder",),
            "vae": ("vae",),
        }
        return tuple(name for setting, group in names.items() if getattr(self, setting) for name in group)
