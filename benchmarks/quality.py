"""What a setting costs in quality: the same request with and without it, compared picture by picture and sample by sample.

One JSON line per change: PSNR of the frames (dB, 8 bit; null when equal), SNR of the sound (dB; null when equal), steps saved,
denoise seconds of both, and whether a second run of the changed session repeats its first bit for bit.

    python benchmarks/quality.py --config examples/two_gpus.yaml --steps 50 \\
        --change 'roles.dit.cache={kind: first_block, threshold: 0.1}' --change roles.dit.attention.backend=sage

Without --config it runs the tiny model in this process, whose random weights say nothing of the real model's quality.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitreel import GenerateRequest, GenerateResult, Session
from splitreel.config import Config, load_config, parse_config

_TINY = {
    "model": {"path": "tiny"},
    "cluster": {"address": "local"},
    "roles": {
        "encoder_decoder": {"dtype": "float32", "threads": 1},
        "dit": {"dtype": "float32", "threads": 1},
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="a config file; without it the tiny model on this CPU")
    parser.add_argument("--change", action="append", required=True, metavar="SECTION.NAME=VALUE", help="repeatable")
    parser.add_argument("--prompt", default="An alpine lake at sunrise, mist over the water.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    request = GenerateRequest(prompt=options.prompt, steps=options.steps, seed=options.seed, output="frames")
    (plain,) = films(config(options.config, ()), request, times=1)
    for change in options.change:
        first, second = films(config(options.config, (change,)), request, times=2)
        print(json.dumps({"change": change, "steps": options.steps, **compared(plain, first, second)}), flush=True)
    return 0


def config(path: str | None, changes: Sequence[str]) -> Config:
    """The config with changes applied."""
    return load_config(path, changes) if path else parse_config(_TINY, changes)


def films(settings: Config, request: GenerateRequest, *, times: int) -> list[GenerateResult]:
    """The same request so often in one session."""
    with Session(settings) as session:
        return [session.generate(request) for _ in range(times)]


def compared(plain: GenerateResult, first: GenerateResult, second: GenerateResult) -> dict[str, Any]:
    """How far the changed film is from the plain one."""
    frames, sound = data(first)
    plain_frames, plain_sound = data(plain)
    again_frames, again_sound = data(second)
    return {
        "psnr_db": psnr(plain_frames, frames),
        "sound_snr_db": snr(plain_sound, sound),
        "cached_steps": first.effective.cached_steps,
        "transformer_calls": first.effective.transformer_calls,
        "denoise_seconds": round(denoise_seconds(second), 3),
        "plain_denoise_seconds": round(denoise_seconds(plain), 3),
        "repeats": bool(np.array_equal(frames, again_frames) and np.array_equal(sound, again_sound)),
    }


def data(result: GenerateResult) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Frames and sound."""
    assert result.frames is not None
    assert result.waveform is not None
    return result.frames, result.waveform


def psnr(reference: NDArray[np.uint8], found: NDArray[np.uint8]) -> float | None:
    """Peak signal to noise ratio of 8-bit pictures in dB; None when they are equal."""
    error = float(np.mean((reference.astype(np.float64) - found) ** 2))
    return round(10 * math.log10(255.0**2 / error), 2) if error else None


def snr(reference: NDArray[np.float32], found: NDArray[np.float32]) -> float | None:
    """Signal to noise ratio of sound in dB; None when both are equal."""
    error = float(np.sum((reference.astype(np.float64) - found) ** 2))
    return round(10 * math.log10(float(np.sum(reference.astype(np.float64) ** 2)) / error), 2) if error else None


def denoise_seconds(result: GenerateResult) -> float:
    """Seconds of the denoise stage."""
    return sum(stage.seconds for stage in result.timings if stage.stage == "denoise")


if __name__ == "__main__":
    sys.exit(main())
