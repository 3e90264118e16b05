"""How a payload gets from the object store into a worker: one implementation, timed whether anyone looks or not.

The reference travels nested in a list, so that Ray does not resolve it before the method runs: a positional reference
that never arrives (a cut link) would block the worker's queue without end and without a name, and could not be
cancelled. Here every part has a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, OwnerDiedError, PlasmaObjectNotAvailable

from splitreel.engine.backend import PayloadGone
from splitreel.observe.spans import SpanRecorder
from splitreel.wire import Packed

# How often a waiting receiver looks whether it was cancelled.
_GLANCE = 0.25


def arrive(
    reference: Any, *, hop: str, timeout: float, spans: SpanRecorder, check: Callable[[], None]
) -> Callable[[], Packed]:
    """Wait until the payload is in this node's store; what it returns deserialises it.

    Two spans: `hop.wait` until the producer has it, `hop.fetch` until it is here. Raises PayloadGone, as does what it
    returns, when the payload is lost or does not arrive in `timeout` seconds; `check` may raise to stop waiting.
    """
    deadline = time.monotonic() + timeout
    here = bool(ray.wait([reference], timeout=0)[0])  # as a rule within one node, and then one question is enough
    for name, local in (("hop.wait", False), ("hop.fetch", True)):
        with spans.span(name, hop=hop):
            while not here and not ray.wait([reference], timeout=_GLANCE, fetch_local=local)[0]:
                check()
                if time.monotonic() > deadline:
                    raise PayloadGone(
                        f"{name}: expected the payload within {timeout:g} s, found nothing. The link between the nodes is "
                        "cut or the sending node is gone."
                    )

    def materialize() -> Packed:
        try:
            packed = ray.get(reference, timeout=max(1.0, deadline - time.monotonic()))
            # `ray.get` with a timeout may return this class as the value, unraised, when the store's answer came back
            # empty (seen once in some thousand engine starts, on a loaded machine); the object itself is there.
            while packed is PlasmaObjectNotAvailable and time.monotonic() < deadline:
                check()
                ray.wait([reference], timeout=_GLANCE, fetch_local=True)
                packed = ray.get(reference, timeout=max(1.0, deadline - time.monotonic()))
        except (ObjectLostError, OwnerDiedError) as error:
            raise PayloadGone(str(error)) from error
        except GetTimeoutError as error:
            raise PayloadGone(f"hop.materialize: expected the payload within {timeout:g} s, found nothing.") from error
        if not isinstance(packed, Packed):
            raise PayloadGone(f"hop.materialize: expected a payload in the object store, found {repr(packed)[:200]}.")
        return packed

    return materialize
