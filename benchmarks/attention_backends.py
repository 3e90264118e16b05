"""Every attention backend of diffusers on this machine: does it run, how far is it from native, how long does it take?

One JSON line each; `ms` is the median of `--repeats` runs, `native_ms` native's in the same process.

    python benchmarks/attention_backends.py --device cuda --dtype bfloat16 --rows 14844 --heads 56 --head-size 128
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn

from splitreel.config import ATTENTION_BACKENDS
from splitreel.roles.backends import AttentionCase, diffusers_backend, try_backend


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hub-kernels", action="store_true", help="let *_hub backends fetch and run their kernel")
    parser.add_argument("names", nargs="*", help="default: all")
    options = parser.parse_args()
    case = AttentionCase(options.device, getattr(torch, options.dtype), options.head_size)
    generator = torch.Generator().manual_seed(0)
    shape = (1, options.rows, options.heads, options.head_size)
    inputs = [torch.randn(shape, generator=generator).to(case.device, case.dtype) for _ in range(3)]

    def run(name: str) -> torch.Tensor:
        result: torch.Tensor = dispatch_attention_fn(*inputs, backend=diffusers_backend(name))
        return result

    with torch.inference_mode():
        native = run("native").float()
        native_ms = timed(lambda: run("native"), options)
        for name in options.names or ATTENTION_BACKENDS:
            line: dict[str, object] = {"backend": name, "case": str(case), "rows": options.rows, "heads": options.heads}
            try:
                try_backend(name, case, hub_kernels=options.hub_kernels)
                error = float((run(name).float() - native).norm() / native.norm())
                line |= {"works": True, "from_native": error, "ms": timed(lambda n=name: run(n), options)}
                line |= {"native_ms": native_ms}
            except Exception as error:
                line |= {"works": False, "cause": f"{type(error).__name__}: {error}"}
            print(json.dumps(line), flush=True)
    return 0


def timed(work: Callable[[], torch.Tensor], options: argparse.Namespace) -> float:
    """The median in milliseconds."""
    times = []
    for _ in range(options.repeats):
        began = time.perf_counter()
        work()
        if options.device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return round(statistics.median(times), 3)


if __name__ == "__main__":
    sys.exit(main())
