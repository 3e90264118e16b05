"""The decode stage of a film by two decode workers together, against one of them alone, on real Ray nodes. Prints JSON.

    python benchmarks/parallel_decode.py --repeats 6

First the films of both are compared, bit for bit, as mp4, as frames and as float tensors. Two workers decode 4 + 4 clips of
a film of 7 (one of them twice), so 0.571 is the bound where each has a core of its own to compute on and the mp4 costs
nothing. Both sessions live on the same nodes, and their films are made in turns.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from claims import Claim, in_turns, ratio, report, spread

from splitreel import GenerateRequest, GenerateResult, Session
from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode
from splitreel.config import Config, parse_config
from splitreel.h3.tiny import make_tiny

ROLE = {"device": "cpu", "dtype": "float32", "threads": 1}


def config(address: str, root: Path, workers: int) -> Config:
    """One that encodes and denoises, two that decode, of which so many decode one film."""
    return parse_config(
        {
            "model": {"path": str(root)},
            "cluster": {"address": address},
            "roles": {
                "encoder_dit": {**ROLE, "node": "place=0"},
                "decoder": {**ROLE, "nodes": ["place=1", "place=2"]},
            },
            "engine": {"parallel_decode": workers},
        }
    )


def same(one: GenerateResult, other: GenerateResult) -> bool:
    """Whether two results are equal to the last bit."""
    pairs: list[tuple[Any, Any]] = [
        (getattr(one, name), getattr(other, name)) for name in ("video_bytes", "frames", "tensor", "waveform")
    ]
    return all(
        np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs for mine, theirs in pairs
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--size", default="small", help="of make-tiny")
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    nodes = [EmbeddedNode(labels={"place": str(index)}) for index in range(3)]
    size = {"height": options.height, "width": options.width, "num_frames": 124}

    def film(session: Session, output: str) -> tuple[GenerateResult, int]:
        """It, and by how many workers it was decoded."""
        request = GenerateRequest(prompt="A lake at sunrise.", steps=2, seed=7, output=output, **size)
        job = session.submit(request)
        made = job.result(300)
        return made, len({span.worker for span in job.spans if span.name == "decode.chunk"})

    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedCluster.start(nodes=nodes, timeout_s=180) as cluster,
        Session(config(cluster.address, root := make_tiny(Path(folder) / "model", size=options.size), 1)) as alone,
        Session(config(cluster.address, root, 2)) as together,
    ):
        equal = {}
        for output in ("mp4", "frames", "tensor"):
            (wanted, one), (made, two) = film(alone, output), film(together, output)
            equal[output] = same(wanted, made)
            assert (one, two) == (1, 2), (one, two)
        taken = {
            output: in_turns(
                options.repeats,
                alone=lambda output=output: film(alone, output)[0].timings[2].seconds,  # type: ignore[misc]
                together=lambda output=output: film(together, output)[0].timings[2].seconds,  # type: ignore[misc]
            )
            for output in ("mp4", "frames")
        }
    report(
        Claim(
            14,
            "decode of one film by two workers",
            "by one of them, the same film bit for bit",
            ratio(taken["mp4"]["together"], taken["mp4"]["alone"]),
            0.75,
            details={
                "bit_exact": equal,
                "bound": round(4 / 7, 3),
                "frames_ratio": round(ratio(taken["frames"]["together"], taken["frames"]["alone"]), 4),
                **{
                    f"{output} {name}": spread(values)
                    for output, runs in taken.items()
                    for name, values in runs.items()
                },
            },
        ),
        model=options.size,
        **size,
    )
    if not all(equal.values()):
        raise SystemExit("the films differ")


if __name__ == "__main__":
    main()
