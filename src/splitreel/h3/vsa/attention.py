"""VSA-H3 as one function: pool, rank, choose, attend, add the coarse branch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.functional import scaled_dot_product_attention

from splitreel.h3.vsa.choose import Choice, Mode, choose, kept, pool, score
from splitreel.h3.vsa.gather import gather_attention
from splitreel.h3.vsa.tiles import Tiles

Kernel = Literal["gather", "flex"]
Sparse = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Tiles, Choice], torch.Tensor]
Dense = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def kernel_for(device: torch.device) -> Kernel:
    """The fast path of a device. On a CPU gathering is measured to be the faster one (`gather`)."""
    return "flex" if device.type == "cuda" else "gather"


@dataclass(frozen=True)
class Plan:
    """How one call attends: `sparsity` 0 is dense (the coarse branch stays)."""

    tiles: Tiles
    sparsity: float
    mode: Mode = "exempt"

    @property
    def dense(self) -> bool:
        """Whether every tile sees every tile."""
        return kept(self.tiles.video, self.sparsity) == self.tiles.video


def vsa_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: Plan,
    gate: torch.Tensor | None = None,
    *,
    kernel: Kernel | None = None,
    dense: Dense | None = None,
) -> torch.Tensor:
    """Attention over (B, S, H, D) in the sequence's order, after norms and rotation → the same, in the query's dtype.

    `gate` (B, S, H, D) weighs the coarse branch by row and channel. `dense` computes a call in which all is chosen.
    Raises ValueError when the sequence is not as long as the tiles.
    """
    tiles = plan.tiles
    if query.shape[1] != len(tiles.rows):
        raise ValueError(f"expected {len(tiles.rows)} rows, as laid out in tiles, found {query.shape[1]}.")
    if plan.dense and gate is None:
        return (dense or dense_attention)(query, key, value)
    scores = score(pool(query, tiles), pool(key, tiles))
    choice = choose(scores, tiles, plan.sparsity, plan.mode)
    if choice is None:
        out = (dense or dense_attention)(query, key, value)
    else:
        out = sparse_paths()[kernel or kernel_for(query.device)](query, key, value, tiles, choice)
    if gate is not None:
        # Every tile takes part, whatever was chosen, and none weighs more for having more rows.
        coarse = torch.softmax(scores, dim=-1) @ pool(value, tiles)
        out = out + gate * coarse.transpose(1, 2).to(gate.dtype).index_select(1, tiles.tile_of_row)
    return out


def sparse_paths() -> Mapping[Kernel, Sparse]:
    """The fast paths by name."""
    return {"gather": gather_attention, "flex": _flex}


def _flex(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tiles: Tiles, choice: Choice) -> torch.Tensor:
    from splitreel.h3.vsa.flex import flex_attention_over  # torch's compiler takes a second to import

    return flex_attention_over(query, key, value, tiles, choice)


def dense_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """torch's own attention over (B, S, H, D)."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return scaled_dot_product_attention(query, key, value).transpose(1, 2)
