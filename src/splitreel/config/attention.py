"""Which attention backend computes what: the names, and the settings of a role."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from splitreel.config.section import Section
from splitreel.config.slices import AttentionSpec, VsaSpec

# diffusers' backends without the underscore that some of its names begin with. Written out, so that a misspelt name is
# refused on the driver without importing diffusers; a test holds it against diffusers' own list.
ATTENTION_BACKENDS = (
    "native",
    "native_cudnn",
    "native_efficient",
    "native_flash",
    "native_math",
    "native_npu",
    "native_xla",
    "flex",
    "flash",
    "flash_varlen",
    "flash_3",
    "flash_varlen_3",
    "sage",
    "sage_varlen",
    "sage_qk_int8_pv_fp8_cuda",
    "sage_qk_int8_pv_fp8_cuda_sm90",
    "sage_qk_int8_pv_fp16_cuda",
    "sage_qk_int8_pv_fp16_triton",
    "xformers",
    "flash_hub",
    "flash_varlen_hub",
    "flash_3_hub",
    "flash_3_varlen_hub",
    "flash_4_hub",
    "sage_hub",
    "sage_blackwell_hub",
    "aiter_fa2_hub",
)
# FlashAttention 4 is in diffusers as a kernel from the hub only.
_ALIASES = {"flash_4": "flash_4_hub"}


def known_backend(value: Any) -> Any:
    """The name as it stands in `ATTENTION_BACKENDS`, or `auto`, or None as given. Raises ValueError with near names."""
    names = ("auto", *ATTENTION_BACKENDS, *_ALIASES)
    if value is None:
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected the name of an attention backend, such as auto or native, found {value!r}")
    name = value.strip().lower().lstrip("_")
    if name in names:
        return _ALIASES.get(name, name)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(names)}"
    raise ValueError(f"expected an attention backend, found {value!r}. {hint}")


BackendName = Annotated[str, BeforeValidator(known_backend)]


class VsaConfig(Section):
    """Video sparse attention: each tile of video rows attends to the tiles that suit it best, and to all that is no video."""

    tile: Literal[64, 256] = Field(default=64, description="Rows of a tile: 64 (4x4x4) or 256 (4x8x8).")
    sparsity: float = Field(
        default=0.9, ge=0, lt=1, description="Part of the video's tiles that a tile does not look at. 0 is dense."
    )
    mode: Literal["exempt", "compete"] = Field(
        default="exempt",
        description="exempt: text, conditions and sound are always looked at. compete: they are ranked with the video.",
    )
    dense_first_steps: int = Field(default=0, ge=0, description="Transformer calls at the start that are dense.")
    dense_layers: list[Annotated[int, Field(ge=0)]] = Field(
        default=[], description="Layers that are always dense, counted from 0."
    )

    def spec(self, over: VsaSpec | None = None) -> VsaSpec:
        """The same for a worker; what is not said here is as in `over`."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        if "dense_layers" in given:
            given["dense_layers"] = tuple(sorted(set(self.dense_layers)))
        return replace(over or VsaSpec(), **given)


class AttentionConfig(Section):
    """Attention of a role's components. Whatever is asked for by name runs, or the role does not start."""

    backend: BackendName | None = Field(
        default=None,
        description="The transformer's blocks: native (torch), auto (the fastest that runs there), or a name such as "
        "flash_3, flash_4, sage, flex. Default: the worker's DIFFUSERS_ATTN_BACKEND, else native.",
    )
    refiner: BackendName | None = Field(
        default=None, description="The transformer's text refiner. Default: as backend."
    )
    vae: BackendName | None = Field(
        default=None, description="The video VAE's decoder. Default: DIFFUSERS_ATTN_BACKEND, else native."
    )
    hub_kernels: bool = Field(
        default=False, description="Let *_hub backends fetch their kernel from the Hugging Face hub and run it."
    )

    vsa: VsaConfig | None = Field(
        default=None, description="Sparse attention of the transformer's blocks. null: none, whatever the preset says."
    )

    def spec(self, preset: VsaSpec | None = None) -> AttentionSpec:
        """The same for a worker, sparse attention by default as in `preset`."""
        if "vsa" in self.model_fields_set:
            preset = self.vsa.spec(preset) if self.vsa is not None else None
        return AttentionSpec(
            transformer=self.backend,
            refiner=self.refiner or self.backend,
            vae=self.vae,
            hub_kernels=self.hub_kernels,
            vsa=preset,
        )
