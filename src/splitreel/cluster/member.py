"""One worker as the driver sees it: its actor, where it was placed, whether it answers."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, ObjectStoreFullError, OutOfDiskError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from splitreel.cluster.actor import actor_class
from splitreel.cluster.answers import as_future, reason
from splitreel.cluster.direct import TransferStuck
from splitreel.cluster.environment import shown, split, worker_environment
from splitreel.cluster.host import slow
from splitreel.cluster.journal import Reader
from splitreel.cluster.placement import Node, Wish
from splitreel.cluster.replies import Reply, Room, WorkerFacts, reply_value
from splitreel.config import EngineConfig, RoleSpec
from splitreel.engine.backend import PayloadGone, StageReceipt, WorkerHealth, WorkerInfo
from splitreel.errors import PlacementError, StageError, WorkerLost, WorkerNotReady
from splitreel.lora import AdapterOrder, FuseAdapters, LoraReceipt
from splitreel.observe.logs import get_logger
from splitreel.observe.progress import LoadProgress, Progress
from splitreel.observe.spans import SpanRecord
from splitreel.request import Stage
from splitreel.roles.definition import ModelDefinition
from splitreel.share import Share

logger = get_logger(__name__)

# Health is answered from memory (13 ms seen for two workers); one that needs longer is silent.
_HEALTH_TIMEOUT = 0.9

OnEvent = Callable[[Progress | LoadProgress | Sequence[SpanRecord]], None]
OnLost = Callable[["Member", WorkerLost], None]


class Member:
    """A worker that is started, watched, asked to run stages, and ended. It reports its own loss once per life."""

    def __init__(
        self, model: ModelDefinition, spec: RoleSpec, wish: Wish, env: dict[str, str | None], settings: EngineConfig
    ):
        self.name = wish.worker
        self.spec = spec
        self.wish = wish
        self.facts: WorkerFacts | None = None
        self.info: WorkerInfo | None = None
        self.node: Node | None = None
        self.restarts = 0
        self.silent = False
        self.asked = False  # it starts or loads: should it end, that fails by itself, with the cause
        self.restarting = False  # until it serves again
        self._model = model
        self._env = worker_environment(env)
        self._settings = settings
        self._actor: Any = None
        self._lost: asyncio.Future[WorkerLost] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._reader = Reader()
        self._stages_running = 0
        self._on_event: OnEvent = lambda event: None
        self._on_lost: OnLost = lambda member, error: None

    @property
    def actor(self) -> Any:
        """The actor's handle. Raises WorkerLost when there is none."""
        return self.reached()[0]

    @property
    def place(self) -> str:
        """Role and node, for messages."""
        return f"role {self.spec.role} on {self.node.address if self.node else '?'}"

    @property
    def where(self) -> dict[str, str]:
        """Role and node, for log records."""
        return {"role": self.spec.role, "node": self.node.address if self.node else ""}

    # Life -------------------------------------------------------------------------------------------------------------

    async def create(self, node: Node, on_event: OnEvent, on_lost: OnLost) -> None:
        """Start the process on `node` and let it check its files. Raises ClusterError or CheckpointError."""
        self.node, self._on_event, self._on_lost = node, on_event, on_lost
        self._lost = asyncio.get_running_loop().create_future()
        self.silent = False
        plain, secrets = split(self._env)
        self._actor = (
            actor_class(self.spec.transport)
            .options(
                num_gpus=self.wish.gpus,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
                runtime_env={"env_vars": plain} if plain else None,
            )
            .remote(self._model, self.spec, self.name, shown(self._env), secrets)
        )
        facts: WorkerFacts = await self._ask(
            self._actor.prepare.remote(), self._settings.worker_timeout, "check its files"
        )
        if facts.node.node_id != node.node_id:
            raise PlacementError(
                f"{self.wish.where}: expected worker {self.name} on {node}, found it on {facts.node.name} (id "
                f"{facts.node.node_id[:8]})."
            )
        self.facts = facts
        self.info = WorkerInfo(
            self.name, self.spec.role, self.spec.stages, self.spec.workflows, node.address, facts.node.node_id
        )
        self._reader = Reader()
        self._watcher = asyncio.ensure_future(self._watch())

    async def load(self) -> None:
        """Load the role's components. Raises ClusterError or CheckpointError."""
        await self._ask(self.actor.load.remote(), self._settings.start_timeout, "load")

    def on_lost(self, on_lost: OnLost) -> None:
        """Whom to tell when the worker is lost from now on."""
        self._on_lost = on_lost

    def end(self) -> asyncio.Task[None] | None:
        """Kill the process. Safe to call again. What watched it is cancelled, and returned to be waited for."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
        if self._actor is not None:
            ray.kill(self._actor, no_restart=True)
            self._actor = None
        return watcher

    async def _ask(self, reference: Any, timeout: float, what: str) -> Any:
        """Await a Reply while the worker starts."""
        self.asked = True
        try:
            reply: Reply = await asyncio.wait_for(as_future(reference), timeout)
        except TimeoutError:
            raise WorkerNotReady(
                f"{self.place}: expected worker {self.name} to {what} within {timeout:g} s, found it still at it or not "
                "started by Ray. See its log on that node, or raise the deadline.",
                role=self.spec.role,
                node=self.node.address if self.node else None,
            ) from None
        except ActorUnschedulableError as error:
            raise PlacementError(f"{self.wish.where}: Ray cannot place worker {self.name}: {reason(error)}") from error
        except RayError as error:
            raise WorkerNotReady(
                f"{self.place}: expected worker {self.name} to {what}, found that it ended: {reason(error)}",
                role=self.spec.role,
                node=self.node.address if self.node else None,
            ) from error
        finally:
            self.asked = False
        self._on_event(reply.spans)
        return reply_value(reply)

    # Stages -----------------------------------------------------------------------------------------------------------

    async def run_stage(
        self, stage: Stage, request_id: str, payload: Any, parts: Sequence[Any] = ()
    ) -> tuple[Any, StageReceipt]:
        """Run a stage; the payload stays where it was made, only the receipt comes here."""
        made, receipt = self.start_stage(stage, request_id, [payload, *parts], None)
        return made, await receipt()

    def start_stage(
        self, stage: Stage, request_id: str, payloads: Sequence[Any], share: Share | None
    ) -> tuple[Any, Callable[[], Awaitable[StageReceipt]]]:
        """Order a run; what it makes, and what waits for its receipt. Raises WorkerLost."""
        actor, lost = self.reached()
        made, receipt = actor.run_stage.remote(stage, request_id, list(payloads), self._settings.hop_timeout, share)
        return made, functools.partial(self._receipt, stage, request_id, receipt, lost)

    async def _receipt(
        self, stage: Stage, request_id: str, reference: Any, lost: asyncio.Future[WorkerLost]
    ) -> StageReceipt:
        answer = await self._answer(reference, lost)
        try:
            reply: Reply = answer.result()
        except RayActorError as error:
            raise self._gave_up(reason(error)) from error
        except RayError as error:
            where = f"node {self.node.address if self.node else '?'}, role {self.spec.role}"
            raise StageError(
                f"{stage} of request {request_id} failed on {where}: {await self._why(error)}",
                request_id=request_id,
                stage=stage,
                role=self.spec.role,
                node=self.node.address if self.node else None,
                error_type=type(error).__name__,
            ) from error
        for event in self._reader.new(reply.events):
            self._on_event(event)
        self._on_event(reply.spans)
        if reply.failure is not None and reply.failure.error_type == TransferStuck.__name__:
            raise self._gave_up(reply.failure.message)
        if reply.failure is not None and reply.failure.error_type == PayloadGone.__name__:
            raise PayloadGone(reply.failure.message)
        self.restarts = 0
        receipt: StageReceipt = reply_value(reply)
        return receipt

    async def _why(self, error: RayError) -> str:
        """Ray's error in words of ours; with sizes where it had no room for what the stage made."""
        if isinstance(error, OutOfDiskError | ObjectStoreFullError) and self._actor is not None:
            with contextlib.suppress(TimeoutError, RayError):
                room: Room = await asyncio.wait_for(as_future(self._actor.room.remote()), _HEALTH_TIMEOUT)
                return str(room)
        return reason(error)

    async def adapt(self, order: AdapterOrder, content: Any, timeout: float) -> LoraReceipt | None:
        """Change the worker's adapters; an order that writes weights waits for the stage under way."""
        actor, lost = self.reached()
        if isinstance(order, FuseAdapters):
            reference = actor.adapt_between_stages.remote(order)
        else:
            reference = actor.adapt.remote(order, [] if content is None else [content], timeout)
        try:
            answer = await asyncio.wait_for(self._answer(reference, lost), timeout)
            reply: Reply = answer.result()
        except TimeoutError:
            raise slow(self.name, order, timeout) from None
        except RayActorError as error:
            raise self._gave_up(reason(error)) from error
        except RayError as error:
            raise WorkerNotReady(f"{self.place}: adapters were not changed: {reason(error)}") from error
        receipt: LoraReceipt | None = reply_value(reply)
        return receipt

    def reached(self) -> tuple[Any, asyncio.Future[WorkerLost]]:
        """The actor, and what tells of its loss. Raises WorkerLost when there is none now."""
        actor, lost = self._actor, self._lost
        if actor is None or lost is None or lost.done():
            raise copy.copy(lost.result()) if lost is not None and lost.done() else self._loss("it is being restarted")
        return actor, lost

    async def _answer(self, reference: Any, lost: asyncio.Future[WorkerLost]) -> asyncio.Future[Any]:
        """Wait until the worker has answered; its silence counts meanwhile. Raises WorkerLost."""
        answer = as_future(reference)
        answer.add_done_callback(_seen)
        self._stages_running += 1
        try:
            await asyncio.wait([answer, lost], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stages_running -= 1
        if not answer.done():
            answer.cancel()
            raise copy.copy(lost.result())
        return answer

    def stop_stage(self, request_id: str) -> None:
        """Ask the stage of this request to end at its next step."""
        if self._actor is not None:
            self._actor.stop.remote(request_id)

    # Watching -----------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Hand on what the worker reports, and notice when it no longer does.

        A worker that is silent while a stage runs on it is given up after `lost_after`; an idle one is only called
        silent (it may be stopped or swapped out, and come back), unless Ray says that it is dead.
        """
        while True:
            ask = self._actor.watch.remote(self._reader.seen, self._settings.heartbeat)
            answer = as_future(ask)
            patience = self._settings.heartbeat + self._settings.lost_after
            answer.add_done_callback(_seen)
            while not (await asyncio.wait([answer], timeout=patience))[0]:
                if self._stages_running:
                    self.give_up(self._loss(f"it did not answer for {self._settings.lost_after:g} s"))
                    return
                if not self.silent:
                    logger.warning(
                        "%s: worker %s does not answer; waiting for it", self.place, self.name, extra=self.where
                    )
                self.silent = True
                patience = self._settings.lost_after
            try:
                entries = answer.result()
            except RayError as error:
                self.give_up(self._loss(reason(error)))
                return
            if self.silent:
                logger.warning("%s: worker %s answers again", self.place, self.name, extra=self.where)
            self.silent = False
            for event in self._reader.new(entries):
                self._on_event(event)

    def give_up(self, error: WorkerLost) -> None:
        """Count the worker as lost: end what is left of it, tell the stage that waits and whoever listens. Once."""
        if self._lost is None or self._lost.done():
            return
        self._lost.set_result(error)
        watcher, self._watcher = self._watcher, None
        if watcher is not None and watcher is not asyncio.current_task():
            watcher.cancel()
        self.end()
        self._on_lost(self, error)

    def _gave_up(self, why: str) -> WorkerLost:
        """Give it up, and the error to raise: not the one that is kept, which would keep frames, with what is in them."""
        self.give_up(loss := self._loss(why))
        return copy.copy(loss)

    def _loss(self, why: str) -> WorkerLost:
        return WorkerLost(
            f"{self.place}: worker {self.name} was lost: {why}",
            role=self.spec.role,
            node=self.node.address if self.node else None,
        )

    async def health(self) -> WorkerHealth:
        """The worker's own report, or what is known without it."""
        unknown = WorkerHealth(
            worker=self.name,
            role=self.spec.role,
            node=self.node.address if self.node else "",
            node_id=self.node.node_id if self.node else "",
            state="restarting" if self.restarting else "lost" if self._actor is None else "silent",
        )
        if self._actor is None:
            return unknown
        try:
            report: WorkerHealth = await asyncio.wait_for(as_future(self._actor.health.remote()), _HEALTH_TIMEOUT)
        except (TimeoutError, RayError):
            return unknown
        return replace(report, node=unknown.node, state="restarting" if self.restarting else report.state)


def _seen(answer: asyncio.Future[Any]) -> None:
    """Look at the error of an answer that nobody waits for any more: its worker was ended."""
    if not answer.cancelled():
        answer.exception()
