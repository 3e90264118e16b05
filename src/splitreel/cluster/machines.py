"""How much memory the nodes of a running cluster have, where the workers of a config would be: for plans."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from splitreel.cluster.answers import as_future, reason
from splitreel.cluster.connection import connect
from splitreel.cluster.placement import Node, place, wishes_of
from splitreel.config import Config
from splitreel.errors import ClusterError

ANSWER_S = 60.0  # a process starts there and imports torch: 3 s on two idle cores, 30 s on busy ones


@dataclass(frozen=True)
class Seat:
    """A worker's memory: the GPU that it would have, named `ADDRESS` or `ADDRESS#N`, or the machine's own."""

    worker: str
    machine: str
    bytes: int
    unified: bool


@ray.remote(num_cpus=0, max_retries=0)
def _measure(device: str) -> tuple[int, bool]:
    """Bytes of a device, and whether the CPU shares them."""
    import psutil

    from splitreel.roles.device import look_at_gpu

    total: int = psutil.virtual_memory().total
    if device == "cpu":
        return total, True
    gpu = look_at_gpu(device)
    if gpu is None:
        raise ValueError(f"no device {device}")
    return (total, True) if gpu.unified or gpu.total_bytes is None else (gpu.total_bytes, False)


def seats_of(config: Config) -> list[Seat]:
    """What each worker of the config would have, in the order of the config. Takes at most a minute; loads nothing.

    Raises ClusterError when the cluster does not answer, and PlacementError when a node is not in it.
    """
    connection = connect(config.cluster.address, nodes=1)
    try:
        wishes = [(role, wish) for role, each in wishes_of(config).items() for wish in each]
        placed = place([wish for _, wish in wishes], connection.nodes())
        order = [(wish.worker, placed[wish.worker], config.roles[role].device, wish.gpus) for role, wish in wishes]
        return asyncio.run(_seats(order))
    finally:
        connection.close()


async def _seats(order: Sequence[tuple[str, Node, str, float]]) -> list[Seat]:
    answers = await asyncio.gather(*(_ask(worker, node, device) for worker, node, device, _ in order))
    taken: dict[str, int] = {}
    seats = []
    for (worker, node, _, gpus), (size, unified) in zip(order, answers, strict=True):
        name = node.address
        if not unified and gpus >= 1 and node.gpus > 1:
            name = f"{node.address}#{taken.get(node.address, 0)}"  # a GPU of its own
            taken[node.address] = taken.get(node.address, 0) + 1
        seats.append(Seat(worker, name, size, unified))
    return seats


async def _ask(worker: str, node: Node, device: str) -> Any:
    reference = _measure.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)).remote(
        device
    )
    try:
        return await asyncio.wait_for(as_future(reference), ANSWER_S)
    except TimeoutError:
        why = f"no answer within {ANSWER_S:g} s"
    except RayError as error:
        why = reason(error)
    raise ClusterError(
        f"memory of {device} on node {node.address} for {worker}: expected its size, found {why}. See splitreel doctor.",
        node=node.address,
    )
