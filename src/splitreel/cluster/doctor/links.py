"""The links between the nodes, each in both directions, with real objects; and the clocks, for information."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from splitreel.cluster.answers import as_future, reason
from splitreel.cluster.doctor.finding import Finding, fail, ok, skip, warn
from splitreel.cluster.doctor.network import MTU_CHECK
from splitreel.cluster.placement import Node
from splitreel.cluster.probe import PROBE_BYTES

LINK_S = 6.0  # for the small object of each direction
SPEED_BYTES = 32 << 20  # on 1 GbE 0.3 s; two stores on one machine 0.1 s
SLOW = 10e6  # bytes per second: a film's 20 MB take 2 s and more
OBJECTS, CLOCK = "link.objects", "clock.skew"


@dataclass(frozen=True)
class End:
    """An examined node and the process that looks at it."""

    node: Node
    actor: Any


async def look_at_links(ends: Sequence[End], deadline: float, timeout: float = LINK_S) -> list[Finding]:
    """One finding for each ordered pair of nodes. `deadline`: in the time of `time.monotonic`; `timeout`: for each object."""
    pairs = list(itertools.permutations(ends, 2))
    if not pairs:
        return [skip(OBJECTS, "there is no other node to exchange payloads with")]
    small = await asyncio.gather(*(_send(a, b, PROBE_BYTES, timeout) for a, b in pairs))
    found = []
    for (a, b), outcome in zip(pairs, small, strict=True):
        way = f"{a.node.address} → {b.node.address}"
        if isinstance(outcome, str):
            found.append(
                fail(
                    OBJECTS,
                    f"{way}: {outcome}",
                    "Open Ray's ports in that direction (all of them, not the head's alone), or give each node the address "
                    "that others reach.",
                    node=b.node.address,
                )
            )
            continue
        # One after another: two at once would share what is measured.
        found.append(await _measured(way, a, b, outcome, deadline, timeout))
    return found


async def _measured(way: str, a: End, b: End, small: float, deadline: float, timeout: float) -> Finding:
    place = {"node": b.node.address}
    shown = f"{way}: {PROBE_BYTES >> 20} MiB in {small * 1e3:.0f} ms"
    if deadline - time.monotonic() < 2 * timeout:
        return ok(OBJECTS, f"{shown}; no time left to measure its rate", **place)
    connect = await _ask(b.actor.round_trip.remote(a.node.address, a.node.ports[0], 2.0), timeout)
    if isinstance(connect, float) and connect >= 0:
        shown += f", round trip {connect * 1e3:.2f} ms"
    large = await _send(a, b, SPEED_BYTES, timeout)
    if isinstance(large, str):
        return warn(
            OBJECTS,
            f"{shown}; {SPEED_BYTES >> 20} MiB: {large}",
            f"See that packets of the interfaces' full size pass (same {MTU_CHECK} on both), and how busy the link is.",
            **place,
        )
    rate = SPEED_BYTES / max(large, 1e-6)
    shown += f", {rate / 1e6:,.0f} MB/s"
    if rate < SLOW:
        return warn(
            OBJECTS, shown, "Use a faster link: 1 Gbit/s is enough. See which interface has the address.", **place
        )
    return ok(OBJECTS, shown, **place)


async def _send(a: End, b: End, num_bytes: int, timeout: float) -> float | str:
    """Seconds on the way, or what went wrong."""
    reference = a.actor.offer.remote(num_bytes)
    outcome = await _ask(b.actor.accept.remote([reference], timeout), timeout + 2)
    if isinstance(outcome, str):
        return outcome
    return outcome if outcome >= 0 else f"nothing arrived within {timeout:.0f} s"


async def _ask(reference: Any, timeout: float) -> Any:
    try:
        return await asyncio.wait_for(as_future(reference), timeout)
    except TimeoutError:
        return f"no answer within {timeout:.0f} s"
    except RayError as error:
        return reason(error)


def same_mtu(found: Sequence[Finding]) -> list[Finding]:
    """A warning when the nodes' interfaces have packets of different sizes, from their own findings."""
    sizes = {each.node: each.found for each in found if each.check == MTU_CHECK and each.found[:1].isdecimal()}
    remote = {node: size for node, size in sizes.items() if not size.endswith(" lo")}
    if len({size.partition(" ")[0] for size in remote.values()}) < 2:
        return []
    shown = ", ".join(f"{size} of {node}" for node, size in remote.items())
    return [
        warn(
            MTU_CHECK,
            f"the nodes' interfaces differ: {shown}; large packets may be lost on the way",
            "Set the same on both ends: sudo ip link set IFACE mtu 9000 (or 1500).",
            node=node,
        )
        for node in itertools.islice(remote, 1)
    ]


async def clock(end: End) -> Finding:
    """How far a node's clock is from the driver's. Nothing depends on it but the reading of logs."""
    began = time.time()
    theirs = await _ask(end.actor.clock.remote(), LINK_S)
    ended = time.time()
    if not isinstance(theirs, float):
        return skip(CLOCK, str(theirs), node=end.node.address)
    ahead = (theirs - (began + ended) / 2) * 1e3
    error = (ended - began) / 2 * 1e3
    side = "ahead of" if ahead >= 0 else "behind"
    return ok(
        CLOCK,
        f"{abs(ahead):.1f} ms {side} the driver's (within {error:.1f} ms); for information",
        node=end.node.address,
    )
