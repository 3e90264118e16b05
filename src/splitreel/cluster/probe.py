"""The start-up probe: a real object from everyone to everyone who will exchange payloads, each with a deadline.

A node behind NAT, a firewall or a half-cut link can join a cluster and look healthy, and then no payload ever arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.exceptions import RayError

from splitreel.cluster.answers import as_future, reason
from splitreel.cluster.placement import Node
from splitreel.errors import ClusterError

if TYPE_CHECKING:
    from splitreel.cluster.member import Member

# Above Ray's limit for objects that travel inside messages (100 KB), so that it goes from store to store.
PROBE_BYTES = 1 << 20
DRIVER = "driver"

_REMEDY = "Open Ray's ports in that direction, or give each node the address that others reach."
_DIRECT_REMEDY = (
    "UCX, beneath nixl, chooses ports and interfaces itself: open all ports between the nodes, name the interface (env: "
    "{UCX_NET_DEVICES: eth0} of each role), or set cluster.transport: object_store."
)


async def knock(placed: Mapping[str, Node], timeout: float) -> None:
    """Raise ClusterError naming the nodes whose ports do not answer this machine: no call would ever reach a worker.

    Ray itself would wait for such a node without a word.
    """

    async def reach(worker: str, node: Node, port: int) -> str | None:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(node.address, port), timeout)
        except (TimeoutError, OSError) as error:
            found = getattr(error, "strerror", None) or f"no answer within {timeout:g} s"
            return f"{DRIVER} → {worker} ({node.address}) port {port}: {found}"
        writer.close()
        return None

    tries = [reach(worker, node, port) for worker, node in placed.items() for port in node.ports]
    _raise(
        [failure for failure in await asyncio.gather(*tries) if failure is not None],
        "the driver to reach every node",
        timeout,
    )


async def probe(members: Sequence[Member], timeout: float, *, direct: bool = False) -> None:
    """Raise ClusterError naming each direction that failed. `direct`: workers read from each other's memory as well."""
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
    _raise(failures, f"{PROBE_BYTES >> 20} MiB to pass between all roles", timeout)
    if direct:
        kept = {member.name: member.actor.offer_direct.remote(PROBE_BYTES) for member in members}
        checks = [
            _to_member(source, kept[source], member, timeout, direct=True)
            for member in members
            for source in kept
            if source != member.name
        ]
        failures = [failure for failure in await asyncio.gather(*checks) if failure is not None]
        _raise(failures, f"nixl to read {PROBE_BYTES >> 20} MiB from each worker's memory", timeout, _DIRECT_REMEDY)


def _raise(failures: list[str], expected: str, timeout: float, remedy: str = _REMEDY) -> None:
    if failures:
        raise ClusterError(
            f"link: expected {expected} within {timeout:g} s, found that it did not: {'; '.join(failures)}. {remedy}",
            failures=failures,
        )


async def _to_member(
    source: str, reference: Any, member: Member, timeout: float, *, direct: bool = False
) -> str | None:
    accept = member.actor.accept_direct if direct else member.actor.accept
    direction = f"{source} → {member.name} ({member.node.address if member.node else '?'})"
    try:
        received = await asyncio.wait_for(as_future(accept.remote([reference], timeout)), timeout + 5)
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
