"""VSA-H3 against dense attention on one sequence of MiniMax-H3, in turns. Prints JSON.

    python benchmarks/vsa.py --heads 1 --repeats 7                           # float32 on one CPU thread
    python benchmarks/vsa.py --device cuda --dtype bfloat16 --heads 56       # the released model's size

The default is 832 x 480, 124 frames without text: 414 rows of sound and a grid of 37 x 15 x 26, 14,844 rows together.
Dense and sparse take turns, and which goes first takes turns too. `overhead` is what is not attention: pooling and
ranking, rows brought into the tiles' order and back, lists of rows (or the block mask). Each part is timed by itself.
Counting pairs of rows alone, sparse could be `bound` times as fast as dense. `cpu_seconds` on a CPU is what the process
used, which a shared machine disturbs less than the clock.

Rows are independent normal numbers. The means of small tiles (at the grid's edges) then vary more and win the ranking more
often, so that sparse attention has about a tenth fewer rows to look at than in a film; `--alike` takes that away.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from splitreel.h3.vsa.attention import Plan, dense_attention, kernel_for, sparse_paths, vsa_attention
from splitreel.h3.vsa.choose import Choice, choose, kept, pool, score
from splitreel.h3.vsa.gather import rows_of
from splitreel.h3.vsa.reference import reference_attention
from splitreel.h3.vsa.tiles import Tiles, make_tiles

Run = Callable[[], Any]


class Clock:
    """Seconds by the clock and of this process's CPU; waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def time(self, run: Run) -> tuple[float, float]:
        """Of one run."""
        self._wait()
        began, used = time.perf_counter(), time.process_time()
        run()
        self._wait()
        return time.perf_counter() - began, time.process_time() - used

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


def in_turns(runs: dict[str, Run], repeats: int, clock: Clock) -> dict[str, list[tuple[float, float]]]:
    """Each run `repeats` times after one to warm up, alternating who begins."""
    for run in runs.values():
        run()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for index in range(repeats):
        for name in list(runs)[:: 1 if index % 2 else -1]:
            times[name].append(clock.time(runs[name]))
    return times


def summary(times: list[tuple[float, float]]) -> dict[str, float]:
    """Median, least and most seconds, and the median of CPU seconds."""
    clock = [wall for wall, _ in times]
    return {
        "median_s": statistics.median(clock),
        "min_s": min(clock),
        "max_s": max(clock),
        "cpu_median_s": statistics.median(used for _, used in times),
    }


def bound(tiles: Tiles, choice: Choice) -> float:
    """Pairs of rows of dense attention by those of this choice."""
    rows, sizes = len(tiles.rows), tiles.size_tensor
    seen = sizes[choice.tiles].sum(-1) + tiles.starts[choice.always]  # (B, H, video tiles)
    pairs = (seen * sizes[tiles.prefix :]).sum() / choice.tiles.shape[:2].numel() + tiles.prefix_rows * rows
    return rows * rows / float(pairs)


def overhead_parts(qkv: list[torch.Tensor], plan: Plan, choice: Choice, kernel: str) -> dict[str, Run]:
    """What is not attention, as runs."""
    query, key, _ = qkv
    tiles = plan.tiles

    def ranking() -> Any:
        return choose(score(pool(query, tiles), pool(key, tiles)), tiles, plan.sparsity, plan.mode)

    def gather_tiling() -> None:
        out = torch.empty_like(query)
        for head in range(query.shape[2]):
            for x in qkv:
                ordered = x[0, :, head].index_select(0, tiles.rows).float()
            out[0, tiles.rows, head] = ordered.to(out.dtype)
            rows_of(choice.tiles[0, head], tiles)

    def flex_tiling() -> None:
        from splitreel.h3.vsa.flex import block_mask, padded

        for x in qkv:
            laid_out = padded(x, tiles)
        block_mask(tiles, choice)
        laid_out.index_select(2, tiles.slots)

    return {"pool and rank": ranking, "tile": gather_tiling if kernel == "gather" else flex_tiling}


def agreement(device: torch.device, kernel: Any) -> float:
    """The largest difference from the plain form, on a small sequence in float32."""
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 100 + 9 * 8 * 8, 2, 64, generator=generator).to(device) for _ in "qkv")
    plan = Plan(make_tiles((30, 70), (9, 8, 8), 64, device), 0.7)
    plain = reference_attention(query, key, value, (30, 70), (9, 8, 8), 64, 0.7)
    return float((vsa_attention(query, key, value, plan, kernel=kernel) - plain).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--heads", type=int, default=1, help="the released model has 56")
    parser.add_argument("--grid", type=int, nargs=3, default=[37, 15, 26], metavar=("FRAMES", "ROWS", "COLUMNS"))
    parser.add_argument("--text", type=int, default=0, help="rows of text before the 414 rows of sound")
    parser.add_argument("--tile", type=int, default=64, choices=[64, 256])
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--mode", default="exempt", choices=["exempt", "compete"])
    parser.add_argument("--kernel", default=None, choices=["gather", "flex"])
    parser.add_argument("--alike", action="store_true", help="rows of a tile have half of their variance in common")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    device = torch.device(options.device)
    kernel = options.kernel or kernel_for(device)
    grid = (options.grid[0], options.grid[1], options.grid[2])
    tiles = make_tiles((options.text, 414), grid, options.tile, device)
    plan = Plan(tiles, options.sparsity, options.mode)
    generator = torch.Generator().manual_seed(0)
    shape = (1, len(tiles.rows), options.heads, 128)
    common: torch.Tensor | float = 0.0
    if options.alike:
        common = torch.randn(tiles.count, options.heads, 128, generator=generator)[tiles.tile_of_row.cpu()]
    query, key, value = qkv = [
        (torch.randn(shape, generator=generator) + common).to(device, getattr(torch, options.dtype)) for _ in "qkv"
    ]
    choice = choose(score(pool(query, tiles), pool(key, tiles)), tiles, options.sparsity, options.mode)
    if choice is None:
        parser.error(f"--sparsity {options.sparsity} chooses every tile: nothing to compare")
    clock = Clock(device)
    times = in_turns(
        {
            "dense": lambda: dense_attention(query, key, value),
            "sparse": lambda: vsa_attention(query, key, value, plan, kernel=kernel),
            "sparse, attention only": lambda: sparse_paths()[kernel](query, key, value, tiles, choice),
            **overhead_parts(qkv, plan, choice, kernel),
        },
        options.repeats,
        clock,
    )
    figures = {name: summary(found) for name, found in times.items()}
    pairs = list(zip(times["dense"], times["sparse"], strict=True))
    overhead = [
        (ranked[kind] + tiled[kind]) / whole[kind]
        for kind in (0, 1)
        for ranked, tiled, whole in [tuple(_medians(times[name]) for name in ("pool and rank", "tile", "sparse"))]
    ]
    speedups = [dense[0] / sparse[0] for dense, sparse in pairs]
    print(
        json.dumps(
            {
                "rows": len(tiles.rows),
                "tiles": tiles.video,
                "kept": kept(tiles.video, options.sparsity),
                **{
                    name: getattr(options, name)
                    for name in ("heads", "dtype", "tile", "sparsity", "mode", "alike", "threads")
                },
                "kernel": kernel,
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
                "torch": torch.__version__,
                "repeats": options.repeats,
                "max_difference_from_reference": agreement(device, kernel),
                "times": figures,
                "bound": bound(tiles, choice),
                "speedup": statistics.median(speedups),
                "speedup_min": min(speedups),
                "speedup_max": max(speedups),
                "speedup_cpu": statistics.median(dense[1] / sparse[1] for dense, sparse in pairs),
                "overhead": overhead[0],
                "overhead_cpu": overhead[1],
            },
            indent=2,
        )
    )


def _medians(times: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(wall for wall, _ in times), statistics.median(used for _, used in times)


if __name__ == "__main__":
    main()
