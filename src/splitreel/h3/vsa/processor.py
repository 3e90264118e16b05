"""VSA-H3 in diffusers' transformer: an attention processor for its blocks, and what they share during a request."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3AttnProcessor, _apply_rotary_emb
from diffusers.modular_pipelines import BlockState, ModularPipelineBlocks
from diffusers.modular_pipelines.modular_pipeline_utils import InputParam

from splitreel.config import VsaSpec
from splitreel.errors import ConfigError
from splitreel.h3.vsa.attention import Kernel, Plan, kernel_for, vsa_attention
from splitreel.h3.vsa.gates import MODULE
from splitreel.h3.vsa.tiles import Tiles, make_tiles, segments_of
from splitreel.observe.logs import get_logger

logger = get_logger(__name__)


class VsaRun:
    """What the processors of one transformer share: settings, the running request's tiles and step, and their counts.

    `counts`: calls that were `sparse`, that were `dense` because of their step or layer (or sparsity), since `begin`.
    """

    def __init__(self, spec: VsaSpec, kernel: Kernel) -> None:
        self.spec = spec
        self.kernel = kernel
        self.tiles: Tiles | None = None
        self.step = 0
        self.counts: Counter[str] = Counter()

    def begin(self, tiles: Tiles, step: int) -> None:
        """A step begins, number `step` from 0, over a sequence laid out in `tiles`."""
        if step == 0:
            self.counts.clear()
        self.tiles, self.step = tiles, step

    def end(self) -> None:
        """The request is over: whatever comes without tiles is dense."""
        self.tiles = None

    def plan(self, layer: int) -> Plan | None:
        """How a layer attends in this step; None outside of a request, such as while warming up."""
        if self.tiles is None:
            return None
        dense = self.step < self.spec.dense_first_steps or layer in self.spec.dense_layers
        plan = Plan(self.tiles, 0.0 if dense else self.spec.sparsity, self.spec.mode)
        self.counts["dense" if plan.dense else "sparse"] += 1
        return plan


class VsaProcessor(MiniMaxH3AttnProcessor):  # type: ignore[misc]
    """diffusers' own arithmetic around `vsa_attention`; what is dense goes to the backend that the layer was given."""

    def __init__(self, run: VsaRun, layer: int) -> None:
        self.run = run
        self.layer = layer
        self.gated = False

    @property
    def in_force(self) -> str:
        """Shown in health: the kernel and the settings, with the backend of dense calls."""
        spec = self.run.spec
        backend = getattr(self._attention_backend, "value", None) or "native"
        gates = "gates" if self.gated else "no gates"
        if self.layer in spec.dense_layers or spec.sparsity == 0:
            return f"{backend.lstrip('_')} (vsa dense, {gates})"
        return (
            f"vsa {self.run.kernel} (tile {spec.tile}, sparsity {spec.sparsity:g}, {spec.mode}, {gates}; dense calls "
            f"{backend.lstrip('_')})"
        )

    # Lists of tiles change with every call: nothing here is for the compiler but FlexAttention, which is compiled by itself.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        plan = self.run.plan(self.layer)
        if plan is None:
            whole: torch.Tensor = super().__call__(attn, hidden_states, rotary_emb, attention_mask)
            return whole
        query, key, value = (
            project(hidden_states).unflatten(-1, (attn.heads, -1)) for project in (attn.to_q, attn.to_k, attn.to_v)
        )
        query, key = attn.norm_q(query), attn.norm_k(key)
        if rotary_emb is not None:
            query, key = _apply_rotary_emb(query, *rotary_emb), _apply_rotary_emb(key, *rotary_emb)
        projection = getattr(attn, MODULE, None)
        gate = projection(hidden_states).unflatten(-1, (attn.heads, -1)) if projection is not None else None
        out = vsa_attention(query, key, value, plan, gate, kernel=self.run.kernel, dense=self._dense)
        out = attn.to_out[0](out.flatten(2, 3).type_as(query))
        result: torch.Tensor = attn.to_out[1](out)
        return result

    def _dense(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = dispatch_attention_fn(
            query,
            key,
            value,
            dropout_p=0.0,
            is_causal=False,
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        return attended


def install(transformer: Any, spec: VsaSpec, device: torch.device) -> VsaRun:
    """Give the blocks their processors; the text refiner keeps its own. Raises ConfigError for a layer that is none."""
    layers = len(transformer.transformer_blocks)
    if wrong := [layer for layer in spec.dense_layers if layer >= layers]:
        raise ConfigError(
            f"attention.vsa.dense_layers: expected layers from 0 to {layers - 1}, found {', '.join(map(str, wrong))}."
        )
    run = VsaRun(spec, kernel_for(device))
    for index, block in enumerate(transformer.transformer_blocks):
        processor = VsaProcessor(run, index)
        processor._attention_backend = block.attn.processor._attention_backend
        processor.gated = hasattr(block.attn, MODULE)
        block.attn.set_processor(processor)
    return run


def run_of(transformer: Any) -> VsaRun | None:
    """What the processors of a transformer share; None when it has none of ours."""
    processor = transformer.transformer_blocks[0].attn.processor
    return processor.run if isinstance(processor, VsaProcessor) else None


class VsaBegin(ModularPipelineBlocks):  # type: ignore[misc]
    """A block of our own at the start of diffusers' denoising loop: lays the sequence out in tiles."""

    model_name = "minimax-h3"

    def __init__(self, run: VsaRun) -> None:
        super().__init__()
        self._run = run

    @property
    def description(self) -> str:
        return "Tells the attention processors the sequence's tiles and the step."

    @property
    def inputs(self) -> list[InputParam]:
        return [InputParam(name, required=True) for name in _LAYOUT]

    def __call__(self, components: Any, block_state: BlockState, i: int, t: torch.Tensor) -> tuple[Any, BlockState]:
        tiles = self._run.tiles
        if i == 0 or tiles is None:
            layout = {name: getattr(block_state, name) for name in _LAYOUT}
            tiles = tiles_of(layout, components.patch_size, self._run.spec.tile)
        self._run.begin(tiles, i)
        return components, block_state


class VsaEnd(VsaBegin):
    """A block of our own at the end of the loop: after the last step, what comes next is no part of this request."""

    @property
    def description(self) -> str:
        return "Forgets the sequence's tiles after the last step."

    @property
    def inputs(self) -> list[InputParam]:
        return [InputParam("timesteps", required=True)]

    def __call__(self, components: Any, block_state: BlockState, i: int, t: torch.Tensor) -> tuple[Any, BlockState]:
        if i + 1 == len(block_state.timesteps):
            self._run.end()
            logger.debug("vsa: %s", ", ".join(f"{count} {kind}" for kind, count in sorted(self._run.counts.items())))
        return components, block_state


_LAYOUT = (
    "num_latent_frames",
    "latent_height",
    "latent_width",
    "text_indices",
    "video_indices",
    "audio_indices",
    "num_condition_video_rows",
    "num_condition_audio_rows",
)


def tiles_of(layout: dict[str, Any], patch_size: tuple[int, int, int], size: int) -> Tiles:
    """The tiles of diffusers' packed sequence, from what its layout block says of it.

    Before the generated video there are runs of text, conditions, reference sound and generated sound. With references
    they alternate; each run is a segment of its own, so that no tile holds two kinds of rows. (FastVideo, whose
    checkpoints are for sequences without references, counts rows by kind; without references the two are the same.)
    """
    sizes = (layout["num_latent_frames"], layout["latent_height"], layout["latent_width"])
    frames, height, width = (length // patch for length, patch in zip(sizes, patch_size, strict=True))
    text, video, audio = (layout[f"{name}_indices"] for name in ("text", "video", "audio"))
    kinds = torch.empty(len(text) + len(video) + len(audio), dtype=torch.int64)
    conditions, references = layout["num_condition_video_rows"], layout["num_condition_audio_rows"]
    for kind, rows in enumerate((text, video[:conditions], audio[:references], audio[references:], video[conditions:])):
        kinds[rows.cpu()] = kind
    prefix = len(kinds) - frames * height * width
    if not bool((kinds[prefix:] == 4).all()) or bool((kinds[:prefix] == 4).any()):
        raise AssertionError(f"expected the generated video's {frames} x {height} x {width} rows last")
    return make_tiles(segments_of(kinds[:prefix]), (frames, height, width), size, video.device)
