"""The fast path of a GPU: FlexAttention with a block mask, tiles padded to their full size and pads masked."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from splitreel.h3.vsa.choose import Choice
from splitreel.h3.vsa.tiles import Tiles


def flex_attention_over(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tiles: Tiles, choice: Choice
) -> torch.Tensor:
    """Exact attention of each row over the tiles chosen for its tile; (B, S, H, D) in and out."""
    laid_out = [padded(x, tiles) for x in (query, key, value)]
    options: dict[str, Any] = {}
    if query.is_cuda:
        # The kernel's own blocks must divide the mask's; its default of 128 rows does not divide a tile of 64.
        options["kernel_options"] = {"BLOCK_M": 64, "BLOCK_N": 64}
    out = _compiled()(*laid_out, block_mask=block_mask(tiles, choice), **options)
    return out.index_select(2, tiles.slots).transpose(1, 2)


def block_mask(tiles: Tiles, choice: Choice) -> BlockMask:
    """The choice as FlexAttention's block mask: whole tiles apart from those with pads, which are masked by slot."""
    batch, heads, _, _ = choice.tiles.shape
    device = choice.tiles.device
    sees = torch.zeros(batch, heads, tiles.count, tiles.count, dtype=torch.bool, device=device)
    sees[:, :, : tiles.prefix] = True
    sees[..., : choice.always] = True
    sees[:, :, tiles.prefix :].scatter_(-1, choice.tiles, True)
    whole = tiles.size_tensor == tiles.size
    filled = torch.zeros(tiles.count * tiles.size, dtype=torch.bool, device=device)
    filled[tiles.slots] = True

    def is_filled(_b: torch.Tensor, _h: torch.Tensor, _q: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        return filled[slot]

    return BlockMask.from_kv_blocks(
        *_numbered(sees & ~whole),
        *_numbered(sees & whole),
        BLOCK_SIZE=(tiles.size, tiles.size),
        mask_mod=is_filled,
        seq_lengths=(tiles.count * tiles.size, tiles.count * tiles.size),
        compute_q_blocks=False,
    )


def _numbered(sees: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many key tiles each query tile sees, int32 (B, H, n), and which: those first, int32 (B, H, n, n)."""
    seen_first = torch.argsort(sees.to(torch.int8), stable=True, dim=-1, descending=True)
    return sees.sum(-1, dtype=torch.int32), seen_first.int()


def padded(x: torch.Tensor, tiles: Tiles) -> torch.Tensor:
    """(B, S, H, D) → (B, H, n * size, D): every tile at its full size, pads zero."""
    laid_out = x.new_zeros((x.shape[0], x.shape[2], tiles.count * tiles.size, x.shape[3]))
    laid_out[:, :, tiles.slots] = x.transpose(1, 2)
    return laid_out


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., torch.Tensor]:
    return torch.compile(flex_attention, dynamic=False)
