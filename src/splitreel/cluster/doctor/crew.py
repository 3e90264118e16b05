"""The nodes of a cluster against those that a config names: who is there, under which address, and who has which GPU."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from splitreel.cluster.doctor.finding import DRIVER, Finding, fail, of_error, ok, warn
from splitreel.cluster.placement import Node, Wish, find, place
from splitreel.errors import PlacementError


@dataclass(frozen=True)
class Crew:
    """Where each worker goes, as far as its node is there; and what was found."""

    placed: dict[str, Node]
    findings: tuple[Finding, ...]


def look_at_crew(wishes: Sequence[Wish], nodes: Sequence[Node]) -> Crew:
    """Place the workers, and say why those cannot be that cannot."""
    placed: dict[str, Node] = {}
    found = [*_live(wishes, nodes), *_distinct(wishes, nodes), *_loopback(nodes)]
    absent = []
    for wish in wishes:
        try:
            # Without its GPUs: a node whose GPU is taken is looked at as well.
            placed |= place([replace(wish, gpus=0.0)], nodes)
        except PlacementError as error:
            absent.append(wish.worker)
            found.append(of_error("roles.placed", error, node=wish.node or DRIVER, role=wish.worker))
    present = [wish for wish in wishes if wish.worker not in absent]
    try:
        placed |= place(present, nodes)
    except PlacementError as error:
        found.append(of_error("gpu.free", error, _free_it(error, nodes), node=error.details.get("node") or DRIVER))
    else:
        for wish in present:
            node = placed[wish.worker]
            found.append(ok("roles.placed", f"on {node}", node=node.address, role=wish.worker))
            if wish.gpus:
                shown = f"{node.free_gpus:g} of {node.gpus:g} GPU free, {wish.gpus:g} wanted"
                found.append(ok("gpu.free", shown, node=node.address, role=wish.worker))
    return Crew(placed, tuple(found))


def _free_it(error: PlacementError, nodes: Sequence[Node]) -> str:
    held = [node for node in nodes if node.address == error.details.get("node") and not node.gpus]
    return "Start Ray there with --num-gpus=1." if held else "Free a GPU there, or choose another node."


def _live(wishes: Sequence[Wish], nodes: Sequence[Node]) -> Iterator[Finding]:
    named = list(dict.fromkeys(wish.node for wish in wishes if wish.node is not None))
    absent = [name for name in named if not find(name, nodes)]
    shown = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}: {'; '.join(map(str, nodes))}"
    if absent and len(named) > 1 and len(nodes) == 1:
        yield fail(
            "nodes.live",
            f"{shown}; the config names {len(named)}, and {', '.join(absent)} has not joined",
            f"On {absent[0]}: ray start --address=HEAD (splitreel cluster commands prints the line for each machine), then "
            "splitreel cluster status.",
            node=absent[0],
        )
    else:
        yield ok("nodes.live", shown, node=DRIVER)


def _distinct(wishes: Sequence[Wish], nodes: Sequence[Node]) -> Iterator[Finding]:
    named = {wish.node for wish in wishes}
    twice = [address for address, count in Counter(node.address for node in nodes).items() if count > 1]
    for address in twice:
        ids = " and ".join(node.node_id[:8] for node in nodes if node.address == address)
        text = f"{ids} are different nodes with one address, {address}"
        remedy = (
            f"Start Ray on each machine with --node-ip-address and an address of its own (not a shared public one); for two "
            f"nodes on one machine name them by id: {ids.replace(' and ', ', ')}."
        )
        make = fail if address in named else warn
        yield make("nodes.distinct", text, remedy, node=address)
    if not twice:
        yield ok("nodes.distinct", "each node has an address of its own", node=DRIVER)
    used = {node.node_id for name in named if name is not None for node in find(name, nodes)}
    idle = [node for node in nodes if node.node_id not in used]
    if None not in named and len(wishes) > 1 and len(used) == 1 and idle:
        only = next(node for node in nodes if node.node_id in used)
        yield warn(
            "nodes.distinct",
            f"the config names {only.address} for all of {', '.join(wish.worker for wish in wishes)}, and nothing goes to "
            f"{', '.join(node.address for node in idle)}",
            f"If the same address was given twice by mistake, set roles.{wishes[-1].worker.partition('.')[0]}.node to "
            f"{idle[0].address}.",
            node=only.address,
        )


def _loopback(nodes: Sequence[Node]) -> Iterator[Finding]:
    """A node that calls itself 127.x can be reached by no other machine; several on one machine may."""
    names = {node.hostname for node in nodes}
    wrong = [node for node in nodes if _is_loopback(node.address)] if len(names) > 1 else []
    for node in wrong:
        yield fail(
            "nodes.loopback",
            f"Ray knows {node.hostname} by {node.address}, which means another machine to each of "
            f"{', '.join(sorted(names - {node.hostname}))}",
            "Start Ray there with --node-ip-address and the address that the others reach.",
            node=node.address,
        )
    if not wrong:
        yield ok("nodes.loopback", "no node is known by an address that others cannot reach", node=DRIVER)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
