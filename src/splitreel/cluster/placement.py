"""Which node each worker goes to: a pure function of the config and the nodes that are alive.

A node is named by Ray's node id, its address, its host name or a label (`key=value`). Nothing is left to Ray's own
placement, which waits for ever on a node that it does not know or that is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from splitreel.config import Config
from splitreel.errors import PlacementError


@dataclass(frozen=True)
class Node:
    """A live node. GPUs are Ray's numbers; `holders` names the actors of others that hold some of them, if known.
    `ports`: those of its raylet, on which tasks and objects arrive.
    """

    node_id: str
    address: str
    hostname: str
    gpus: float = 0.0
    free_gpus: float = 0.0
    labels: dict[str, str] = field(default_factory=dict)
    holders: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f'{self.address} "{self.hostname}" {self.gpus:g} GPU'


@dataclass(frozen=True)
class Wish:
    """Where a worker wants to be. `where`: the setting it comes from, for messages. `node`: None for any."""

    worker: str
    where: str
    node: str | None
    gpus: float


def wishes_of(config: Config) -> dict[str, list[Wish]]:
    """What each role of a config asks for, one wish per worker: the role's name, numbered where it has several nodes."""
    found: dict[str, list[Wish]] = {}
    for role, settings in config.roles.items():
        for index, node in enumerate(settings.placements):
            name = role if len(settings.placements) == 1 else f"{role}.{index}"
            where = f"roles.{role}.node" if settings.nodes is None else f"roles.{role}.nodes[{index}]"
            found.setdefault(role, []).append(Wish(name, where, node, settings.gpus))
    return found


def place(wishes: Sequence[Wish], nodes: Sequence[Node]) -> dict[str, Node]:
    """A node for each worker. Raises PlacementError naming the setting and the live nodes.

    Workers that name no node go to the one with enough free GPUs and the fewest workers, in Ray's order.
    """
    free = {node.node_id: node.free_gpus for node in nodes}
    count = dict.fromkeys(free, 0)
    placed: dict[str, Node] = {}
    for wish in sorted(wishes, key=lambda wish: wish.node is None):
        node = _named(wish, nodes, free, count) if wish.node is not None else _any(wish, nodes, free, count)
        if free[node.node_id] < wish.gpus:
            held = f", held by {', '.join(node.holders)}" if node.holders else ""
            ours = f", {count[node.node_id]} of them for other roles of this config" if count[node.node_id] else ""
            raise PlacementError(
                f"{wish.where}: expected {wish.gpus:g} free GPU on node {node.address}, found "
                f"{free[node.node_id]:g} of {node.gpus:g} free{ours}{held}. Free it, choose another node, or set num_gpus."
                f"{_live(nodes)}",
                node=node.address,
            )
        free[node.node_id] -= wish.gpus
        count[node.node_id] += 1
        placed[wish.worker] = node
    return placed


def find(name: str, nodes: Sequence[Node]) -> list[Node]:
    """The nodes that a name fits: node id (or 8 or more of its first digits), address, host name, or `label=value`."""
    exact = [node for node in nodes if name in (node.node_id, node.address, node.hostname)]
    if exact:
        return exact
    key, equals, value = name.partition("=")
    if equals:
        return [node for node in nodes if node.labels.get(key) == value]
    return [node for node in nodes if len(name) >= 8 and node.node_id.startswith(name)]


def _named(wish: Wish, nodes: Sequence[Node], free: dict[str, float], count: dict[str, int]) -> Node:
    assert wish.node is not None
    if wish.node in ("0.0.0.0", "::"):
        raise PlacementError(f"{wish.where}: expected the address of one node, found {wish.node!r}.{_live(nodes)}")
    fitting = find(wish.node, nodes)
    if len(fitting) == 1:
        return fitting[0]
    if fitting and wish.node not in {node.hostname for node in fitting} and "=" in wish.node:
        # A label: those that have the GPUs, then those with the fewest workers of ours; the address makes it the same each time.
        return min(
            fitting, key=lambda node: (free[node.node_id] < wish.gpus, count[node.node_id], node.address, node.node_id)
        )
    found = f"{len(fitting)} nodes of that name" if fitting else "no live Ray node of that name"
    hint = "Use the node id." if fitting else f"Start Ray there or change {wish.where}."
    raise PlacementError(f"{wish.where}: expected {wish.node!r}, found {found}.{_live(nodes)} {hint}", node=wish.node)


def _any(wish: Wish, nodes: Sequence[Node], free: dict[str, float], count: dict[str, int]) -> Node:
    able = [node for node in nodes if free[node.node_id] >= wish.gpus]
    if not able:
        raise PlacementError(
            f"{wish.where}: expected a node with {wish.gpus:g} free GPU, found none.{_live(nodes, free)} Start Ray on "
            "one more machine, free a GPU, or set num_gpus."
        )
    return min(able, key=lambda node: count[node.node_id])


def _live(nodes: Sequence[Node], free: dict[str, float] | None = None) -> str:
    def show(node: Node) -> str:
        left = free[node.node_id] if free is not None else node.free_gpus
        held = f" held by {', '.join(node.holders)}" if node.holders else ""
        return f"{node} ({left:g} free{held}, id {node.node_id[:8]})"

    return f" Live: {'; '.join(show(node) for node in nodes) or 'none'}."
