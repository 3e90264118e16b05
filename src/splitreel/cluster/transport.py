"""How a payload gets into a worker: one implementation, timed whether anyone looks or not.

A reference travels nested in a list, so that Ray does not resolve it before the method runs: a positional reference
that never arrives (a cut link) would block the worker's queue without end and without a name, and could not be
cancelled. Here every part has a deadline. A small payload from the driver travels in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    OwnerDiedError,
    PlasmaObjectNotAvailable,
    RayActorError,
    RayDirectTransportError,
)

from splitreel.cluster.answers import reason
from splitreel.cluster.direct import Kept, keep, open_agent, read
from splitreel.cluster.host import Transport
from splitreel.engine.backend import PayloadGone
from splitreel.observe.spans import SpanRecorder
from splitreel.wire import Packed

OBJECT_STORE, NIXL = "object_store", "nixl"
# A payload from the driver that is no larger comes with the order itself, as Ray sends arguments of up to 100 KiB: an order
# through the store takes 1.4 times as long (benchmarks/call_overhead.py without and with this: 2.6 and 1.9 plain chains).
INLINE, INLINE_BYTES = "inline", 64 * 1024

# How often a waiting receiver looks whether it was cancelled.
_GLANCE = 0.25


def transport_of(name: str) -> Transport:
    """The sending half of the transport that the config names."""
    return Transport(NIXL, open_agent, keep) if name == NIXL else Transport(OBJECT_STORE)


def arrive(
    reference: Any,
    *,
    hop: str,
    timeout: float,
    spans: SpanRecorder,
    check: Callable[[], None],
    transport: str = OBJECT_STORE,
    making: float | None = None,
) -> Callable[[], Packed]:
    """Wait until the payload is in this node's store, or with nixl in this process; what it returns deserialises it.

    Spans: `hop.wait` until the producer has it, `hop.fetch` until it is here, which also says the `transport`. Raises
    PayloadGone, as does what it returns, when the payload is lost or does not arrive in `timeout` seconds; `check` may
    raise to stop waiting. What came with the order is here already, without a span `hop.wait`.

    `making`: how long the producer, which was only just ordered, may take; `timeout` counts from then.
    """
    if isinstance(reference, Packed):
        with spans.span("hop.fetch", hop=hop) as attributes:
            attributes["transport"] = INLINE
        return lambda: reference
    deadline = time.monotonic() + (timeout if making is None else making)

    def taken() -> Any:
        try:
            found = ray.get(reference, timeout=max(1.0, deadline - time.monotonic()))
            # `ray.get` with a timeout may return this class as the value, unraised, when the store's answer came back
            # empty (seen once in some thousand engine starts, on a loaded machine); the object itself is there.
            while found is PlasmaObjectNotAvailable and time.monotonic() < deadline:
                check()
                ray.wait([reference], timeout=_GLANCE, fetch_local=True)
                found = ray.get(reference, timeout=max(1.0, deadline - time.monotonic()))
        except (ObjectLostError, OwnerDiedError, RayActorError) as error:
            raise PayloadGone(str(error)) from error
        except GetTimeoutError as error:
            raise PayloadGone(f"hop.materialize: expected the payload within {timeout:g} s, found nothing.") from error
        return found

    here = bool(ray.wait([reference], timeout=0)[0])  # as a rule within one node, and then one question is enough
    for name, local in (("hop.wait", False), ("hop.fetch", True)):
        with spans.span(name, hop=hop) as attributes:
            while not here and not ray.wait([reference], timeout=_GLANCE, fetch_local=local)[0]:
                check()
                if time.monotonic() > deadline and making is not None and not local:
                    raise PayloadGone(
                        f"{name}: expected it to be made within {making:g} s, found its worker still at it."
                    )
                if time.monotonic() > deadline:
                    raise PayloadGone(
                        f"{name}: expected the payload within {timeout:g} s, found nothing. The link between the nodes is "
                        "cut, the sending node is gone, or the object store and the disk of this one are full."
                    )
            if not local:
                deadline = deadline if making is None else time.monotonic() + timeout
                continue
            attributes["transport"] = transport
            if transport == NIXL:
                fetched = _read(taken(), deadline, timeout, check)
                return lambda: fetched

    def materialize() -> Packed:
        packed = taken()
        if not isinstance(packed, Packed):
            raise PayloadGone(f"hop.materialize: expected a payload in the object store, found {repr(packed)[:200]}.")
        return packed

    return materialize


def _read(kept: Any, deadline: float, timeout: float, check: Callable[[], None]) -> Packed:
    if not isinstance(kept, Kept):
        raise PayloadGone(f"hop.fetch: expected a payload kept for nixl, found {repr(kept)[:200]}.")
    try:
        return read(kept, timeout=max(1.0, deadline - time.monotonic()), check=check)
    except GetTimeoutError as error:
        raise PayloadGone(
            f"hop.fetch: expected nixl to bring {kept.num_bytes} bytes within {timeout:g} s, found that it did not. The "
            "link between the workers is cut, or the sending process is stopped."
        ) from error
    except (ObjectLostError, RayDirectTransportError) as error:
        raise PayloadGone(f"hop.fetch: expected nixl to bring the payload, found {reason(error)}") from error
