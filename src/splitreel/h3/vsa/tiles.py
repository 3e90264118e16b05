"""Rows laid out in tiles: which rows belong together, in which order, and where a padded layout puts each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

# Rows of a tile → the block of the video grid (frames, rows, columns) that it covers.
TILE_SHAPES: dict[int, tuple[int, int, int]] = {64: (4, 4, 4), 256: (4, 8, 8)}

Grid = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Tiles:
    """A sequence of S rows in n tiles of at most `size` rows: prefix tiles first, then blocks of the video grid.

    `rows`, int64 (S,): the rows in tile order, within a tile in the sequence's order. `sizes`, n whole numbers.
    """

    size: int
    prefix: int
    sizes: tuple[int, ...]
    rows: torch.Tensor

    @property
    def count(self) -> int:
        """Number of tiles, n."""
        return len(self.sizes)

    @property
    def video(self) -> int:
        """Number of tiles of the video grid."""
        return len(self.sizes) - self.prefix

    @property
    def prefix_rows(self) -> int:
        """Rows before the video; in tile order they are rows 0 to this."""
        return sum(self.sizes[: self.prefix])

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each tile begins in tile order, and the end: n + 1 numbers."""
        total, starts = 0, [0]
        for size in self.sizes:
            total += size
            starts.append(total)
        return tuple(starts)

    @cached_property
    def size_tensor(self) -> torch.Tensor:
        """`sizes` as int64 (n,) on the rows' device."""
        return torch.tensor(self.sizes, dtype=torch.int64, device=self.rows.device)

    @cached_property
    def start_tensor(self) -> torch.Tensor:
        """Where each tile begins in tile order, int64 (n,)."""
        return torch.tensor(self.starts[:-1], dtype=torch.int64, device=self.rows.device)

    @cached_property
    def tile_of_row(self) -> torch.Tensor:
        """The tile of each row of the sequence, int64 (S,)."""
        of_row = torch.empty_like(self.rows)
        of_row[self.rows] = torch.repeat_interleave(self.size_tensor)
        return of_row

    @cached_property
    def slots(self) -> torch.Tensor:
        """Where the padded layout of n × size slots puts each row of the sequence, int64 (S,)."""
        within = torch.arange(len(self.rows), device=self.rows.device)
        within -= torch.repeat_interleave(self.start_tensor, self.size_tensor)
        slots = torch.empty_like(self.rows)
        slots[self.rows] = torch.repeat_interleave(self.size_tensor) * self.size + within
        return slots

    @cached_property
    def by_size(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """Per size that occurs: the tiles of that size, int64 (c,), and their rows, int64 (c * size,)."""
        groups = []
        for size in sorted(set(self.sizes)):
            tiles = torch.tensor([index for index, found in enumerate(self.sizes) if found == size])
            tiles = tiles.to(self.rows.device)
            places = self.start_tensor[tiles][:, None] + torch.arange(size, device=self.rows.device)
            groups.append((tiles, self.rows[places.flatten()]))
        return tuple(groups)


def make_tiles(segments: Sequence[int], grid: Grid, size: int, device: torch.device | str = "cpu") -> Tiles:
    """Tiles of the sequence `[segment 0 | segment 1 | … | video]`; kept for the next call with the same values.

    `segments`: rows of each run before the video, in order; none of them is mixed into one tile with another, empty ones
    are dropped. `grid`: the video's rows as (frames, rows, columns). Raises ValueError for a size that is not a key of
    `TILE_SHAPES`, for negative numbers, and for an empty grid.
    """
    if size not in TILE_SHAPES:
        raise ValueError(f"size: expected one of {', '.join(map(str, TILE_SHAPES))}, found {size}.")
    if min(grid) < 1 or min(segments, default=0) < 0:
        raise ValueError(f"expected a grid of at least one row and no negative segment, found {grid}, {segments}.")
    return _tiles(tuple(segment for segment in segments if segment), grid, size, torch.device(device))


@lru_cache(maxsize=16)
def _tiles(segments: tuple[int, ...], grid: Grid, size: int, device: torch.device) -> Tiles:
    prefix_sizes = [length for segment in segments for length in _chunks(segment, size)]
    frames, heights, widths = (
        list(_chunks(length, block)) for length, block in zip(grid, TILE_SHAPES[size], strict=True)
    )
    video_sizes = [t * h * w for t in frames for h in heights for w in widths]
    prefix_rows = sum(segments)
    # Sorting the rows by the number of their block is all there is to it: the sort is stable, so rows keep their order.
    block = _block_numbers(grid, TILE_SHAPES[size], (len(heights), len(widths)))
    rows = torch.cat([torch.arange(prefix_rows), prefix_rows + torch.argsort(block, stable=True)])
    tiles = Tiles(size, len(prefix_sizes), (*prefix_sizes, *video_sizes), rows.to(device))
    if sum(tiles.sizes) != prefix_rows + math.prod(grid) or len(rows) != sum(tiles.sizes):
        raise AssertionError(f"tiles of {segments} and {grid} do not cover the sequence")
    return tiles


def _block_numbers(grid: Grid, shape: Grid, counts: tuple[int, int]) -> torch.Tensor:
    t, h, w = (torch.arange(length) // block for length, block in zip(grid, shape, strict=True))
    return ((t[:, None, None] * counts[0] + h[None, :, None]) * counts[1] + w).flatten()


def _chunks(length: int, size: int) -> Iterator[int]:
    while length > 0:
        yield min(length, size)
        length -= size


def segments_of(kinds: torch.Tensor) -> tuple[int, ...]:
    """Lengths of the runs of equal values in `kinds`, any integer dtype, (prefix rows,)."""
    if not len(kinds):
        return ()
    return tuple(torch.unique_consecutive(kinds, return_counts=True)[1].tolist())
