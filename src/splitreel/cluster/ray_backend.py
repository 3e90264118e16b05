"""The Ray backend: one actor per worker, placed by node id, watched, and replaced when lost.

Start: join → place → create → each checks its files → compare → load in parallel. Nothing loads before everything that
can be checked cheaply has been; whatever fails, all that was started is ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from splitreel.cluster.actor import WorkerActor
from splitreel.cluster.connection import Connection, connect
from splitreel.cluster.environment import worker_environment
from splitreel.cluster.handshake import compare
from splitreel.cluster.host import Reply, WorkerFacts, reply_value, versions
from splitreel.cluster.placement import Node, Wish, place
from splitreel.config import Config, RoleSpec
from splitreel.engine.backend import Listener, PayloadGone, StageReceipt, WorkerHealth, WorkerInfo
from splitreel.errors import PlacementError, SplitreelError, StageError, WorkerLost, WorkerNotReady
from splitreel.observe.progress import LoadProgress, Progress
from splitreel.request import Stage
from splitreel.roles.definition import ModelDefinition
from splitreel.wire import Packed

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Until a created actor answers its first call: Ray starts the process and it imports torch and diffusers.
_ACTOR_START = 120.0
# A health report is answered from memory; one that takes longer means that the worker does not answer.
_HEALTH_TIMEOUT = 5.0
_CLOSE_TIMEOUT = 10.0


@dataclass
class _Worker:
    """One worker and what this process knows of it."""

    name: str
    spec: RoleSpec
    wish: Wish
    env: dict[str, str]
    node: Node
    actor: Any = None
    info: WorkerInfo | None = None
    facts: WorkerFacts | None = None
    watcher: asyncio.Task[None] | None = None
    lost: asyncio.Future[WorkerLost] | None = None
    restarts: int = 0
    health: WorkerHealth | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class RayBackend:
    """Workers as Ray actors."""

    def __init__(self, model: ModelDefinition, config: Config) -> None:
        self._model = model
        self._config = config
        self._connection: Connection | None = None
        self._workers: dict[str, _Worker] = {}
        self._listener: Listener | None = None
        self._on_load: Callable[[LoadProgress], None] = lambda progress: None
        self._gpus_before: dict[str, float] = {}
        self._closing = False

    @property
    def workers(self) -> Sequence[WorkerInfo]:
        """All workers that were ever ready."""
        return [worker.info for worker in self._workers.values() if worker.info is not None]

    @property
    def geometry(self) -> Mapping[str, Any]:
        """The checkpoint's geometry."""
        facts = next(iter(self._workers.values())).facts
        assert facts is not None
        return facts.geometry

    # Life -------------------------------------------------------------------------------------------------------------

    async def start(self, listener: Listener, on_load: Callable[[LoadProgress], None]) -> None:
        """Place, check and load every worker. Raises ClusterError or CheckpointError."""
        self._listener, self._on_load = listener, on_load
        cluster = self._config.cluster
        self._connection = await asyncio.to_thread(connect, cluster.address, nodes=cluster.nodes)
        nodes = self._connection.nodes()
        self._gpus_before = {node.node_id: node.free_gpus for node in nodes}
        self._plan(nodes)
        await self._all(self._create)
        compare([worker.facts for worker in self._workers.values() if worker.facts is not None], versions())
        await self._all(self._load)

    async def close(self) -> None:
        """End the actors, wait until their GPUs are free again, leave the cluster."""
        if self._closing:
            return
        self._closing = True
        for worker in self._workers.values():
            for task in (*worker.tasks, *([worker.watcher] if worker.watcher else [])):
                task.cancel()
            if worker.actor is not None:
                ray.kill(worker.actor, no_restart=True)
                worker.actor = None
        if self._connection is not None:
            if self._connection.embedded is None:
                await self._gpus_given_back()
            await asyncio.to_thread(self._connection.close)

    async def _gpus_given_back(self) -> None:
        """Ray frees an actor's GPU some time after the kill (0.5 s seen); whoever opens next must find it free."""
        ours = {worker.node.node_id for worker in self._workers.values() if worker.wish.gpus}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CLOSE_TIMEOUT
        assert self._connection is not None
        while ours and loop.time() < deadline:
            free = {node.node_id: node.free_gpus for node in self._connection.nodes()}
            ours = {node_id for node_id in ours if free.get(node_id, 1e9) < self._gpus_before.get(node_id, 0)}
            if ours:
                await asyncio.sleep(0.05)
        if ours:
            logger.warning("GPUs of node %s were not given back within %g s", ", ".join(ours), _CLOSE_TIMEOUT)

    def _plan(self, nodes: Sequence[Node]) -> None:
        wishes: list[Wish] = []
        specs: dict[str, tuple[RoleSpec, dict[str, str]]] = {}
        for role, settings in self._config.roles.items():
            for index, node in enumerate(settings.placements):
                single = len(settings.placements) == 1
                name = role if single else f"{role}.{index}"
                where = f"roles.{role}.node" if settings.nodes is None else f"roles.{role}.nodes[{index}]"
                wishes.append(Wish(name, where, node, settings.gpus))
                specs[name] = (self._config.role_spec(role), dict(settings.env))
        placed = place(wishes, nodes)
        for wish in wishes:
            spec, env = specs[wish.worker]
            self._workers[wish.worker] = _Worker(wish.worker, spec, wish, env, placed[wish.worker])

    async def _all(self, step: Callable[[_Worker], Awaitable[None]]) -> None:
        """Run a step for all workers at once; the first failure ends the others."""
        tasks = [asyncio.ensure_future(step(worker)) for worker in self._workers.values()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _create(self, worker: _Worker) -> None:
        """Start the actor where it was placed and let it check its files."""
        worker.lost = asyncio.get_running_loop().create_future()
        worker.actor = WorkerActor.options(  # type: ignore[attr-defined]
            num_gpus=worker.wish.gpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(worker.node.node_id, soft=False),
            runtime_env={"env_vars": worker_environment(worker.env)},
        ).remote(self._model, worker.spec, worker.name)
        facts: WorkerFacts = reply_value(
            await self._ask(worker, worker.actor.prepare.remote(), _ACTOR_START, "check its files")
        )
        if facts.node.node_id != worker.node.node_id:
            raise PlacementError(
                f"{worker.wish.where}: expected worker {worker.name} on node {worker.node}, found it on {facts.node.name} "
                f"({facts.node.node_id[:8]})."
            )
        worker.facts = facts
        name = worker.node.address
        worker.info = WorkerInfo(
            worker.name, worker.spec.role, worker.spec.stages, worker.spec.workflows, name, facts.node.node_id
        )
        worker.watcher = asyncio.ensure_future(self._watch(worker))

    async def _load(self, worker: _Worker) -> None:
        reply = await self._ask(worker, worker.actor.load.remote(), self._config.engine.start_timeout, "load")
        reply_value(reply)

    async def _ask(self, worker: _Worker, reference: Any, timeout: float, what: str) -> Reply:
        """Await a worker's reply while it starts, with Ray's errors in our words."""
        place_of = f"role {worker.spec.role} on {worker.node.address}"
        try:
            return await asyncio.wait_for(_future(reference), timeout)
        except TimeoutError:
            raise WorkerNotReady(
                f"{place_of}: expected worker {worker.name} to {what} within {timeout:g} s, found it still at it or pending. "
                "See its log on that node, or raise the deadline.",
                role=worker.spec.role,
                node=worker.node.address,
            ) from None
        except ActorUnschedulableError as error:
            raise PlacementError(f"{worker.wish.where}: Ray cannot place it: {error}") from error
        except RayError as error:
            raise WorkerNotReady(
                f"{place_of}: worker {worker.name} ended before it was ready: {_reason(error)}",
                role=worker.spec.role,
                node=worker.node.address,
            ) from error

    # Stages -----------------------------------------------------------------------------------------------------------

    async def run_stage(self, worker: str, stage: Stage, request_id: str, payload: Any) -> tuple[Any, StageReceipt]:
        """Run a stage on a worker; the payload itself stays where it was made."""
        target = self._workers[worker]
        reference = await asyncio.to_thread(ray.put, payload) if isinstance(payload, Packed) else payload
        actor, lost = target.actor, target.lost
        assert actor is not None
        assert lost is not None
        assert target.info is not None
        made, receipt = actor.run_stage.remote(stage, request_id, [reference], self._config.engine.stage_timeout)
        answer = asyncio.ensure_future(_future(receipt))
        await asyncio.wait({answer, lost}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            raise lost.result()
        try:
            reply: Reply = answer.result()
        except RayActorError as error:
            loss = self._loss(target, _reason(error))
            self._set_lost(target, loss)
            raise loss from error
        except RayError as error:
            raise StageError(
                f"{stage} of request {request_id} failed on node {target.info.node}, role {target.spec.role}: {_reason(error)}",
                request_id=request_id,
                stage=stage,
                role=target.spec.role,
                node=target.info.node,
            ) from error
        if reply.failure is not None and reply.failure.error_type == PayloadGone.__name__:
            raise PayloadGone(reply.failure.message)
        return made, reply_value(reply)

    async def stop_stage(self, worker: str, request_id: str) -> None:
        """Ask the stage to end at its next step."""
        actor = self._workers[worker].actor
        if actor is not None:
            actor.stop.remote(request_id)

    async def fetch(self, payload: Any) -> Any:
        """Bring the film here, as memory of this process: the store's goes away with the cluster."""
        try:
            packed: Packed = await asyncio.wait_for(_future(payload), self._config.engine.stage_timeout)
        except RayError as error:
            raise PayloadGone(_reason(error)) from error
        return replace(packed, buffers=tuple(buffer.copy() for buffer in packed.buffers))

    # Watching -----------------------------------------------------------------------------------------------------------

    async def _watch(self, worker: _Worker) -> None:
        """Hand on what the worker reports. Its silence, or Ray's word, means that it is lost."""
        settings = self._config.engine
        seen = 0
        while not self._closing:
            try:
                seen, events = await asyncio.wait_for(
                    _future(worker.actor.watch.remote(seen, settings.heartbeat)),
                    settings.heartbeat + settings.lost_after,
                )
            except TimeoutError:
                self._set_lost(worker, self._loss(worker, f"no answer for {settings.lost_after:g} s"))
                return
            except RayError as error:
                self._set_lost(worker, self._loss(worker, _reason(error)))
                return
            for event in events:
                if isinstance(event, Progress):
                    assert self._listener is not None
                    self._listener.on_progress(event)
                else:
                    self._on_load(event)

    def _loss(self, worker: _Worker, reason: str) -> WorkerLost:
        return WorkerLost(
            f"role {worker.spec.role} on {worker.node.address}: worker {worker.name} was lost: {reason}",
            role=worker.spec.role,
            node=worker.node.address,
        )

    def _set_lost(self, worker: _Worker, error: WorkerLost) -> None:
        """Say once that a worker is lost, to the stage that waits for it and to the engine."""
        if worker.lost is None or worker.lost.done() or self._closing:
            return
        worker.lost.set_result(error)
        if worker.actor is not None:
            ray.kill(worker.actor, no_restart=True)
            worker.actor = None
        if worker.info is not None and self._listener is not None:
            self._listener.on_worker_down(worker.info, error, returning=False)

    async def replace_worker(self, worker: str, error: WorkerLost) -> None:
        """Give up a worker that does not answer."""
        self._set_lost(self._workers[worker], error)

    async def health(self) -> list[WorkerHealth]:
        """Ask every worker at once; one that does not answer in time is reported as lost."""
        return list(await asyncio.gather(*(self._health_of(worker) for worker in self._workers.values())))

    async def _health_of(self, worker: _Worker) -> WorkerHealth:
        silent = WorkerHealth(
            worker=worker.name,
            role=worker.spec.role,
            node=worker.node.address,
            node_id=worker.node.node_id,
            state="lost",
        )
        if worker.actor is None:
            return silent
        try:
            report: WorkerHealth = await asyncio.wait_for(_future(worker.actor.health.remote()), _HEALTH_TIMEOUT)
        except (TimeoutError, RayError):
            return silent
        return replace(report, node=worker.node.address)


async def _future(reference: Any) -> Any:
    """A reference as a coroutine that can be waited for and given up."""
    return await asyncio.wrap_future(reference.future())


def _reason(error: BaseException) -> str:
    """The first useful line of a Ray error, without its page of advice."""
    if isinstance(error, SplitreelError):
        return error.message
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:500]}"
