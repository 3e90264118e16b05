"""Films split over two worker processes, against diffusers' unsplit pipeline in one. Prints JSON.

    python benchmarks/split_against_unsplit.py --films 24

Each worker has one CPU thread, as has the unsplit pipeline. One film alone shows what splitting costs (claim 6), many
show what it brings (claim 7): with encode + decode as long as denoise, two machines can do at most 2 n / (n + 1) of one.
The checkpoint is made by `make-tiny --size`, the number of steps is chosen so that denoise takes as long as the rest, which
it nearly does at the size given. Two cores of one machine are less than two machines, since they share caches and memory:
what two unsplit pipelines side by side reach says how much less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import torch
from claims import Claim, report, spread
from diffusers import MiniMaxH3Blocks

from configs import roles_config
from splitreel import GenerateRequest, Session
from splitreel.h3.tiny import make_tiny

PROMPT = "An alpine lake at sunrise, mist over the water, birds calling."


class Unsplit:
    """diffusers' own pipeline with all components, from the same files."""

    def __init__(self, root: Path) -> None:
        self.pipeline = MiniMaxH3Blocks().get_workflow("t2va").init_pipeline(str(root))
        self.pipeline.load_components(pretrained_model_name_or_path=str(root), dtype=torch.float32)

    def seconds(self, request: GenerateRequest) -> float:
        """One film, to float tensors."""
        began = time.perf_counter()
        with torch.inference_mode():
            self.pipeline(
                prompt=request.prompt,
                height=request.height,
                width=request.width,
                num_frames=request.num_frames,
                num_inference_steps=request.steps,
                generator=torch.Generator("cpu").manual_seed(request.seed or 0),
                output_type="pt",
            )
        return time.perf_counter() - began


def side_by_side(root: Path, steps: int, films: int, shape: dict[str, int]) -> float:
    """Films per second of two unsplit pipelines, each a process with one thread, that make `films` each at once."""
    words = [str(root), str(steps), str(films), str(shape["height"]), str(shape["width"])]
    command = [sys.executable, __file__, "--unsplit", *words]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(2)
    ]
    try:
        for each in both:
            assert each.stdout is not None
            each.stdout.readline()  # it has loaded and warmed up
        for each in both:
            assert each.stdin is not None
            each.stdin.write("go\n")
        return 2 * films / max(float(each.communicate(timeout=600)[0]) for each in both)
    finally:
        for each in both:
            each.kill()


def beside(root: str, steps: str, films: str, height: str, width: str) -> None:
    """One of the two."""
    unsplit = Unsplit(Path(root))
    shape = {"height": int(height), "width": int(width), "num_frames": 124}
    unsplit.seconds(GenerateRequest(prompt=PROMPT, steps=2, seed=0, output="tensor", **shape))
    print("ready", flush=True)
    sys.stdin.readline()
    requests = [
        GenerateRequest(prompt=PROMPT, steps=int(steps), seed=seed, output="tensor", **shape)
        for seed in range(int(films))
    ]
    print(sum(unsplit.seconds(request) for request in requests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--films", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5, help="of the single film")
    parser.add_argument("--size", default="small", help="of make-tiny")
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--unsplit", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.unsplit:
        beside(*options.unsplit)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = make_tiny(Path(folder) / "model", size=options.size)
        shape = {"height": options.height, "width": options.width, "num_frames": 124}
        off = {"prompt_cache_bytes": 0}
        with Session(roles_config("embedded", str(root), encoder_decoder=off)) as session:

            def request(seed: int, steps: int) -> GenerateRequest:
                return GenerateRequest(prompt=PROMPT, steps=steps, seed=seed, output="tensor", **shape)

            def split(steps: int, seed: int = 0) -> float:
                began = time.perf_counter()
                session.generate(request(seed, steps))
                return time.perf_counter() - began

            split(2)
            encode, denoise, decode = (stage.seconds for stage in session.generate(request(0, 3)).timings)
            steps = max(2, 1 + round((encode + decode) / (denoise / 2)))
            unsplit = Unsplit(root)
            unsplit.seconds(request(0, 2))
            one: dict[str, list[float]] = {"split": [], "unsplit": []}
            for index in range(options.repeats):
                for kind in ("split", "unsplit") if index % 2 else ("unsplit", "split"):
                    one[kind].append(split(steps) if kind == "split" else unsplit.seconds(request(0, steps)))
            began = time.perf_counter()
            for result in session.stream(request(seed, steps) for seed in range(options.films)):
                timings = result.timings
            many = time.perf_counter() - began
            alone = sum(unsplit.seconds(request(seed, steps)) for seed in range(options.films))
        beside_each_other = side_by_side(root, steps, 3, shape)
    report(
        Claim(
            6,
            "one film, split",
            "unsplit pipeline in one process",
            statistics.median(one["split"]) / statistics.median(one["unsplit"]),
            1.03,
            details={name: spread(values) for name, values in one.items()},
        ),
        Claim(
            7,
            f"throughput of {options.films} films, two one-thread workers",
            "unsplit, one thread, one after another",
            alone / many,
            1.8,
            more_is_better=True,
            details={
                "bound": round(2 * options.films / (options.films + 1), 3),
                "two_unsplit_at_once": round(beside_each_other * alone / options.films, 3),
                "seconds": round(many, 2),
                "baseline_seconds": round(alone, 2),
                "last_film_stages": [round(stage.seconds, 2) for stage in timings],
            },
        ),
        steps=steps,
        size=options.size,
    )


if __name__ == "__main__":
    main()
