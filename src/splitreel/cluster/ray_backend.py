"""The Ray backend: members placed by node id, checked before anything loads, and replaced when lost.

Start: join → place → knock → create → each checks its files → compare → probe the links → load in parallel. Nothing loads
before all that can be checked cheaply has been; whatever fails, all that was started is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from splitreel.cluster.answers import reason
from splitreel.cluster.connection import Connection, connect
from splitreel.cluster.handshake import check_memory, compare, spill_warnings
from splitreel.cluster.member import Member
from splitreel.cluster.placement import Node, place, wishes_of
from splitreel.cluster.probe import knock, probe
from splitreel.cluster.replies import versions
from splitreel.cluster.transport import INLINE_BYTES, NIXL, arrive
from splitreel.config import Config
from splitreel.engine.backend import (
    BeforeServing,
    Listener,
    PayloadGone,
    StageReceipt,
    WorkerHealth,
    WorkerInfo,
    as_it_is,
    hop_into,
)
from splitreel.errors import ClusterError, SplitreelError, WorkerLost
from splitreel.lora import AdapterOrder, AdapterOutline, LoraReceipt
from splitreel.observe.logs import get_logger
from splitreel.observe.progress import LoadProgress, Progress
from splitreel.observe.spans import SpanRecord, SpanRecorder
from splitreel.request import Stage
from splitreel.roles.definition import ModelDefinition
from splitreel.share import Share
from splitreel.wire import Packed, account
from splitreel.words import counted

T = TypeVar("T")
logger = get_logger(__name__)

_CLOSE_TIMEOUT = 10.0
_LONGEST_PAUSE = 60.0  # between two tries to restart a worker, unless the first pause is longer


class RayBackend:
    """Workers as Ray actors."""

    def __init__(self, model: ModelDefinition, config: Config, adapters: Sequence[AdapterOutline] = ()) -> None:
        self._config = config
        self._members = {member.name: member for member in _members(model, config, adapters)}
        self._connecting: asyncio.Future[Connection] | None = None
        self._connection: Connection | None = None
        self._asking: set[asyncio.Future[Any]] = set()
        self._listener: Listener | None = None
        self._on_load: Callable[[LoadProgress], None] = lambda progress: None
        self.before_serving: BeforeServing = as_it_is
        self._gpus_before: dict[str, float] = {}
        self._revivals: set[asyncio.Task[None]] = set()
        self._started = False
        self._lost_at_start: asyncio.Future[WorkerLost] | None = None
        self._closing = False

    @property
    def workers(self) -> Sequence[WorkerInfo]:
        """All workers, once started."""
        return [member.info for member in self._members.values() if member.info is not None]

    @property
    def geometry(self) -> Mapping[str, Any]:
        """The checkpoint's geometry."""
        facts = next(iter(self._members.values())).facts
        assert facts is not None
        return facts.geometry

    # Life -------------------------------------------------------------------------------------------------------------

    async def start(self, listener: Listener, on_load: Callable[[LoadProgress], None]) -> None:
        """Place, check and load every worker. Raises ClusterError or CheckpointError, and WorkerLost at once for a worker that
        is lost while others still load.
        """
        self._listener, self._on_load = listener, on_load
        lost = self._lost_at_start = asyncio.get_running_loop().create_future()
        rising = asyncio.ensure_future(self._bring_up())
        try:
            await asyncio.wait([rising, lost], return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise lost.result()
            rising.result()
            self._started = True
        finally:
            rising.cancel()
            await asyncio.gather(rising, return_exceptions=True)

    async def _bring_up(self) -> None:
        cluster = self._config.cluster
        self._connecting = asyncio.ensure_future(
            asyncio.to_thread(connect, cluster.address, nodes=cluster.nodes, report=lambda line: self._go_on())
        )
        self._connection = await asyncio.shield(self._connecting)
        nodes = await self._in_thread(self._connection.nodes)
        self._gpus_before = {node.node_id: node.free_gpus for node in nodes}
        members = list(self._members.values())
        placed = place([member.wish for member in members], nodes)
        await knock(placed, self._config.engine.probe_timeout)
        await _all([member.create(placed[member.name], self._on_event, self._on_lost) for member in members])
        facts = [member.facts for member in members if member.facts is not None]
        compare(facts, versions())
        check_memory(facts)
        for line in spill_warnings(facts):
            logger.warning("%s", line)
        await probe(members, self._config.engine.probe_timeout, direct=cluster.transport == NIXL)
        await _all([member.load() for member in members])

    async def close(self) -> None:
        """End the actors, wait until their GPUs are free again, leave the cluster."""
        if self._closing:
            return
        self._closing = True
        for task in self._revivals:
            task.cancel()
        watchers = [watcher for member in self._members.values() if (watcher := member.end()) is not None]
        await asyncio.gather(*self._revivals, *watchers, return_exceptions=True)
        if self._connection is None and self._connecting is not None:  # the start was given up; its thread goes on
            with contextlib.suppress(Exception):
                self._connection = await asyncio.shield(self._connecting)
        if self._asking:
            await asyncio.wait(self._asking, timeout=_CLOSE_TIMEOUT)
        if self._connection is not None:
            if self._connection.embedded is None:
                await self._gpus_given_back(self._connection)
            self._connection.leave()
            await asyncio.to_thread(self._connection.close)

    async def _gpus_given_back(self, connection: Connection) -> None:
        """Ray frees an actor's GPU some time after the kill (0.5 s seen); whoever opens next must find it free."""
        waiting = {member.node.node_id for member in self._members.values() if member.node and member.wish.gpus}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CLOSE_TIMEOUT
        while waiting and loop.time() < deadline:
            free = {node.node_id: node.free_gpus for node in await asyncio.to_thread(connection.nodes)}
            waiting = {name for name in waiting if name in free and free[name] < self._gpus_before.get(name, 0)}
            if waiting:
                await asyncio.sleep(0.05)
        if waiting:
            logger.warning("GPUs of node %s were not given back within %g s", ", ".join(waiting), _CLOSE_TIMEOUT)

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Ask Ray something that takes its time. A thread cannot be cancelled, so `close` waits for those under way."""
        self._go_on()
        asked = asyncio.ensure_future(asyncio.to_thread(work, *args))
        self._asking.add(asked)
        asked.add_done_callback(self._asking.discard)
        try:
            return await asyncio.shield(asked)
        finally:
            del asked  # an error's traceback holds this frame, and what it was asked for with it

    def _go_on(self) -> None:
        """Raise when nobody waits any more: what asks Ray after it was left would start another one."""
        if self._closing:
            raise ClusterError("session: expected an open one, found it being closed.")

    # Stages -----------------------------------------------------------------------------------------------------------

    async def run_stage(
        self, worker: str, stage: Stage, request_id: str, payload: Any, parts: Sequence[Any] = ()
    ) -> tuple[Any, StageReceipt]:
        """Run a stage on a worker. A payload that is still in this process goes with the order if it is small, else to the
        store first.
        """
        if isinstance(payload, Packed) and payload.num_bytes > INLINE_BYTES:
            payload = await self._in_thread(ray.put, payload)
        return await self._members[worker].run_stage(stage, request_id, payload, parts)

    def start_part(
        self, worker: str, stage: Stage, request_id: str, payload: Any, share: Share
    ) -> tuple[Any, Callable[[], Awaitable[StageReceipt]]]:
        """Order a part; it stays where it is made until the worker that joins the parts fetches it."""
        return self._members[worker].start_stage(stage, request_id, [payload], share)

    async def stop_stage(self, worker: str, request_id: str) -> None:
        """Ask the stage to end at its next step."""
        self._members[worker].stop_stage(request_id)

    async def share(self, content: NDArray[np.uint8]) -> Any:
        """In the object store, once for all workers."""
        return await self._in_thread(ray.put, content)

    async def adapt(self, worker: str, order: AdapterOrder, content: Any, timeout: float) -> LoraReceipt | None:
        """Change a worker's adapters."""
        return await self._members[worker].adapt(order, content, timeout)

    async def fetch(self, payload: Any, spans: SpanRecorder) -> Any:
        """Bring the film here, as memory of this process: the store's goes away with the cluster."""
        try:
            return await self._in_thread(_bring, payload, self._config.engine.hop_timeout, spans, self._go_on)
        except RayError as error:
            raise PayloadGone(reason(error)) from error

    async def health(self) -> list[WorkerHealth]:
        """Ask every worker at once; one that does not answer in time is reported as silent or lost."""
        return list(await asyncio.gather(*(member.health() for member in self._members.values())))

    # Losses -----------------------------------------------------------------------------------------------------------

    async def replace_worker(self, worker: str, error: WorkerLost) -> None:
        """Give up a worker that does not stop; its loss is reported, and it is restarted, like any other.

        It was at work, so it can be loaded: earlier restarts do not count, or a few requests that hang would end the role.
        """
        self._members[worker].restarts = 0
        self._members[worker].give_up(error)

    def _on_event(self, event: Progress | LoadProgress | Sequence[SpanRecord]) -> None:
        assert self._listener is not None
        if isinstance(event, Progress):
            self._listener.on_progress(event)
        elif isinstance(event, LoadProgress):
            self._on_load(event)
        elif event:
            self._listener.on_spans(event)

    def _on_lost(self, member: Member, error: WorkerLost) -> None:
        if self._closing or member.info is None or self._listener is None or self._lost_at_start is None:
            return
        if not self._started:
            if not member.asked and not self._lost_at_start.done():
                self._lost_at_start.set_result(error)
            return
        returning = member.restarting = member.restarts < self._config.engine.restarts
        self._listener.on_worker_down(member.info, error, returning=returning)
        if returning:
            task = asyncio.ensure_future(self._revive(member, error))
            self._revivals.add(task)
            task.add_done_callback(self._revivals.discard)

    async def _revive(self, member: Member, error: WorkerLost) -> None:
        """Start the worker again, with growing pauses, while the others stay resident and go on."""
        assert self._listener is not None
        assert member.info is not None
        settings = self._config.engine
        last: Exception | None = None
        while member.restarts < settings.restarts:
            pause = settings.restart_pause * 2**member.restarts
            pause = min(pause, max(settings.restart_pause, _LONGEST_PAUSE))
            member.restarts += 1
            logger.info(
                "%s: restart %d of %d in %g s",
                member.place,
                member.restarts,
                settings.restarts,
                pause,
                extra=member.where,
            )
            await asyncio.sleep(pause)
            try:
                await member.create(await self._node_again(member), self._on_event, self._on_lost_in_revival)
                others = [other.facts for other in self._members.values() if other.facts is not None]
                compare(others, versions())
                await member.load()
                await self.before_serving(member.info)
                member.reached()
            except Exception as problem:  # whatever it is, such as a full object store: else nobody would ever be told
                last = problem
                logger.warning(
                    "%s: restart %d failed: %s",
                    member.place,
                    member.restarts,
                    problem,
                    extra=member.where,
                    exc_info=not isinstance(problem, SplitreelError),
                )
                member.end()
                continue
            member.on_lost(self._on_lost)
            member.restarting = False  # nothing may come between this and what `before_serving` did
            self._listener.on_worker_up(member.info)
            return
        gone = WorkerLost(
            f"{member.place}: worker {member.name} was lost and not brought back in "
            f"{counted(settings.restarts, 'try', 'tries')}. First: {error}"
            f"{f' Last: {type(last).__name__}: {last}' if last else ''}",
            role=member.spec.role,
            node=member.node.address if member.node else None,
        )
        member.restarting = False
        self._listener.on_worker_down(member.info, gone, returning=False)

    def _on_lost_in_revival(self, member: Member, error: WorkerLost) -> None:
        logger.warning("%s", error, extra=member.where)

    async def _node_again(self, member: Member) -> Node:
        """The node that the worker was on, also when its Ray was started anew and has another id; else one that the
        config allows for it now.
        """
        assert self._connection is not None
        assert member.node is not None
        nodes = await self._in_thread(self._connection.nodes)
        same = [node for node in nodes if node.node_id == member.node.node_id]
        renewed = [node for node in nodes if node.address == member.node.address]
        return (same or renewed or [place([member.wish], nodes)[member.name]])[0]


def _bring(reference: Any, timeout: float, spans: SpanRecorder, check: Callable[[], None]) -> Packed:
    materialize = arrive(reference, hop=hop_into(None), timeout=timeout, spans=spans, check=check)
    with spans.span("hop.materialize", hop=hop_into(None)) as attributes:
        packed = materialize()
        own = replace(packed, buffers=tuple(buffer.copy() for buffer in packed.buffers))
        attributes["payload"] = account(own).to_dict()
    return own


def _members(model: ModelDefinition, config: Config, adapters: Sequence[AdapterOutline]) -> list[Member]:
    return [
        Member(
            model,
            replace(config.role_spec(role), adapters=tuple(adapters)),
            wish,
            config.roles[role].env,
            config.engine,
        )
        for role, wishes in wishes_of(config).items()
        for wish in wishes
    ]


async def _all(steps: Sequence[Awaitable[None]]) -> None:
    """Run all at once; the first failure ends the others."""
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
