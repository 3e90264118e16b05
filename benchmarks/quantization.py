"""What 8-bit components change: bytes, and how far states, latents and films are from the plain ones. Prints JSON.

    python benchmarks/quantization.py --model tiny --dtype bfloat16

One request through encode and denoise in this process with each component plain, int8 and fp8; `encoded` and `denoised` are
the relative errors (norm of the difference by the norm) of the payloads that leave those stages. With random weights these
say that the arithmetic is right, not how a film looks: `--model` takes the released checkpoint too.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from splitreel.config import parse_config
from splitreel.errors import ConfigError
from splitreel.h3.media import prepare
from splitreel.h3.model import MiniMaxH3
from splitreel.request import GenerateRequest, Stage
from splitreel.roles.control import StageControl
from splitreel.roles.role import Role


def run(model: str, dtype: str, device: str, quantization: dict[str, str]) -> dict[str, Any]:
    """Payload tensors after both stages, and resident bytes."""
    role = {"device": device, "dtype": dtype, "threads": 1, "memory": {"quantization": quantization}}
    config = parse_config({"model": {"path": model}, "cluster": {"address": "local"}, "roles": {"all": role}})
    held = Role(MiniMaxH3(), config.role_spec("all"))
    geometry: Any = held.prepare()
    held.load()
    _, payload = prepare(GenerateRequest(prompt="An alpine lake at sunrise.", steps=5, seed=1), geometry, ("t2va",))
    found: dict[str, Any] = {"resident": dict(held.resident)}
    for stage, field in ((Stage.ENCODE, "prompt_embeds"), (Stage.DENOISE, "latents")):
        payload = held.run(stage, held.receive(stage, payload), StageControl("r", stage))
        found[field] = payload.tensors[field].float().cpu()
    held.unload()
    return found


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Norm of the difference by the norm."""
    return round(float((ours - theirs).norm() / theirs.norm()), 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    plain = run(arguments.model, arguments.dtype, arguments.device, {})
    found: dict[str, Any] = {"plain_bytes": plain["resident"]}
    for component in ("text_encoder", "transformer"):
        for kind in ("int8", "fp8"):
            try:
                ours = run(arguments.model, arguments.dtype, arguments.device, {component: kind})
            except ConfigError as error:
                found[f"{component} {kind}"] = {"refused": str(error)}
                continue
            found[f"{component} {kind}"] = {
                "bytes": ours["resident"][component],
                "ratio": round(ours["resident"][component] / plain["resident"][component], 3),
                "encoded": relative(ours["prompt_embeds"], plain["prompt_embeds"]),
                "denoised": relative(ours["latents"], plain["latents"]),
            }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
