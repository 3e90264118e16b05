"""Waiting for what Ray will answer, and Ray's errors in words of ours.

Ray's exceptions are translated here and nowhere else.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ray.exceptions import OutOfMemoryError

from splitreel.errors import SplitreelError

# Ray lists between "the actor died" and why it did which actor it was; we name the worker ourselves.
_WHICH_ACTOR = ("class_name:", "actor_id:", "namespace:", "name:", "pid:", "ip:")


def as_future(reference: Any) -> asyncio.Future[Any]:
    """A reference as something that can be waited for and given up; no task, which a closing loop would complain of."""
    return asyncio.wrap_future(reference.future())


def reason(error: BaseException) -> str:
    """The useful part of a Ray error, without its page of advice."""
    if isinstance(error, SplitreelError):
        return error.message
    text = str(error)
    if isinstance(error, OutOfMemoryError) or "running low on memory" in text:
        return (
            "Ray's memory monitor killed it because the node ran out of memory. Free memory there, use a smaller dtype, or "
            "set RAY_memory_usage_threshold (or RAY_memory_monitor_refresh_ms=0) where Ray is started."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(_WHICH_ACTOR)]
    if "raised in its creation task" in text:
        # Only what the process needs in order to start at all runs there; the words that matter come last.
        return f"its process could not start: {lines[-1][:500]}. See that splitreel is installed there as it is here."
    return f"{type(error).__name__}: {' '.join(lines[:3])[:500]}"
