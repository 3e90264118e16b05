"""The inside of a worker, the same on Ray and in this process: one role, one stage at a time, always answering.

Stages run in one thread; `watch`, `health` and `stop` come from others and never wait for a stage.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from splitreel.cluster.journal import Entry, Journal
from splitreel.cluster.replies import Failure, NodeFacts, Reply, WorkerFacts, versions
from splitreel.config import RoleSpec
from splitreel.engine.backend import PayloadGone, StageReceipt, WorkerHealth, hop_between, hop_into
from splitreel.errors import RequestCancelled, SplitreelError, StageError, WorkerNotReady
from splitreel.lora import AdapterOrder
from splitreel.observe.logs import about, get_logger
from splitreel.observe.progress import LoadProgress
from splitreel.observe.spans import Device, Place, SpanRecorder, TraceContext
from splitreel.request import Stage
from splitreel.roles.control import StageControl
from splitreel.roles.definition import ModelDefinition
from splitreel.roles.device import memory_id, trace_device
from splitreel.roles.role import Role
from splitreel.share import Share
from splitreel.wire import Packed, Payload, account, pack, unpack

logger = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Transport:
    """How payloads go on to other workers. `ready` raises WorkerNotReady, given the worker's name, where that is not possible;
    `hand_on` gives what `run_stage` returns. The film, which goes to the driver, stays as it is packed.
    """

    name: str = "memory"
    ready: Callable[[str], object] = lambda worker: None
    hand_on: Callable[[Packed], Any] = lambda packed: packed


# Waits until a stage's payload is on this machine, and gives what reads it.
Arrive = Callable[[StageControl], Callable[[], Packed]]


class WorkerHost:
    """One worker. `prepare`, `load` and `run_stage` belong to its stage thread; the rest may come from any."""

    def __init__(
        self,
        model: ModelDefinition,
        spec: RoleSpec,
        name: str,
        node: NodeFacts,
        environment: dict[str, str] | None = None,
        transport: Transport | None = None,
    ) -> None:
        """`environment`: what was set for this worker, secrets masked; health shows it."""
        self.name = name
        self.node = node
        self._spec = spec
        self._environment = dict(environment or {})
        self._transport = transport or Transport()
        self.place = Place(name, spec.role, node.name)
        self._role = Role(model, spec)
        self._device = Device()
        self._model = model
        self._journal = Journal()
        self._control: StageControl | None = None
        self._stops: set[str] = set()
        self._part_ended = ""
        self._lock = threading.Lock()
        self._state = "loading"
        self._stages_done = 0
        self.made_bytes = 0  # of the last payload that a stage made here
        self._loads = 0

    def prepare(self) -> Reply:
        """Check files and transport and read the geometry; a `WorkerFacts`, or a CheckpointError or WorkerNotReady, which say
        where.
        """

        def work() -> WorkerFacts:
            self._transport.ready(self.name)
            geometry = self._role.prepare()
            self._device = trace_device(self._spec)
            return WorkerFacts(
                worker=self.name,
                role=self._spec.role,
                node=self.node,
                pid=os.getpid(),
                geometry=geometry.to_dict(),
                fingerprint=geometry.fingerprint,
                schema=self._model.schema,
                versions=versions(),
                device=self._spec.device,
                memory_id=memory_id(self._spec.device),
                memory_needed=self._role.memory_needed(),
                memory_free=self._role.memory_free(),
            )

        return self._reply("check its files", work)

    def load(self) -> Reply:
        """Load the role's components, reporting each to the journal; None, or an error as of `prepare`."""

        def report(component: str, done: int, total: int, num_bytes: int, seconds: float) -> None:
            self._journal.add(LoadProgress(self.name, self.node.name, component, done, total, num_bytes, seconds))

        spans = SpanRecorder(self.place, device=self._device, enabled=self._spec.trace_record)

        def work() -> None:
            self._loads += 1
            with about("", self.place.role, self.place.node):
                self._role.load(report, spans)
                logger.info("ready: %s", ", ".join(self._role.resident) or "no components")
            self._state = "ready"

        return replace(self._reply("load", work), spans=spans.finish())

    def run_stage(
        self,
        stage: Stage,
        request_id: str,
        arrive: Arrive,
        share: Share | None = None,
        parts: Sequence[Arrive | None] = (),
    ) -> tuple[Any, Reply]:
        """Take a payload and run a stage. The payload made, as the transport hands it on (None on failure), and a Reply with
        a StageReceipt, apart, so that the receipt can be read without the payload. A `share` makes it a part of one; or
        `parts` are joined.
        """
        share = share or Share(0, 1 + len(parts))
        spans = SpanRecorder(
            self.place, request_id=request_id, stage=stage, device=self._device, enabled=self._spec.trace_record
        )
        # What a part has done of its share would be no progress of the request's.
        report = self._journal.add if share.index == 0 else None
        control = StageControl(request_id, stage, report, spans, share)
        control.parts = tuple(functools.partial(self._take_part, part, control) for part in parts)
        key = share.key or request_id
        with self._lock:
            self._control = control
            if key in self._stops:
                control.stop()
        began = time.monotonic()
        with about(request_id, self.place.role, self.place.node):
            logger.debug("%s begins", stage)
            try:
                made, receipt = self._take_and_run(stage, arrive, control)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also a panic of a library in Rust, which is no Exception
                logger.debug("%s ended: %s: %s", stage, type(error).__name__, error)
                # No local name for the failure, here or where this is called: it holds the error, whose traceback holds
                # these frames and the payload, which would then stay in the store until Python looks for cycles.
                return None, Reply(
                    failure=self._failure(error, stage, request_id),
                    spans=spans.finish(),
                    events=self._journal.untaken(),
                )
            finally:
                control.parts = ()
                with self._lock:
                    self._control = None
                    self._stops.discard(key)
                    self._part_ended = share.key
            logger.debug("%s done in %.3f s", stage, time.monotonic() - began)
        self._stages_done += 1
        return made, Reply(value=receipt, events=self._journal.untaken())

    def _take_and_run(self, stage: Stage, arrive: Arrive, control: StageControl) -> tuple[Any, StageReceipt]:
        spans = control.spans
        control.check()
        materialize = arrive(control)
        with spans.span("hop.materialize", hop=hop_into(stage)) as attributes:
            packed = materialize()
            payload = unpack(packed)
            spans.context = TraceContext.of(payload.header.trace)
            attributes["payload"] = account(packed).to_dict()
            payload = self._role.receive(stage, payload)
        began = time.monotonic()
        with spans.span(f"{stage}.part" if control.share.index else str(stage)):
            result = self._role.run(stage, payload, control)
            with spans.span("pack"):
                made = pack(result)
                if stage.following is not None:
                    made = self._transport.hand_on(made)
        self.made_bytes = made.num_bytes
        return made, StageReceipt(
            request_id=control.request_id,
            stage=stage,
            worker=self.name,
            node=self.node.name,
            seconds=time.monotonic() - began,
            spans=spans.finish(),
            payload_bytes=result.num_bytes,
            wire_bytes=made.num_bytes,
            values=dict(result.header.values),
        )

    @staticmethod
    def _take_part(arrive: Arrive | None, control: StageControl) -> Payload | None:
        """A part that another worker makes, None when it does not come; raises RequestCancelled while it is awaited."""
        if arrive is None:
            return None
        try:
            materialize = arrive(control)
            with control.span("hop.materialize", hop=hop_between(control.stage)) as attributes:
                packed = materialize()
                attributes["payload"] = account(packed).to_dict()
            return unpack(packed)
        except RequestCancelled:
            raise
        except Exception as error:  # whatever its worker or the store says: the part can be made here
            logger.warning("a part of %s did not come and is made here: %s", control.stage, error)
            return None

    def adapt(self, order: AdapterOrder, content: Callable[[], NDArray[np.uint8]]) -> Reply:
        """Change the role's adapters; a LoraReceipt or None. `FuseAdapters` belongs to the stage thread."""
        return self._reply("change its adapters", lambda: self._role.adapters.carry_out(order, content))

    def stop(self, request_id: str) -> None:
        """Ask the stage of this request to end at its next step; also when it is only about to start."""
        with self._lock:
            control = self._control
            if control is not None and (control.share.key or control.request_id) == request_id:
                control.stop()
            elif request_id != self._part_ended:  # a part never comes again
                self._stops.add(request_id)

    def watch(self, seen: int, timeout: float) -> list[Entry]:
        """Wait until there are events after number `seen`, or `timeout` seconds."""
        return self._journal.since(seen, timeout)

    def health(self) -> WorkerHealth:
        """What this worker holds and does."""
        control = self._control
        return WorkerHealth(
            worker=self.name,
            role=self._spec.role,
            node=self.node.name,
            node_id=self.node.node_id,
            state=self._state,
            components=dict(self._role.resident),
            running=f"{control.stage} of {control.request_id}" if control is not None else None,
            stages_done=self._stages_done,
            loads=self._loads,
            pid=os.getpid(),
            device=self._spec.device,
            threads=self._spec.threads or 0,
            geometry=self._role.geometry.fingerprint,
            versions=versions(),
            environment=self._environment,
            attention=self._role.attention.in_force(),
            compile=dict(self._role.compiled),
            step_cache=self._role.step_caches(),
            python=sys.executable,
            transport=self._transport.name,
        )

    def close(self) -> None:
        """Stop what runs and let the components go."""
        control = self._control
        if control is not None:
            control.stop()
        self._role.unload()

    def _reply(self, what: str, work: Callable[[], Any]) -> Reply:
        """The outcome of a part of the start; an error says in which role and where it happened."""
        try:
            return Reply(value=work())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as of a stage
            plain = Failure.of(error)
            place = {"role": self._spec.role, "node": self.node.name}
            if isinstance(error, SplitreelError):
                message = f"node {self.node.name}, role {self._spec.role}, {error.message}"
                return Reply(failure=replace(plain, error=type(error)(message, **{**error.details, **place})))
            located = WorkerNotReady(
                f"role {self._spec.role} on {self.node.name}: expected worker {self.name} to {what}, found "
                f"{plain.error_type}: {plain.message}",
                error_type=plain.error_type,
                remote_traceback=plain.remote_traceback,
                **place,
            )
            return Reply(failure=replace(plain, error=located))

    def _failure(self, error: BaseException, stage: Stage, request_id: str) -> Failure:
        if isinstance(error, RequestCancelled | PayloadGone):
            return Failure.of(error)
        return self.stage_failure(error, stage, request_id)

    def stage_failure(self, error: BaseException, stage: Stage, request_id: str) -> Failure:
        """An exception as a StageError that says which stage of which request failed, on which node, in which role."""
        plain = Failure.of(error)
        located = StageError(
            f"{stage} of request {request_id} failed on node {self.node.name}, role {self._spec.role}: "
            f"{plain.error_type}: {plain.message}",
            request_id=request_id,
            stage=stage,
            role=self._spec.role,
            node=self.node.name,
            error_type=plain.error_type,
            remote_traceback=plain.remote_traceback,
        )
        return Failure(plain.error_type, plain.message, plain.remote_traceback, located)


def slow(worker: str, order: AdapterOrder, timeout: float) -> WorkerNotReady:
    """The error for a worker that has not carried out an order about adapters in time."""
    return WorkerNotReady(
        f"lora: expected worker {worker} to carry out {type(order).__name__} within {timeout:g} s, found it still at it."
    )
