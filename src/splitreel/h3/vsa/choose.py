"""Which key tiles each query tile attends to: tiles are pooled, their means compared, the best ones kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from splitreel.h3.vsa.tiles import Tiles

Mode = Literal["exempt", "compete"]
# Heads pooled at a time. All 56 at once would hold another float32 copy of q, k and v.
_HEADS_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class Choice:
    """What the video's query tiles see: the first `always` tiles (the prefix, or none), and `tiles`.

    `tiles`, int64 (B, H, video tiles, m), ascending. Query tiles of the prefix see everything.
    """

    always: int
    tiles: torch.Tensor


def kept(video: int, sparsity: float) -> int:
    """How many of `video` key tiles a query tile keeps.

    The ceil is of the float product, as the checkpoints were trained: at sparsity 0.7, 0.85 or 0.95 rounding makes it
    one more than exact arithmetic would for some counts (20 tiles at 0.95: 2, exactly 1).
    """
    return max(1, min(math.ceil((1 - sparsity) * video), video))


def pool(x: torch.Tensor, tiles: Tiles) -> torch.Tensor:
    """The mean of each tile's rows: (B, S, H, D) → (B, H, n, D) in float32 (float64 stays).

    Tiles of one size are summed together, which gives the same bits every time; adding rows at indices would not on a GPU.
    """
    batch, _, heads, channels = x.shape
    pooled = x.new_empty((batch, tiles.count, heads, channels), dtype=wide(x.dtype))
    for first in range(0, heads, _HEADS_AT_ONCE):
        part = slice(first, first + _HEADS_AT_ONCE)
        for members, rows in tiles.by_size:
            size = len(rows) // len(members)
            grouped = x[:, :, part].index_select(1, rows).to(pooled.dtype)
            pooled[:, members, part] = grouped.view(batch, len(members), size, -1, channels).sum(2) / size
    return pooled.transpose(1, 2)


def score(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """How much pooled queries care for pooled keys: (B, H, n, D) twice → (B, H, n, n), scaled by 1/√D."""
    return torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.shape[-1])


def choose(scores: torch.Tensor, tiles: Tiles, sparsity: float, mode: Mode) -> Choice | None:
    """The key tiles of each of the video's query tiles; None when that is all of them.

    `exempt`: the prefix, and the best of the video's. `compete`: as many, the best of all. Equal scores are taken in
    whatever order torch finds them.
    """
    keep = kept(tiles.video, sparsity)
    if keep == tiles.video:
        return None
    asking = scores[..., tiles.prefix :, :]
    if mode == "exempt":
        best = asking[..., tiles.prefix :].topk(keep, dim=-1, sorted=False).indices + tiles.prefix
        return Choice(tiles.prefix, best.sort(dim=-1).values)
    best = asking.topk(keep + tiles.prefix, dim=-1, sorted=False).indices
    return Choice(0, best.sort(dim=-1).values)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What tiles are pooled and ranked in."""
    return torch.float64 if dtype is torch.float64 else torch.float32
