"""The most memory a process has while a component loads, against what it holds afterwards. Prints JSON.

    python benchmarks/load_peak.py --component text_encoder --dtype bfloat16

Each way of loading runs in a process of its own, on a checkpoint of the released proportions (widths divided by 16):
`splitreel`, and `library` (from_pretrained, what diffusers' and transformers' users call). A first load of another size has
imported everything; then the kernel's high-water mark is set back, the baseline read, and the component loaded. Counted is
the resident set (VmHWM less VmRSS before), file pages included. Weights that a library maps are not in it before they are
read: `once_read` is the mark after every weight was looked at, with the buffers for that.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from claims import Claim, report
from proportions import write_text_encoder, write_transformer

from splitreel.config import MemorySpec, RoleSpec
from splitreel.h3.model import MiniMaxH3
from splitreel.request import Stage
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.loading import load_module

WRITERS = {"text_encoder": write_text_encoder, "transformer": write_transformer}


def kilobytes(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def load(folder: str, component: str, dtype: str, way: str) -> Any:
    """One component, by splitreel or by its library."""
    if way == "library":
        kind: Any = MiniMaxH3().component_class(component)
        return kind.from_pretrained(folder, subfolder=component, dtype=getattr(torch, dtype), local_files_only=True)
    memory = MemorySpec(adaln="tables") if way == "splitreel with tables" else MemorySpec()
    spec = RoleSpec("role", tuple(Stage), ("t2va",), "", None, "cpu", (("default", dtype),), 1, memory=memory)
    checkpoint = Checkpoint(Path(folder), folder)
    return load_module(MiniMaxH3().recipe(component, checkpoint, spec), checkpoint, component, torch.device("cpu"))


def measure(small: str, folder: str, component: str, dtype: str, way: str) -> dict[str, Any]:
    """In this process: peak and resident bytes of one load."""
    load(small, component, dtype, way)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS")
    module = load(folder, component, dtype, way)
    peak = kilobytes("VmHWM") - before
    resident = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    checked = all(bool(parameter.isfinite().all()) for parameter in module.parameters())
    return {
        "resident_bytes": resident,
        "peak_bytes": peak,
        "ratio": round(peak / resident, 3),
        "once_read_bytes": kilobytes("VmHWM") - before,
        "finite": checked,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--component", choices=tuple(WRITERS), default="text_encoder")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="the files hold bfloat16")
    parser.add_argument("--divisor", type=int, default=16, choices=(8, 16))
    parser.add_argument("--measure", nargs=3, metavar=("SMALL", "FOLDER", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        small, folder, way = arguments.measure
        print(json.dumps(measure(small, folder, arguments.component, arguments.dtype, way)))
        return
    write = WRITERS[arguments.component]
    ways = ["splitreel", "library"] + (["splitreel with tables"] if arguments.component == "transformer" else [])
    found = {}
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as folder:
        write(Path(small), 32)
        write(Path(folder), arguments.divisor)
        for way in ways:
            command = [sys.executable, __file__, "--component", arguments.component, "--dtype", arguments.dtype]
            done = subprocess.run(
                [*command, "--measure", small, folder, way], check=True, capture_output=True, text=True, timeout=300
            )
            found[way] = json.loads(done.stdout.splitlines()[-1])
    report(
        *(
            Claim(0, f"peak while {arguments.component} loads, {way}", "what stays resident", found[way]["ratio"], 1.1)
            for way in ways
            if way != "library"
        ),
        dtype=arguments.dtype,
        ways=found,
    )


if __name__ == "__main__":
    main()
