"""Resident bytes of the transformer with AdaLN as tables against the library's plain load, and what making them costs.

    python benchmarks/resident_dit.py --steps 5 50

On a transformer of the released proportions whose widths are all divided by 16 (50 blocks), really loaded both ways in this
run, for a t2va schedule. `released` is the same arithmetic on the released configuration, built on the meta device: tables
shrink with the width and weights with its square, so that the divided model's tables weigh 16 times as much as the release's.

`seconds`: to make the tables, and of that to read the projections, with the files in the kernel's cache and without. The
rest is multiplying, which a plain load does in every request. Prints JSON.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from claims import Claim, report
from diffusers import MiniMaxH3Transformer3DModel
from proportions import transformer_config, write_transformer

from splitreel.config import MemorySpec, RoleSpec
from splitreel.h3.adaln import Step
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.released import Dims, table_bytes
from splitreel.h3.residency import is_adaln
from splitreel.request import Stage
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.loading import load_module
from splitreel.roles.role import resident_bytes
from splitreel.roles.weights import reading, stored_tensors


def released(steps: int) -> dict[str, Any]:
    """Bytes in bfloat16 of the released configuration, with a t2va schedule's tables."""
    with torch.device("meta"):
        module = MiniMaxH3Transformer3DModel(**transformer_config())
    keep = set(MiniMaxH3Transformer3DModel._keep_in_fp32_modules)
    sizes = {
        name: parameter.numel() * (4 if keep & set(name.split(".")) else 2)
        for name, parameter in module.named_parameters()
    }
    plain = sum(sizes.values())
    memory = MemorySpec(adaln="tables", adaln_steps=(steps,))
    tables = table_bytes("transformer", ("t2va",), memory, Dims(), 2)
    ours = plain - sum(size for name, size in sizes.items() if is_adaln(name)) + tables
    return {"plain_bytes": plain, "tables_bytes": tables, "resident_bytes": ours, "ratio": round(ours / plain, 4)}


def schedule(steps: int) -> list[Step]:
    """Timesteps as t2va's have them: of picture and sound; equal in the first step."""
    noise = torch.linspace(1.0, 0.02, steps - 1)
    pairs = [torch.unique(torch.stack([value, value**0.5])) for value in noise]
    return [Step(pair, (0, 1, 2) if len(pair) == 1 else (0, 1, 5)) for pair in pairs]


def drop_from_cache(checkpoint: Checkpoint) -> None:
    """Ask the kernel to let go of the files' pages."""
    for path in checkpoint.weight_files("transformer"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measured(divisor: int, steps: int) -> dict[str, Any]:
    """Resident bytes both ways, and seconds to make tables."""
    spec = RoleSpec(
        "dit", (Stage.DENOISE,), ("t2va",), "", None, "cpu", (("default", "bfloat16"),), None,
        memory=MemorySpec(adaln="tables", adaln_schedules=1),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(write_transformer(Path(folder), divisor), folder)
        recipe = MiniMaxH3().recipe("transformer", checkpoint, spec)
        ours: Any = load_module(recipe, checkpoint, "transformer", torch.device("cpu"))
        full = MiniMaxH3Transformer3DModel.from_pretrained(folder, subfolder="transformer", dtype=torch.bfloat16)
        plain = sum(tensor.nbytes for tensor in (*full.parameters(), *full.buffers()))
        projections = [item for item in stored_tensors(checkpoint, "transformer") if is_adaln(item.name)]
        memory = MemorySpec(adaln="tables", adaln_steps=(steps,))
        dims = Dims.of_configs({"transformer": transformer_config(divisor)})
        ours.adaln_tables.use(schedule(2))
        began = time.perf_counter()
        ours.adaln_tables.use(schedule(steps))
        seconds = {"all": time.perf_counter() - began}
        for name in ("read_cached", "read_cold"):
            if name == "read_cold":
                drop_from_cache(checkpoint)
            began = time.perf_counter()
            with reading("transformer", torch.device("cpu")) as reader:
                for item in projections:
                    reader.read(item, torch.bfloat16)
            seconds[name] = time.perf_counter() - began
        resident = resident_bytes(ours)
    return {
        "divisor": divisor,
        "plain_bytes": plain,
        "resident_bytes": resident,
        "ratio_without_tables": round((resident - ours.adaln_tables.num_bytes) / plain, 4),
        "tables_bytes": ours.adaln_tables.num_bytes,
        "tables_bytes_planned": table_bytes("transformer", ("t2va",), memory, dims, 2),
        "projection_bytes_read": sum(item.num_elements * item.dtype.itemsize for item in projections),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--divisor", type=int, default=16, choices=(8, 16), help="of the widths of what is loaded")
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[5, 50], help="schedules, as requests count; the first is made"
    )
    arguments = parser.parse_args()
    real = measured(arguments.divisor, arguments.steps[0])
    report(
        *(
            Claim(
                9,
                f"resident DiT bytes with AdaLN tables of {number} steps (counted at released size)",
                "plain load",
                found["ratio"],
                0.62,
                details={name: value for name, value in found.items() if name != "ratio"},
            )
            for number in arguments.steps
            for found in [released(number)]
        ),
        Claim(
            9,
            f"the same for {arguments.steps[0]} steps, really loaded, widths by {arguments.divisor}",
            "plain load",
            real["resident_bytes"] / real["plain_bytes"],
            0.62,
            details=real,
        ),
    )


if __name__ == "__main__":
    main()
