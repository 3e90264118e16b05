"""Resident bytes of the text encoder: the part that is used against the library's plain load. Prints JSON.

    python benchmarks/resident_text_encoder.py

Counted twice: `loaded`, on a checkpoint of the released proportions whose widths are all divided by 16 (64 layers), really
loaded both ways in this run; and `released`, on the released configuration itself, built on the meta device.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from claims import Claim, report
from proportions import text_config, write_text_encoder
from transformers import Qwen3VLForConditionalGeneration

from splitreel.config import RoleSpec
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.text import used_text_encoder
from splitreel.request import Stage
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.loading import load_module
from splitreel.roles.role import resident_bytes


def on_meta() -> dict[str, float]:
    """Bytes in bfloat16 of the released configuration."""
    with torch.device("meta"):
        full, used = Qwen3VLForConditionalGeneration(text_config()), used_text_encoder(text_config())
    plain, ours = (2 * sum(parameter.numel() for parameter in module.parameters()) for module in (full, used))
    return {"plain_bytes": plain, "used_bytes": ours, "ratio": round(ours / plain, 4)}


def loaded(divisor: int) -> dict[str, float]:
    """Bytes that stay after loading, both ways."""
    spec = RoleSpec("encoder", (Stage.ENCODE,), ("t2va",), "", None, "cpu", (("default", "bfloat16"),), None)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(write_text_encoder(Path(folder), divisor), folder)
        recipe = MiniMaxH3().recipe("text_encoder", checkpoint, spec)
        ours = resident_bytes(load_module(recipe, checkpoint, "text_encoder", torch.device("cpu")))
        full = Qwen3VLForConditionalGeneration.from_pretrained(folder, subfolder="text_encoder", dtype=torch.bfloat16)
        plain = sum(tensor.nbytes for tensor in (*full.parameters(), *full.buffers()))
    return {"divisor": divisor, "plain_bytes": plain, "used_bytes": ours, "ratio": round(ours / plain, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--divisor", type=int, default=16, choices=(8, 16, 32), help="of the widths of what is loaded")
    arguments = parser.parse_args()
    report(
        *(
            Claim(10, f"resident text encoder bytes, {how}", "plain load", found["ratio"], 0.81, details=found)
            for how, found in {
                "counted at released size": on_meta(),
                f"really loaded, widths by {arguments.divisor}": loaded(arguments.divisor),
            }.items()
        )
    )


if __name__ == "__main__":
    main()
