"""Joining a Ray cluster: an address that was given, one that runs here already, or an embedded one of our own.

Never starts a cluster unless asked to (`embedded`), and never shuts down one that it did not join itself. A process can
be in one cluster only: its connections share that place, and the last to be closed gives it up.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import ray
from ray._private import state as ray_state
from ray.exceptions import RayError

from splitreel.cluster.embedded import EmbeddedCluster
from splitreel.cluster.placement import Node
from splitreel.cluster.reach import reach, resolve, same
from splitreel.errors import ClusterUnreachable

_lock = threading.Lock()
_open: list[Connection] = []


@dataclass(eq=False)
class Connection:
    """This process's place in a cluster. `close()` undoes what `connect` did, or leaves that to those that are still open.

    `joined`: leaving the cluster is this one's task; `embedded`: and ending it.
    """

    address: str
    joined: bool
    embedded: EmbeddedCluster | None = None

    def nodes(self) -> list[Node]:
        """The nodes that are alive, head first, with what is free on each."""
        holders = _actors_by_node()
        free = ray_state.available_resources_per_node()  # type: ignore[no-untyped-call]
        found = []
        for row in ray.nodes():  # type: ignore[no-untyped-call]
            if not row["Alive"]:
                continue
            resources = row["Resources"]
            found.append(
                Node(
                    node_id=row["NodeID"],
                    address=row["NodeManagerAddress"],
                    hostname=row["NodeManagerHostname"],
                    gpus=resources.get("GPU", 0.0),
                    free_gpus=free.get(row["NodeID"], {}).get("GPU", 0.0),
                    labels=dict(row.get("Labels") or {}),
                    holders=tuple(holders.get(row["NodeID"], ())),
                    ports=(row["NodeManagerPort"], row["ObjectManagerPort"]),
                )
            )
        heads = {row["NodeID"] for row in ray.nodes() if "node:__internal_head__" in row["Resources"]}  # type: ignore[no-untyped-call]
        return sorted(found, key=lambda node: (node.node_id not in heads, node.address, node.node_id))

    def leave(self) -> None:
        """Leave the cluster, unless others here use it. On the thread that has used Ray, when nothing else does any more.

        A reference to an object or actor that dies in another thread while Ray shuts down makes Ray end the whole process
        ("The core worker has already been shutdown", seen once in some ten sessions on a loaded machine). Hence no thread
        of its own here, and no garbage collection under way.
        """
        with _lock:
            if self not in _open:
                return
            _open.remove(self)
            if _open:
                if self.joined:
                    _open[0].joined, _open[0].embedded = True, self.embedded
                    self.embedded = None
                return
            if not self.joined:
                return
            gc.collect()
            collecting = gc.isenabled()
            gc.disable()
            try:
                ray.shutdown()
            finally:
                if collecting:
                    gc.enable()

    def close(self) -> None:
        """Leave the cluster, and end it if it is our own."""
        self.leave()
        if self.embedded is not None:
            self.embedded.stop()


def connect(address: str, *, nodes: int, report: Callable[[str], None] = lambda line: None) -> Connection:
    """Join the cluster at `address`. `report` gets a line per step of an embedded one's start, which it may end by raising.

    Raises ClusterUnreachable.
    """
    with _lock:
        if not ray.is_initialized():
            _open.clear()  # whoever is in there was put out by somebody's `ray.shutdown()`
        connection = _connect(address, nodes, report)
        _open.append(connection)
    return connection


def _connect(address: str, nodes: int, report: Callable[[str], None]) -> Connection:
    if address == "embedded":
        _refuse_second("embedded")
        cluster = EmbeddedCluster.start(nodes=nodes, progress=report)
        try:
            _init(cluster.address)
        except BaseException:
            cluster.stop()
            raise
        return Connection(cluster.address, joined=True, embedded=cluster)
    if ray.is_initialized():
        current = ray.get_runtime_context().gcs_address
        wanted = (os.environ.get("RAY_ADDRESS") or "auto") if address == "auto" else address
        if wanted != "auto" and not same(resolve(wanted), current):
            _refuse_second(wanted)
        return Connection(current, joined=False)
    head = resolve(address)
    reach(head, given=address, discovered=address == "auto" and not os.environ.get("RAY_ADDRESS"))
    _init(head)
    return Connection(ray.get_runtime_context().gcs_address, joined=True)


def _actors_by_node() -> dict[str, list[str]]:
    """The living actors of each node, as people can find them: class, pid, job. Ray does not say who holds what GPU."""
    found: dict[str, list[str]] = {}
    for row in ray_state.actors().values():
        if row["State"] == "ALIVE":
            name = row["ActorClassName"].rpartition(".")[2]
            shown = f"{name} (pid {row['Pid']}, job {row['JobID']})"
            found.setdefault(row["Address"]["NodeID"], []).append(shown)
    return found


def _refuse_second(wanted: str) -> None:
    if ray.is_initialized():
        current = ray.get_runtime_context().gcs_address
        raise ClusterUnreachable(
            f"cluster.address: expected {wanted}, found this process in the Ray cluster at {current} already. Use that address, "
            "or call ray.shutdown() first.",
            address=wanted,
        )


def _init(address: str) -> None:
    ray_logger = logging.getLogger("ray")
    level = ray_logger.level
    ray_logger.setLevel(logging.ERROR)  # "Connecting to...", and that a thread other than the main one sets no signals
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (RayError, ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ClusterUnreachable(
            f"cluster.address: expected to join the Ray cluster at {address}, found {first_line}. See that Ray runs on this "
            "machine too (ray start --address=...), and that it is the same version as the head's.",
            address=address,
        ) from error
    finally:
        ray_logger.setLevel(level)
