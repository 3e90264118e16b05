"""The encode stage of a repeated prompt with another seed, against the same prompt without a cache. Prints JSON.

python benchmarks/prompt_cache.py --repeats 10
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from claims import Claim, in_turns, ratio, report, spread

from splitreel import GenerateRequest, Session
from splitreel.config import Config, parse_config


def config(keep: int) -> Config:
    """Two roles in this process; the encoder's keeps so many bytes."""
    role = {"device": "cpu", "dtype": "float32", "threads": 1}
    return parse_config(
        {
            "model": {"path": "tiny"},
            "cluster": {"address": "local"},
            "roles": {"encoder_decoder": {**role, "prompt_cache_bytes": keep}, "dit": role},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    prompt = "An alpine lake at sunrise, mist over the water, birds calling. " * 8
    with Session(config(1 << 28)) as keeping, Session(config(0)) as forgetful:
        seeds = iter(range(10_000))

        def encode(session: Session) -> float:
            request = GenerateRequest(prompt=prompt, steps=2, seed=next(seeds), output="tensor")
            return session.generate(request).timings[0].seconds

        encode(keeping), encode(forgetful)
        taken = in_turns(options.repeats, kept=lambda: encode(keeping), made=lambda: encode(forgetful))
    report(
        Claim(
            11,
            "encode of a repeated prompt, other seed",
            "no cache",
            ratio(taken["kept"], taken["made"]),
            0.02,
            details={name: spread(values) for name, values in taken.items()},
        ),
        model="tiny",
    )


if __name__ == "__main__":
    main()
