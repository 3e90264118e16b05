"""VSA-H3 written out: a loop over tiles and a boolean mask over all pairs of rows. For tests, on any device.

Shares nothing with the fast paths but the numbers of tiles and rows, so that they can be held against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from splitreel.h3.vsa.choose import Mode
from splitreel.h3.vsa.tiles import TILE_SHAPES, Grid


def tile_rows(segments: Sequence[int], grid: Grid, size: int) -> list[list[int]]:
    """The rows of every tile, prefix tiles first; and each tile's rows in order."""
    tiles, start = [], 0
    for segment in segments:
        for first in range(0, segment, size):
            tiles.append([start + row for row in range(first, min(first + size, segment))])
        start += segment
    frames, heights, widths = grid
    dt, dh, dw = TILE_SHAPES[size]
    for t0 in range(0, frames, dt):
        for h0 in range(0, heights, dh):
            for w0 in range(0, widths, dw):
                tiles.append(
                    [
                        start + (t * heights + h) * widths + w
                        for t in range(t0, min(t0 + dt, frames))
                        for h in range(h0, min(h0 + dh, heights))
                        for w in range(w0, min(w0 + dw, widths))
                    ]
                )
    return tiles


def reference_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Sequence[int],
    grid: Grid,
    size: int,
    sparsity: float,
    mode: Mode = "exempt",
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """(B, S, H, D) → (B, S, H, D) in float32 (float64 stays), rounded by nobody. `gate`: (B, S, H, D) or None."""
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    q, k, v = (x.to(dtype).transpose(1, 2) for x in (query, key, value))  # (B, H, S, D)
    tiles = tile_rows(segments, grid, size)
    n, scale = len(tiles), 1 / math.sqrt(q.shape[-1])
    n_prefix = sum(-(-segment // size) for segment in segments)
    pooled_q, pooled_k, pooled_v = (torch.stack([x[:, :, rows].mean(2) for rows in tiles], dim=2) for x in (q, k, v))
    scores = pooled_q @ pooled_k.transpose(-2, -1) * scale

    n_video = n - n_prefix
    keep = max(1, min(math.ceil((1 - sparsity) * n_video), n_video))
    sees = torch.zeros(*scores.shape, dtype=torch.bool, device=q.device)
    for tile in range(n):
        if tile < n_prefix or keep == n_video:
            sees[:, :, tile] = True
            continue
        first, count = (n_prefix, keep) if mode == "exempt" else (0, keep + n_prefix)
        order = scores[:, :, tile, first:].argsort(dim=-1, descending=True)[..., :count] + first
        sees[:, :, tile].scatter_(-1, order, True)
        if mode == "exempt":
            sees[:, :, tile, :n_prefix] = True

    tile_of = torch.empty(q.shape[2], dtype=torch.int64, device=q.device)
    for tile, rows in enumerate(tiles):
        tile_of[rows] = tile
    row_sees = sees[:, :, tile_of][..., tile_of]  # (B, H, S, S)
    weights = torch.softmax((q @ k.transpose(-2, -1) * scale).masked_fill(~row_sees, -math.inf), dim=-1)
    out = weights @ v
    if gate is not None:
        coarse = torch.softmax(scores, dim=-1) @ pooled_v
        out = out + gate.to(dtype).transpose(1, 2) * coarse[:, :, tile_of]
    return out.transpose(1, 2)
