"""VSA-H3: tiles and counts as published, values worked by hand, and the fast paths against the plain one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from splitreel.h3.vsa.attention import Plan, dense_attention, vsa_attention
from splitreel.h3.vsa.choose import choose, kept, pool
from splitreel.h3.vsa.gather import gather_attention
from splitreel.h3.vsa.reference import reference_attention, tile_rows
from splitreel.h3.vsa.tiles import make_tiles, segments_of


def random_qkv(rows: int, heads: int, channels: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, rows, heads, channels, generator=generator).to(dtype) for _ in "qkvg"]


# Published values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "size", "tiles", "keep", "padding"),
    [
        ((37, 24, 42), 64, 10 * 6 * 11, 66, 0.13),  # 1344 x 768, 124 frames
        ((37, 24, 42), 256, 10 * 3 * 6, 18, 0.24),
        ((37, 15, 26), 64, 10 * 4 * 7, 28, 0.24),  # 832 x 480, 124 frames
    ],
)
def test_published_grids(grid: tuple[int, int, int], size: int, tiles: int, keep: int, padding: float) -> None:
    made = make_tiles((), grid, size)
    rows = math.prod(grid)
    assert made.video == made.count == tiles
    assert kept(tiles, 0.9) == keep
    assert sum(made.sizes) == rows
    assert tiles * size / rows - 1 == pytest.approx(padding, abs=0.006)
    if size == 64 and grid == (37, 24, 42):
        assert tiles * size == 42240
        assert rows == 37296


def test_the_count_is_of_floats() -> None:
    """As the checkpoints were trained: where floats round up, one tile more than exact arithmetic keeps."""
    exact = {0.9: 10, 0.8: 5, 0.75: 4, 0.5: 2}
    for sparsity, part in exact.items():
        assert all(kept(n, sparsity) == -(-n // part) for n in range(1, 2000) if sparsity != 0.75)
    assert all(kept(n, 0.75) == -(-n // 4) for n in range(1, 2000))
    assert [kept(n, 0.7) for n in (10, 20)] == [4, 7]  # exactly 3 and 6
    assert [kept(n, 0.85) for n in (20, 40)] == [4, 7]  # exactly 3 and 6
    assert [kept(n, 0.95) for n in (20, 40)] == [2, 3]  # exactly 1 and 2
    assert kept(7, 0.0) == 7
    assert kept(7, 0.999) == 1


@pytest.mark.parametrize("size", [64, 256])
def test_slots_are_a_padded_layout(size: int) -> None:
    tiles = make_tiles((70, 0, 5), (5, 9, 11), size)
    slots = tiles.slots
    assert len(slots) == 75 + 5 * 9 * 11
    assert len(slots.unique()) == len(slots)
    assert bool((slots % size < tiles.size_tensor[slots // size]).all())
    assert torch.equal(slots // size, tiles.tile_of_row)
    assert tiles.prefix == (3 if size == 64 else 2)
    for index, rows in enumerate(tile_rows((70, 0, 5), (5, 9, 11), size)):
        assert tiles.rows[tiles.starts[index] : tiles.starts[index + 1]].tolist() == rows


def test_tiles_refuse_what_is_none() -> None:
    with pytest.raises(ValueError, match="expected one of 64, 256, found 128"):
        make_tiles((), (1, 1, 1), 128)
    with pytest.raises(ValueError, match="no negative segment"):
        make_tiles((-1,), (1, 1, 1), 64)
    query, key, value, _ = random_qkv(9, 1, 8, torch.float32, 0)
    with pytest.raises(ValueError, match="expected 8 rows, as laid out in tiles, found 9"):
        vsa_attention(query, key, value, Plan(make_tiles((), (2, 2, 2), 64), 0.5))


def test_segments_follow_the_rows() -> None:
    """ref2va: text, picture, the clip's sound and frames, sound, the film's sound."""
    kinds = torch.tensor([0] * 5 + [1] * 4 + [2] * 3 + [1] * 8 + [2] * 2 + [3] * 6)
    assert segments_of(kinds) == (5, 4, 3, 8, 2, 6)
    assert segments_of(kinds[:0]) == ()


# By hand ----------------------------------------------------------------------------------------------------------------


def by_hand() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One prefix row, then a grid of 1 x 1 x 12: video tiles of 4, 4 and 4 rows. One head, two channels.

    Rows of a tile are alike, so that pooling changes nothing and each score can be written down. Queries ask for (1, 0);
    keys answer ln 1 (prefix), ln 2, ln 4, ln 8 times the root of two that scaling takes away. Values name their tile.
    """
    answers = [1.0] + [2.0] * 4 + [4.0] * 4 + [8.0] * 4
    query = torch.tensor([[1.0, 0.0]] * 13, dtype=torch.float64)
    key = torch.tensor([[math.log(answer) * math.sqrt(2), 0.0] for answer in answers], dtype=torch.float64)
    value = torch.tensor([[answer, -answer] for answer in answers], dtype=torch.float64)
    return query[None, :, None], key[None, :, None], value[None, :, None]


# Weights of single rows are 1, 2, 4 and 8, and values the same, so a row that sees the tiles with answers a gets
# sum(count a²) / sum(count a); prefix rows see all: (1 + 4·4 + 4·16 + 4·64) / (1 + 4·2 + 4·4 + 4·8) = 337 / 57.
EVERYTHING = 337 / 57
BY_HAND = {
    # 1 - 0.7 of three tiles: ceil(0.9) = 1: the prefix and the tile that answers 8.
    ("exempt", 0.7): (1 + 4 * 64) / (1 + 4 * 8),
    # One and one for the prefix: the tiles that answer 8 and 4; the prefix row, which answers 1, loses.
    ("compete", 0.7): (4 * 64 + 4 * 16) / (4 * 8 + 4 * 4),
    # ceil(1.2) = 2 of three.
    ("exempt", 0.6): (1 + 4 * 64 + 4 * 16) / (1 + 4 * 8 + 4 * 4),
    ("compete", 0.6): (4 * 64 + 4 * 16 + 4 * 4) / (4 * 8 + 4 * 4 + 4 * 2),
    ("exempt", 0.0): EVERYTHING,
    ("compete", 0.0): EVERYTHING,
}
# Tiles, whatever their size, weigh 1, 2, 4 and 8 in the coarse branch: (1 + 4 + 16 + 64) / 15.
COARSE = 85 / 15


@pytest.mark.parametrize(("mode", "sparsity"), list(BY_HAND))
@pytest.mark.parametrize("gated", [False, True])
def test_values_worked_by_hand(mode: Any, sparsity: float, gated: bool) -> None:
    query, key, value = by_hand()
    gate = torch.zeros_like(query)
    gate[0, :, 0] = torch.stack([torch.arange(13.0), torch.full((13,), 2.0)], dim=-1)  # per row, and per channel
    expected = torch.empty(13, 2, dtype=torch.float64)
    fine = torch.tensor([EVERYTHING] + [BY_HAND[mode, sparsity]] * 12, dtype=torch.float64)
    expected[:, 0] = fine + (torch.arange(13, dtype=torch.float64) * COARSE if gated else 0)
    expected[:, 1] = -fine - (2 * COARSE if gated else 0)
    used = gate if gated else None
    plain = reference_attention(query, key, value, (1,), (1, 1, 12), 64, sparsity, mode, used)
    fast = vsa_attention(query, key, value, Plan(make_tiles((1,), (1, 1, 12), 64), sparsity, mode), used)
    torch.testing.assert_close(plain[0, :, 0], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(fast[0, :, 0], expected, rtol=0, atol=1e-12)


def test_pads_are_masked_not_zero() -> None:
    """A tile of one row among full ones: zeros in its pads would pull the mean and the softmax towards nothing."""
    tiles = make_tiles((), (4, 4, 5), 64)
    assert tiles.sizes == (64, 16)
    query, key, value, _ = random_qkv(80, 2, 16, torch.float64, 3)
    pooled = pool(key, tiles)
    torch.testing.assert_close(pooled[0, :, 1], key[0, tiles.rows[64:]].mean(0))
    plain = reference_attention(query, key, value, (), (4, 4, 5), 64, 0.5)
    torch.testing.assert_close(vsa_attention(query, key, value, Plan(tiles, 0.5)), plain)


# Fast against plain -----------------------------------------------------------------------------------------------------

GRIDS = [(1, 1, 1), (2, 3, 5), (5, 4, 4), (4, 9, 6), (9, 5, 7), (6, 8, 8)]
SEGMENTS: list[tuple[int, ...]] = [(), (3,), (64, 0, 7), (1, 70, 9), (5, 4, 3, 8, 2, 6)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
CASES = [
    (grid, segments, size, sparsity, mode, gated, DTYPES[number % 4])
    for number, (grid, segments, size, sparsity, mode, gated) in enumerate(
        itertools.product(GRIDS, SEGMENTS, (64, 256), (0.0, 0.5, 0.7, 0.9), ("exempt", "compete"), (False, True))
    )
    if number % 3 == 0 or (grid in GRIDS[3:5] and number % 3 == 1)
]


def assert_close(found: torch.Tensor, plain: torch.Tensor, dtype: torch.dtype) -> None:
    """Within 1e-4; half precision may besides round its result, and the two products that the gate adds."""
    steps = {torch.bfloat16: 2**-7, torch.float16: 2**-10}.get(dtype, 0.0)
    assert found.dtype is dtype
    torch.testing.assert_close(found.to(plain.dtype), plain, rtol=2 * steps, atol=1e-4 + steps)


def test_fast_equals_plain_over_generated_cases() -> None:
    """Every combination of grid, prefix, tile, sparsity, mode and gate, in one of four dtypes each."""
    assert len(CASES) >= 400
    sparse = 0
    for seed, (grid, segments, size, sparsity, mode, gated, dtype) in enumerate(CASES):
        rows = sum(segments) + math.prod(grid)
        query, key, value, gate = random_qkv(rows, 2, 16, dtype, seed)
        used = gate if gated else None
        plan = Plan(make_tiles(segments, grid, size), sparsity, mode)
        plain = reference_attention(query, key, value, segments, grid, size, sparsity, mode, used)
        assert_close(vsa_attention(query, key, value, plan, used), plain, dtype)
        sparse += not plan.dense
    assert sparse >= 200


@pytest.mark.parametrize("heads", [1, 9])
def test_every_head_chooses_for_itself(heads: int) -> None:
    """More heads than are pooled at a time."""
    query, key, value, _ = random_qkv(10 + 9 * 8 * 8, heads, 8, torch.float32, heads)
    plan = Plan(make_tiles((10,), (9, 8, 8), 64), 0.8)
    plain = reference_attention(query, key, value, (10,), (9, 8, 8), 64, 0.8)
    assert_close(vsa_attention(query, key, value, plan), plain, torch.float32)


def test_two_sequences_at_once() -> None:
    query, key, value, gate = (
        torch.cat(pair) for pair in zip(*(random_qkv(90, 2, 8, torch.float32, n) for n in (1, 2)), strict=True)
    )
    plan = Plan(make_tiles((10,), (5, 4, 4), 64), 0.5)
    plain = reference_attention(query, key, value, (10,), (5, 4, 4), 64, 0.5, gate=gate)
    assert_close(vsa_attention(query, key, value, plan, gate), plain, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_sparsity_and_no_gate_is_dense(dtype: torch.dtype) -> None:
    query, key, value, _ = random_qkv(40 + 9 * 8 * 8, 3, 32, dtype, 5)
    tiles = make_tiles((40,), (9, 8, 8), 64)
    dense = dense_attention(query, key, value)
    assert torch.equal(vsa_attention(query, key, value, Plan(tiles, 0.0)), dense)
    # Nor does the sparse path change anything when it is handed every tile.
    everything = torch.arange(tiles.prefix, tiles.count).expand(1, 3, tiles.video, tiles.video)
    from splitreel.h3.vsa.choose import Choice

    gathered = gather_attention(query, key, value, tiles, Choice(tiles.prefix, everything))
    assert float((gathered - dense).abs().max()) <= 1e-5


def test_modes_choose_differently() -> None:
    query, key, value, _ = random_qkv(200 + 9 * 8 * 8, 2, 16, torch.float32, 6)
    tiles = make_tiles((200,), (9, 8, 8), 64)
    assert (tiles.prefix, tiles.video) == (4, 12)
    exempt, compete = (vsa_attention(query, key, value, Plan(tiles, 0.9, mode)) for mode in ("exempt", "compete"))
    assert not torch.allclose(exempt, compete)
    assert torch.equal(exempt[:, :200], compete[:, :200]), "prefix queries see everything in both"


def test_choices_are_as_many_in_both_modes() -> None:
    tiles = make_tiles((200,), (9, 8, 8), 64)
    scores = torch.randn(1, 2, tiles.count, tiles.count, generator=torch.Generator().manual_seed(7))
    exempt, compete = (choose(scores, tiles, 0.9, mode) for mode in ("exempt", "compete"))
    assert exempt is not None
    assert compete is not None
    assert exempt.tiles.shape[-1] + exempt.always == compete.tiles.shape[-1] == kept(12, 0.9) + 4
    assert int(exempt.tiles.min()) >= 4
    assert bool((exempt.tiles.diff(dim=-1) > 0).all())


def test_the_block_mask_of_the_gpu_path_says_the_same() -> None:
    """FlexAttention itself is compiled, too long for here; what it is told can be read without it."""
    from splitreel.h3.vsa.flex import block_mask

    tiles = make_tiles((70,), (5, 8, 8), 64)
    scores = torch.randn(1, 2, tiles.count, tiles.count, generator=torch.Generator().manual_seed(8))
    choice = choose(scores, tiles, 0.7, "exempt")
    assert choice is not None
    mask = block_mask(tiles, choice)
    for head, tile in itertools.product(range(2), range(tiles.count)):
        seen = {
            int(index)
            for count, indices in (
                (mask.kv_num_blocks, mask.kv_indices),
                (mask.full_kv_num_blocks, mask.full_kv_indices),
            )
            for index in indices[0, head, tile, : int(count[0, head, tile])]
        }
        expected = (
            set(range(tiles.count))
            if tile < tiles.prefix
            else {0, 1, *choice.tiles[0, head, tile - tiles.prefix].tolist()}
        )
        assert seen == expected
    assert {
        tiles.sizes[int(tile)] for tile in mask.full_kv_indices[0, 0, 0, : int(mask.full_kv_num_blocks[0, 0, 0])]
    } == {64}
    slots = torch.arange(tiles.count * 64)
    filled = mask.mask_mod(0, 0, 0, slots)
    assert int(filled.sum()) == len(tiles.rows)
    assert bool(filled[tiles.slots].all())
