"""The engine: carries out what the scheduler decides, on one asyncio loop, with a deadline on every wait.

All methods run on that loop; `Session` is what other threads talk to. It keeps payload handles without looking into
them, and a payload until the next stage's result is there, so that a lost worker costs only the stage that it ran.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from splitreel.engine.backend import Backend, PayloadGone, StageReceipt, WorkerHealth, WorkerInfo
from splitreel.engine.events import (
    Cancelled,
    CancelRequested,
    Command,
    Deliver,
    Event,
    Fail,
    HelpEnded,
    PayloadLost,
    Refuse,
    ReleasePayload,
    RunStage,
    StageDone,
    StageFailed,
    StageStopped,
    StopStage,
    Submitted,
    WorkerDown,
    WorkerUp,
)
from splitreel.engine.helping import Helpers
from splitreel.engine.job import Film, Held, Job, guarded
from splitreel.engine.limits import Deadlines, Limits
from splitreel.engine.outcomes import (
    Losses,
    as_cancel,
    as_error,
    bare,
    conclude,
    driver_place,
    outcome_of,
    overdue,
    queue_full,
    stuck,
    undelivered,
    without_input,
)
from splitreel.engine.scheduler import Scheduler
from splitreel.errors import ClusterError, InvalidRequest, QueueFull, RequestCancelled, WorkerLost
from splitreel.observe.logs import get_logger
from splitreel.observe.metrics import Metrics
from splitreel.observe.observer import Observer, RequestTrace, Sink
from splitreel.observe.progress import LoadProgress, Progress
from splitreel.observe.spans import SpanRecord, TraceContext
from splitreel.request import Stage

logger = get_logger(__name__)


class Engine:
    """Runs requests on a backend. `start()`, then `submit()`; `close()` ends everything."""

    def __init__(
        self,
        backend: Backend,
        limits: Limits,
        deadlines: Deadlines,
        sinks: Sequence[Sink] = (),
        *,
        record_spans: bool = True,
    ) -> None:
        """`sinks` get every span; they are closed with the engine."""
        self.backend = backend
        metrics = Metrics(queued=lambda: self.queued, in_flight=lambda: self.in_flight)
        self.observer = Observer(driver_place(), sinks, metrics=metrics, enabled=record_spans)
        self._deadlines = deadlines
        self._scheduler = Scheduler(limits)
        self._held: dict[str, Held] = {}
        self._runs: set[asyncio.Task[None]] = set()
        self._stop_timers: dict[str, asyncio.TimerHandle] = {}
        self._helpers = Helpers(backend, self._spawn, self._help_ended)
        self._events: deque[Event] = deque()
        self._handling = False
        self._closed = False
        self._losses = Losses()

    # Life -------------------------------------------------------------------------------------------------------------

    async def start(self, on_load: Callable[[LoadProgress], None] = lambda progress: None) -> None:
        """Bring every worker up. Raises ClusterError or CheckpointError and leaves nothing running when it does."""
        try:
            await asyncio.wait_for(self.backend.start(self, guarded(on_load, "load")), self._deadlines.start)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise ClusterError(
                    f"engine.start_timeout: expected every role to be resident within {self._deadlines.start:g} s, found "
                    "some still loading. Raise it, or see the log for what takes long."
                ) from None
            raise
        for worker in self.backend.workers:
            if worker.name not in self._losses:  # it may be lost again by now
                self.on_worker_up(worker)

    async def close(self) -> None:
        """Cancel what is left, end the workers. Bounded; safe to call again."""
        if self._closed:
            return
        self._closed = True
        for held in list(self._held.values()):
            self._settle(
                held.job,
                RequestCancelled(
                    f"request {held.job.request_id}: cancelled because the session was closed.",
                    request_id=held.job.request_id,
                    stage=held.job.stage,
                ),
            )
        for timer in self._stop_timers.values():
            timer.cancel()
        for task in self._runs:
            task.cancel()
        if self._runs:
            await asyncio.wait(self._runs, timeout=5)
        self._held.clear()  # no payload may be held any more when the backend leaves its cluster
        await self.backend.close()
        self.observer.close()

    # Requests ---------------------------------------------------------------------------------------------------------

    def submit(
        self,
        request_id: str,
        workflow: str,
        submitted: Any,
        priority: int = 0,
        *,
        context: TraceContext | None = None,
        above: TraceContext | None = None,
    ) -> Job:
        """Admit a request, or raise QueueFull at once. `submitted`: the payload that encode starts from.

        `context`: the ids of the request's span, which the payload's header carries; `above`: the caller's own span.
        """
        if self._closed:
            raise ClusterError("session: expected an open one, found it closed. Open a new session.")
        if request_id in self._held:
            raise InvalidRequest(
                f"request_id: expected a new one, found {request_id!r} in use. Leave it out to get one.",
                field="request_id",
            )
        job = Job(
            request_id=request_id,
            workflow=workflow,
            cancel=lambda: self.cancel(request_id),
            position=lambda: self._scheduler.position(request_id),
            future=asyncio.get_running_loop().create_future(),
        )
        # An error that nobody waits for is in the log; it must not be reported as never retrieved as well.
        job.future.add_done_callback(lambda future: future.cancelled() or future.exception())
        trace = RequestTrace(self.observer, request_id, context or TraceContext.new(above), above)
        self._held[request_id] = Held(job, submitted, trace)
        self._handle(Submitted(request_id, workflow, priority))
        if job.future.done() and isinstance(error := job.future.exception(), QueueFull):
            raise error
        return job

    def cancel(self, request_id: str) -> None:
        """End a request: at once while it is queued or between stages, at the next step while a stage runs."""
        self._handle(CancelRequested(request_id))

    @property
    def queued(self) -> int:
        """Requests admitted and not started."""
        return self._scheduler.waiting

    @property
    def in_flight(self) -> int:
        """Requests between the start of encode and the end of decode."""
        return self._scheduler.in_flight

    async def health(self) -> list[WorkerHealth]:
        """Every worker's own report; bounded."""
        return await self.backend.health()

    # The backend tells (Listener) ---------------------------------------------------------------------------------------

    def on_progress(self, progress: Progress) -> None:
        """A running stage got further."""
        held = self._held.get(progress.request_id)
        if held is not None:
            held.job.report(progress)

    def on_spans(self, spans: Sequence[SpanRecord]) -> None:
        """Spans of a failed stage, or of loading."""
        held = self._held.get(spans[0].request_id) if spans else None
        if held is not None:
            held.trace.add(spans)
        else:
            self.observer.spans(spans)

    def on_worker_up(self, worker: WorkerInfo) -> None:
        """A worker serves (again)."""
        self._losses.back(worker)
        self.observer.metrics.worker_up(worker.name)
        self._handle(WorkerUp(worker.name, frozenset(worker.stages), frozenset(worker.workflows), worker.role))

    def on_worker_down(self, worker: WorkerInfo, error: WorkerLost, *, returning: bool) -> None:
        """A worker no longer serves."""
        extra = {"role": worker.role, "node": worker.node}
        logger.warning("%s%s", error, " It is being restarted." if returning else "", extra=extra)
        self.observer.worker_down(worker.name, error)
        self._losses.add(worker, error)
        self._handle(WorkerDown(worker.name, returning))

    # The scheduler decides ----------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        """Feed one event; events that arise while commands are carried out wait their turn."""
        if self._closed:
            return  # everyone was told already; what workers still report is of no use
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for command in self._scheduler.handle(self._events.popleft()):
                    self._carry_out(command)
        finally:
            self._handling = False

    def _carry_out(self, command: Command) -> None:
        match command:
            case RunStage():
                self._start_run(command)
            case StopStage(request, stage, worker):
                self._stop_run(request, stage, worker)
                self._stop_help(request, stage)
            case ReleasePayload(request, stage):
                held = self._held.get(request)
                if held is not None:
                    held.payloads.pop(stage, None)
            case Deliver(request):
                held = self._held[request]
                self._spawn(self._deliver(held, held.payloads[Stage.DECODE]))
            case Fail(request, reason, stage):
                job = self._held[request].job
                self._settle(job, as_error(request, reason, stage, self._losses.latest(stage, job.workflow)))
            case Cancelled(request, stage, reason):
                self._settle(
                    self._held[request].job, as_cancel(request, stage, reason, self._held[request].job.stopped_at)
                )
            case Refuse(request, waiting, limit):
                self._settle(self._held[request].job, queue_full(waiting, limit))

    def _start_run(self, run: RunStage) -> None:
        request, stage = run.request, run.stage
        held = self._held[request]
        job = held.job
        job.stage = stage
        job.last_progress = None
        if job.started_at is None:
            loop = asyncio.get_running_loop()
            job.started_at = loop.time()
            held.timer = loop.call_later(self._deadlines.request, self._expire, request, None, self._deadlines.request)
        source = held.submitted if stage.previous is None else held.payloads[stage.previous]
        began = held.trace.stage_begins(stage, run.worker)
        parts = self._helpers.start(run, source, held.trace)
        self._spawn(self._run(held, run, source, parts, began))

    def _stop_run(self, request: str, stage: Stage, worker: str) -> None:
        loop = asyncio.get_running_loop()
        self._spawn(self.backend.stop_stage(worker, request))
        self._stop_timers[worker] = loop.call_later(
            self._deadlines.stop, lambda: self._spawn(self._give_up(request, stage, worker))
        )

    def _stop_help(self, request: str, stage: Stage, attempt: int | None = None) -> None:
        for helper, key in self._helpers.leave(request, attempt):
            self._stop_run(key, stage, helper)

    def _help_ended(self, event: HelpEnded) -> None:
        self._no_longer_stopping(event.worker)
        self._handle(event)

    def _no_longer_stopping(self, worker: str) -> None:
        if (timer := self._stop_timers.pop(worker, None)) is not None:
            timer.cancel()

    async def _give_up(self, request: str, stage: Stage, worker: str) -> None:
        error = stuck(self._info(worker), request, stage, self._deadlines.stop)
        await self.backend.replace_worker(worker, error)

    def _info(self, worker: str) -> WorkerInfo:
        return next(item for item in self.backend.workers if item.name == worker)

    async def _run(self, held: Held, run: RunStage, source: Any, parts: tuple[Any, ...], began: float) -> None:
        """One run of one stage, from the command to the event that ends it."""
        request, stage, worker, attempt = run.request, run.stage, run.worker, run.attempt
        timer = asyncio.get_running_loop().call_later(
            self._deadlines.stage, self._expire, request, stage, self._deadlines.stage
        )
        event: Event
        problem: BaseException | None = None
        try:
            payload, receipt = await self.backend.run_stage(worker, stage, request, source, parts)
        except RequestCancelled as error:
            problem = held.job.stopped_at = bare(error)
            event = StageStopped(request, stage, worker, attempt)
        except WorkerLost as error:
            problem = bare(error)
            # The backend has told, and the run was taken back; one that is still known is of a worker gone without a word.
            if worker not in self._losses:
                self._losses.add(self._info(worker), error)
            event = StageStopped(request, stage, worker, attempt, lost=f"worker {worker}")
        except PayloadGone as error:
            problem = error
            logger.warning("%s did not get its input: %s", stage, error, extra={"request_id": request})
            if stage.previous is None:  # what was submitted is still here
                event = StageStopped(request, stage, worker, attempt, lost=f"its input ({error})")
            else:
                self._handle(PayloadLost(request, stage.previous))
                event = StageFailed(request, stage, worker, without_input(request, stage, error), attempt)
        except asyncio.CancelledError as error:
            problem = error
            raise
        except Exception as error:
            problem = bare(error)
            event = StageFailed(request, stage, worker, problem, attempt)
        else:
            held.trace.add(receipt.spans)
            held.payloads[stage] = payload
            held.job.receipts[stage] = receipt
            event = StageDone(request, stage, worker, attempt)
        finally:
            timer.cancel()
            held.trace.stage_ended(stage, worker, began, problem)
            problem = None  # with its traceback it would keep this frame, and the payload in it, until a collection
            self._no_longer_stopping(worker)
            self._stop_help(request, stage, attempt)
        self._handle(event)

    async def _deliver(self, held: Held, handle: Any) -> None:
        job = held.job
        spans = held.trace.delivery()
        try:
            payload = await self.backend.fetch(handle, spans)
        except Exception as error:
            held.trace.add(spans.finish())
            self._settle(job, undelivered(job.request_id, job.receipts[Stage.DECODE], bare(error)))
            return
        held.trace.add(spans.finish())
        loop = asyncio.get_running_loop()
        assert job.started_at is not None
        receipts: tuple[StageReceipt, ...] = tuple(job.receipts[stage] for stage in Stage)
        self._settle(job, Film(payload, receipts, loop.time() - job.started_at))

    def _expire(self, request: str, stage: Stage | None, seconds: float) -> None:
        held = self._held.get(request)
        if held is not None:
            self._handle(CancelRequested(request, overdue(request, stage, held.job.stage, seconds)))

    def _settle(self, job: Job, outcome: Film | Exception) -> None:
        """End a job once and forget what was held for it."""
        held = self._held.pop(job.request_id, None)
        if held is not None and held.timer is not None:
            held.timer.cancel()
        if job.future.done():
            return
        if held is not None:
            held.trace.end(None if isinstance(outcome, Film) else outcome)
            job.spans = tuple(held.trace.records)
            self.observer.metrics.request_ended(outcome_of(outcome))
        conclude(job, outcome, self.observer.place)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._runs.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._runs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("engine: %s", error, exc_info=error)
