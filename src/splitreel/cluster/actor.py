"""The Ray actor around a `WorkerHost`: a thin shell that only moves things between Ray and the host."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import ray
import ray._private.worker as ray_worker

from splitreel.cluster.direct import Kept, keep, read
from splitreel.cluster.host import Arrive, WorkerHost
from splitreel.cluster.journal import Entry
from splitreel.cluster.replies import NodeFacts, Reply, Room, WorkerFacts, versions
from splitreel.cluster.transport import NIXL, OBJECT_STORE, arrive, transport_of
from splitreel.config import RoleSpec
from splitreel.engine.backend import WorkerHealth, hop_between, hop_into
from splitreel.lora import AdapterOrder
from splitreel.observe.logs import get_logger, set_up_worker_log
from splitreel.request import Stage
from splitreel.roles.definition import ModelDefinition
from splitreel.share import Share
from splitreel.wire import Packed


class WorkerActor:
    """One worker process."""

    def __init__(
        self,
        model: ModelDefinition,
        spec: RoleSpec,
        name: str,
        environment: dict[str, str],
        secrets: dict[str, str],
    ) -> None:
        """`environment`: what this process was started with, as people may see it. `secrets`: variables to set now."""
        os.environ.update(secrets)
        set_up_worker_log()
        context = ray.get_runtime_context()
        node = NodeFacts(node_id=context.get_node_id(), name=ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._transport = spec.transport
        self._host = WorkerHost(model, spec, name, node, environment, transport_of(spec.transport))
        get_logger(__name__).info(
            "worker %s on %s, pid %d, python %s, %s, environment %s",
            name,
            node.name,
            os.getpid(),
            sys.executable,
            versions(),
            environment,
            extra={"role": spec.role, "node": node.name},
        )

    def prepare(self) -> Reply:
        """Check files, read the geometry, and see how full the disk is that Ray spills to."""
        reply = self._host.prepare()
        if isinstance(reply.value, WorkerFacts):
            room = self._room()
            return Reply(value=replace(reply.value, spill_folder=room.folder, spill_full=room.full))
        return reply

    def load(self) -> Reply:
        """Load the components."""
        return self._host.load()

    @ray.method(num_returns=2)
    def run_stage(
        self, stage: Stage, request_id: str, nested: list[Any], hop_timeout: float, share: Share | None = None
    ) -> tuple[Any, Reply]:
        """Run a stage from the first in `nested`, a payload or a reference to one; the others are parts, None those missing."""

        def arrival(reference: Any, hop: str, transport: str, *, part: bool = False) -> Arrive:
            return lambda control: arrive(
                reference,
                hop=hop,
                timeout=hop_timeout,
                spans=control.spans,
                check=control.check,
                transport=transport,
                # As long as it would take to make it here: this worker's own share took what it has worked so far.
                making=max(hop_timeout, control.seconds) if part else None,
            )

        payload = arrival(nested[0], hop_into(stage), self._transport if stage.previous is not None else OBJECT_STORE)
        # Like films, parts go through the object store whatever the transport is.
        parts = [
            None if part is None else arrival(part, hop_between(stage), OBJECT_STORE, part=True) for part in nested[1:]
        ]
        return self._host.run_stage(stage, request_id, payload, share, parts)  # unnamed here too, see there

    def adapt_between_stages(self, order: AdapterOrder) -> Reply:
        """Carry out an order that writes weights."""
        return self._host.adapt(order, lambda: np.empty(0, np.uint8))

    @ray.method(concurrency_group="control")
    def adapt(self, order: AdapterOrder, nested: list[Any], timeout: float) -> Reply:
        """Carry out an order about adapters, with the file's bytes behind the reference in `nested`, if any."""
        return self._host.adapt(order, lambda: ray.get(nested[0], timeout=timeout))

    @ray.method(concurrency_group="control")
    def stop(self, request_id: str) -> None:
        """Ask a stage to end at its next step."""
        self._host.stop(request_id)

    @ray.method(concurrency_group="control")
    def watch(self, seen: int, timeout: float) -> list[Entry]:
        """Wait for events."""
        return self._host.watch(seen, timeout)

    @ray.method(concurrency_group="control")
    def health(self) -> WorkerHealth:
        """What this worker holds and does."""
        return self._host.health()

    @ray.method(concurrency_group="control")
    def offer(self, num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """An object of this node's store, for the start-up probe."""
        return np.zeros(num_bytes, np.uint8)

    @ray.method(concurrency_group="control")
    def accept(self, nested: list[Any], timeout: float) -> int:
        """Fetch a probe object; its bytes, 0 when it did not arrive in time."""
        ready, _ = ray.wait(nested, timeout=timeout, fetch_local=True)
        return len(ray.get(ready[0], timeout=timeout)) if ready else 0

    @ray.method(concurrency_group="control")
    def offer_direct(self, num_bytes: int) -> Kept:
        """The same, in this process's memory."""
        return keep(Packed(b"", (np.zeros(num_bytes, np.uint8),)))

    @ray.method(concurrency_group="control")
    def accept_direct(self, nested: list[Any], timeout: float) -> int:
        """Read a probe object from the memory of the worker that keeps it; its bytes. Raises as `direct.read` does."""
        return read(ray.get(nested[0], timeout=timeout), timeout=timeout, check=lambda: None).num_bytes

    @ray.method(concurrency_group="control")
    def room(self) -> Room:
        """What the last payload needs and the node has: why Ray may not have taken it."""
        return self._room()

    def _room(self) -> Room:
        ray_node = ray_worker.global_worker.node
        assert ray_node is not None
        folder = ray_node.get_session_dir_path()
        usage = shutil.disk_usage(folder)
        rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        own = [row["Resources"] for row in rows if row["NodeID"] == self._host.node.node_id]
        store = round(own[0].get("object_store_memory", 0)) if own else 0
        return Room(self._host.made_bytes, store, folder, usage.free, usage.used / (usage.used + usage.free))


@functools.cache
def actor_class(transport: str) -> Any:
    """The worker as an actor class of Ray.

    Stages have the default group's single thread; the control group answers while a stage computes. One of its threads is
    taken by the driver's standing `watch`, and after a lost answer for a while by the one before it. Direct transport
    adds two threads of Ray's own, which free what was kept.
    """
    return ray.remote(  # type: ignore[call-overload]
        num_cpus=0,
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=1,
        concurrency_groups={"control": 8},
        enable_tensor_transport=transport == NIXL,
    )(WorkerActor)
