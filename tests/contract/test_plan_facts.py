"""What a plan knows by heart, compared with diffusers and with real files."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers.modular_pipelines.minimax_h3 import modular_pipeline
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from splitreel.config import MemorySpec
from splitreel.h3 import cut, limits
from splitreel.h3.geometry import read_geometry
from splitreel.h3.released import RELEASED, STAGE_COMPONENTS, Dims, FilmSize
from splitreel.h3.residency import KEPT_IN_FLOAT32
from splitreel.h3.tiny import cached_tiny
from splitreel.plan.sizes import components_of, read_sizes
from splitreel.request import Stage
from splitreel.roles.checkpoint import Checkpoint


@pytest.mark.parametrize("workflow", cut.WORKFLOWS)
@pytest.mark.parametrize("stage", Stage)
def test_each_stage_needs_what_the_cut_says(workflow: str, stage: Stage) -> None:
    expected = {files.name for files in cut.component_files((workflow,), (stage,)) if files.weights}
    assert set(STAGE_COMPONENTS[workflow][stage]) == expected


def test_the_limits_of_films_are_diffusers_own() -> None:
    assert limits.FPS == modular_pipeline.MINIMAX_H3_FPS
    assert limits.MIN_ASPECT == modular_pipeline.MINIMAX_H3_MIN_ASPECT_RATIO
    assert limits.MAX_ASPECT == modular_pipeline.MINIMAX_H3_MAX_ASPECT_RATIO


@pytest.mark.parametrize("kind", ["released", "other"])
def test_a_plan_has_the_limits_of_the_checkpoint(kind: str) -> None:
    folder = cached_tiny(kind)
    own = read_geometry(Checkpoint(folder, str(folder)), ("t2va",)).limits
    planned = read_sizes(folder, ("t2va",)).dims.limits
    assert replace(planned, canvas_max_pixels=own.canvas_max_pixels) == own


def classes() -> dict[str, Any]:
    return {
        name: kind
        for workflow in cut.WORKFLOWS
        for stage in Stage
        for name, kind in cut.component_types(workflow, stage).items()
    }


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ["vae", "audio_vae", "transformer"])
def test_the_release_counts_as_its_classes_do(name: str) -> None:
    kind = classes()[name]
    assert set(kind._keep_in_fp32_modules) == KEPT_IN_FLOAT32[name]
    with torch.device("meta"):
        module = kind()
    pinned = sum(
        p.numel() for key, p in module.named_parameters() if KEPT_IN_FLOAT32[name].intersection(key.split("."))
    )
    total = sum(p.numel() for p in module.parameters())
    assert (RELEASED[name].plain, RELEASED[name].pinned) == (total - pinned, pinned)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sizes_from_headers_are_what_loads(dtype: str) -> None:
    folder = cached_tiny("released")
    sizes = read_sizes(folder, ("t2va",))
    for name in components_of(tuple(Stage), ("t2va",)):
        module = classes()[name].from_pretrained(
            str(folder), subfolder=name, dtype=getattr(torch, dtype), local_files_only=True
        )
        loaded = sum(p.numel() * p.element_size() for p in module.parameters())
        assert sizes.bytes_of(name, dtype, MemorySpec(text_encoder="full")) == pytest.approx(loaded, rel=0.02), name


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive; on the meta device nothing is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in self.seen:
                    self.seen.add(key)
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._freed, key, size)
        return out

    def _freed(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


def test_a_transformer_block_takes_what_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The released block in bfloat16 at 1344x768x124, with an attention that needs nothing but its result."""
    from diffusers.models.transformers import transformer_minimax_h3 as module

    monkeypatch.setattr(module, "dispatch_attention_fn", lambda query, *rest, **options: torch.empty_like(query))
    film, dims = FilmSize(), Dims()
    rows = film.rows(dims)
    with torch.device("meta"), torch.inference_mode():
        block = module.MiniMaxH3TransformerBlock(dims.hidden, 56, 128, dims.ffn, 2688, 1e-5, 1e-5).to(torch.bfloat16)
        hidden = torch.empty(1, rows, dims.hidden, dtype=torch.bfloat16)
        angles = torch.empty(rows, 96)
        with Live() as live:
            block(
                hidden,
                torch.empty(3, 2688, dtype=torch.bfloat16),
                torch.zeros(rows, dtype=torch.long),
                (angles, angles),
            )
    taken = live.peak + hidden.nbytes
    planned = film.activation_bytes(Stage.DENOISE, dims)
    assert taken <= planned <= 1.15 * taken


@pytest.mark.parametrize("frames", [1, 17])
def test_the_video_encoder_takes_what_the_plan_says(frames: int) -> None:
    """One float32 tile of the released VAE: a keyframe, and a clip of a reference."""
    film = FilmSize(256, 256, condition_rows=64, text_rows=1, references=frames > 1)
    with torch.device("meta"), torch.inference_mode():
        vae = classes()["vae"]()
        with Live() as live:
            vae.encode(torch.empty(1, 3, frames, 256, 256))
    assert live.peak <= film.activation_bytes(Stage.ENCODE, Dims()) <= 1.3 * live.peak


def test_decoding_takes_what_the_plan_says() -> None:
    """The released VAE in bfloat16 with its pinned modules, and the pixel arithmetic of diffusers' decode block after it."""
    film = FilmSize(256, 256, num_frames=90)
    with torch.device("meta"), torch.inference_mode():
        vae = classes()["vae"]()
        for name, parameter in vae.named_parameters():
            if not KEPT_IN_FLOAT32["vae"].intersection(name.split(".")):
                parameter.data = parameter.data.to(torch.bfloat16)
        factor = torch.empty(1, 3, 1, 1, 1)
        with Live() as live:
            video = vae.decode(torch.empty(1, 24, 27, 16, 16), return_dict=False)[0]
            (video.float() * factor + factor).clamp(0, 1)
    assert tuple(video.shape) == (1, 3, 90, 256, 256)
    assert live.peak <= film.activation_bytes(Stage.DECODE, Dims()) <= 1.6 * live.peak
