"""The start-up probe: a real object from everyone to everyone who will exchange payloads, each with a deadline.

A node behind NAT, a firewall or a half-cut link can join a cluster and look healthy, and then no payload ever arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from splitreel.cluster.member import Member, as_future, reason
from splitreel.errors import ClusterError

# Above Ray's limit for objects that travel inside messages (100 KB), so that it goes from store to store.
PROBE_BYTES = 1 << 20
DRIVER = "driver"


async def probe(members: Sequence[Member], timeout: float) -> None:
    """Raise ClusterError naming each direction that failed."""
    offers: dict[str, Any] = {DRIVER: ray.put(np.zeros(PROBE_BYTES, np.uint8))}
    for member in members:
        offers[member.name] = member.actor.offer.remote(PROBE_BYTES)
    checks = [
        _to_member(source, offers[source], member, timeout)
        for member in members
        for source in offers
        if source != member.name
    ]
    checks += [_to_driver(member.name, offers[member.name], timeout) for member in members]
    failures = [failure for failure in await asyncio.gather(*checks) if failure is not None]
    if failures:
        raise ClusterError(
            f"link: expected {PROBE_BYTES >> 20} MiB to pass between all roles within {timeout:g} s, found that it did not: "
            f"{'; '.join(failures)}. Open Ray's ports in that direction, or give each node the address that others reach.",
            failures=failures,
        )


async def _to_member(source: str, reference: Any, member: Member, timeout: float) -> str | None:
    direction = f"{source} → {member.name} ({member.node.address if member.node else '?'})"
    try:
        received = await asyncio.wait_for(as_future(member.actor.accept.remote([reference], timeout)), timeout + 5)
    except TimeoutError:
        return f"{direction}: no answer"
    except RayError as error:
        return f"{direction}: {reason(error)}"
    return None if received == PROBE_BYTES else f"{direction}: nothing arrived"


async def _to_driver(source: str, reference: Any, timeout: float) -> str | None:
    try:
        received = await asyncio.wait_for(as_future(reference), timeout)
    except TimeoutError:
        return f"{source} → driver: nothing arrived"
    except RayError as error:
        return f"{source} → driver: {reason(error)}"
    return None if len(received) == PROBE_BYTES else f"{source} → driver: {len(received)} bytes arrived"
