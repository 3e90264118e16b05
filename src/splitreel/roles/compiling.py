"""torch.compile for the repeated blocks of a component.

Each block's `forward` is compiled rather than the module, so that hooks (progress, step cache) stay outside. Blocks of one
class share their compiled code. Sizes are dynamic: every prompt has another number of rows, and one compilation serves all.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import torch

from splitreel.errors import WorkerNotReady

# Where torch's words on how to debug itself begin; the traceback keeps them.
_ADVICE = "\n\nSet TORCHDYNAMO_VERBOSE"


def compile_blocks(name: str, blocks: Iterable[Any], warm_up: Callable[[], None]) -> int:
    """Compile each block and run `warm_up`, which must pass through all; how many there were.

    Raises WorkerNotReady with the compiler's own error: a missing compiler, a graph it cannot build, or more variants than
    torch keeps (it would silently go on without compiling).
    """
    count = 0
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=True)
        count += 1
    try:
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            warm_up()
    except Exception as error:
        words = str(error).split(_ADVICE)[0].strip()
        raise WorkerNotReady(
            f"compile.{name}: expected torch {torch.__version__} to compile {count} blocks, found "
            f"{type(error).__name__}: {words} (python {sys.executable}). Install what is missing there (a C++ compiler for "
            f"the CPU, Triton for CUDA) or leave out compile.{name}.",
            error_type=type(error).__name__,
            remote_traceback="".join(traceback.format_exception(error)),
            python=sys.executable,
        ) from error
    return count
