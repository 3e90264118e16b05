"""Session: a config becomes a backend and an engine. What users hold.

The engine lives on a loop of its own thread; every method here may be called from any thread, `session.aio` from any
other loop. This is the only importer of `h3`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

from splitreel.cluster.backends import bounds_of, make_backend
from splitreel.config import Config, load_config
from splitreel.engine.adapters import Adapters, Chosen
from splitreel.engine.backend import WorkerHealth
from splitreel.engine.engine import Engine
from splitreel.engine.job import Film, Job, JobStatus
from splitreel.errors import ClusterError, ConfigError, InvalidRequest, QueueFull, RequestTimeout
from splitreel.h3.films import film_contents
from splitreel.h3.geometry import Geometry, read_geometry
from splitreel.h3.media import prepare
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.payloads import denoise_counts
from splitreel.h3.rules import check_references, check_workflow
from splitreel.h3.tiny import make_tiny
from splitreel.observe.progress import LoadProgress, Progress
from splitreel.observe.sinks import open_sinks
from splitreel.observe.spans import SpanRecord, SpanRecorder, TraceContext
from splitreel.observe.timings import timings_of
from splitreel.request import Effective, GenerateRequest, GenerateResult
from splitreel.roles.adapters.outlines import outlines_of
from splitreel.roles.checkpoint import open_checkpoint
from splitreel.roles.definition import ModelDefinition
from splitreel.session_aio import AsyncSession
from splitreel.session_lora import SessionLora
from splitreel.wire import Packed, Payload, pack, unpack

T = TypeVar("T")
OnProgress = Callable[[Progress], None]
OnLoad = Callable[[LoadProgress], None]


class Session:
    """An open deployment: every role resident, ready for requests.

    ```python
    with Session.from_config("two_machines.yaml") as session:
        session.generate(GenerateRequest(prompt="An alpine lake at sunrise.", steps=5)).save("lake.mp4")
    ```
    """

    def __init__(
        self, config: Config, *, on_load: OnLoad | None = None, model: ModelDefinition | None = None, wait: bool = True
    ) -> None:
        """Place, check and load; returns when all is resident. Raises ConfigError, ClusterError, CheckpointError, AdapterError.

        `model`: the programs of the stages, MiniMax-H3's own unless another one is given that takes its requests.
        `wait=False` is for `AsyncSession.open`, which does the rest.
        """
        self.config = config
        model = model or MiniMaxH3()
        served = {workflow: model.adapted_component(workflow) for workflow in config.model.workflows}
        adapters = outlines_of(config.lora, served.values())
        self.aio = AsyncSession(self)
        self.lora = SessionLora(lambda: self._adapters, self._wait)
        sinks = open_sinks(config.trace.file, config.trace.otlp_endpoint)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="splitreel-engine", daemon=True)
        self._thread.start()
        self._closed = False
        settings = config.engine
        self._engine = Engine(
            make_backend(model, config, adapters),
            *bounds_of(config),
            sinks,
            record_spans=config.trace.record,
        )
        self._adapters = Adapters(self._engine.backend, served, settings.start_timeout, settings.stage_timeout)
        self._opening: asyncio.Task[None] | None = None
        if wait:
            try:
                self._wait(self._open(on_load))
            except BaseException:
                self.close()
                raise

    @classmethod
    def from_config(
        cls, source: str | os.PathLike[str] | Config, *, set: Sequence[str] = (), on_load: OnLoad | None = None
    ) -> Session:
        """Open a session from a config file (with `a.b=c` overrides) or a `Config`."""
        if isinstance(source, Config):
            if set:
                raise ConfigError("set: expected a file to override, found a Config. Change the Config instead.")
            return cls(source, on_load=on_load)
        return cls(load_config(source, set), on_load=on_load)

    def check(self, request: GenerateRequest) -> Effective:
        """What a request would make, or InvalidRequest. Reads its media; sends nothing."""
        return self._prepared(request)[0]

    def submit(self, request: GenerateRequest, *, on_progress: OnProgress | None = None) -> JobHandle:
        """Check a request, admit it and return at once. Raises InvalidRequest or QueueFull.

        `on_progress` is called on the engine's thread for each step; it must be quick.
        """
        return self._wait(self._admit(request, self._prepare(request), on_progress))

    def generate(self, request: GenerateRequest, *, on_progress: OnProgress | None = None) -> GenerateResult:
        """Make one film. An interrupt (Ctrl-C) cancels it on the workers."""
        job = self.submit(request, on_progress=on_progress)
        try:
            return job.result()
        except BaseException:
            job.cancel()
            raise

    @overload
    def stream(
        self,
        requests: Iterable[GenerateRequest],
        *,
        on_progress: OnProgress | None = None,
        return_errors: Literal[False] = False,
    ) -> Iterator[GenerateResult]: ...

    @overload
    def stream(
        self, requests: Iterable[GenerateRequest], *, on_progress: OnProgress | None = None, return_errors: bool
    ) -> Iterator[GenerateResult | Exception]: ...

    def stream(
        self,
        requests: Iterable[GenerateRequest],
        *,
        on_progress: OnProgress | None = None,
        return_errors: bool = False,
    ) -> Iterator[GenerateResult | Exception]:
        """Make films, pipelined, and yield them in order. `requests` is read only as fast as films are made.

        Leaving the loop cancels what is left. A failed request raises when its turn comes, or with `return_errors` is
        yielded as its exception, and the others go on.
        """
        source = iter(requests)
        window: list[JobHandle | Exception] = []
        held_back: GenerateRequest | None = None
        try:
            while True:
                while (
                    len(window) < 2 * self.config.max_in_flight
                    and (request := held_back or next(source, None)) is not None
                ):
                    held_back = None
                    try:
                        window.append(self.submit(request, on_progress=on_progress))
                    except Exception as error:
                        if isinstance(error, QueueFull) and window:
                            held_back = request  # its turn comes when one of ours has ended
                            break
                        window.append(error)  # raised or yielded when its turn comes
                if not window:
                    return
                job = window[0]
                try:
                    if isinstance(job, Exception):
                        raise job
                    result: GenerateResult | Exception = job.result()
                except Exception as error:
                    if not return_errors:
                        raise
                    result = error
                # Only now: an interrupt while waiting cancels this one as well.
                window.pop(0)
                yield result
        finally:
            for left in window:
                if isinstance(left, JobHandle):
                    left.cancel()

    def health(self) -> list[WorkerHealth]:
        """What every worker holds and does; bounded, also while stages run."""
        return self._wait(self._engine.health())

    def metrics(self) -> str:
        """Counters, histograms and gauges of this session in the text format that Prometheus scrapes."""
        return self._engine.observer.metrics.text()

    def close(self) -> None:
        """Cancel what is left and end the workers. Bounded; safe to call again."""
        if self._closed:
            return
        self._closed = True
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=60)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)
            if not self._loop.is_running():
                self._loop.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _open(self, on_load: OnLoad | None) -> None:
        self._opening = asyncio.ensure_future(self._engine.start(on_load or (lambda progress: None)))
        await self._opening
        self.geometry = Geometry.from_dict(dict(self._engine.backend.geometry))
        for name, adapter in self.config.lora.items():
            await self._adapters.load(adapter.path, name, adapter.scale, **adapter.options())

    async def _end(self) -> None:
        if self._opening is not None and not self._opening.done():
            # An interrupt while roles load: what was started so far is ended by the start itself.
            self._opening.cancel()
            await asyncio.wait({self._opening}, timeout=30)
        await self._engine.close()

    def _prepare(self, request: GenerateRequest) -> _Prepared:
        """In the caller's thread: an OpenTelemetry span that is open there is above the request's own."""
        asked: object = request
        if not isinstance(asked, GenerateRequest):
            raise InvalidRequest(
                f"request: expected a GenerateRequest, found {type(asked).__name__}. For a text, use "
                "GenerateRequest(prompt=text).",
                field="request",
            )
        effective, payload, chosen = self._prepared(request)
        above = TraceContext.current()
        context = TraceContext.new(above)
        carrying = replace(payload, header=replace(payload.header, trace=context.carrier()))
        return _Prepared(effective, pack(carrying), chosen, context, above)

    def _prepared(self, request: GenerateRequest) -> tuple[Effective, Payload, Chosen]:
        model = self.config.model
        effective, payload = prepare(request, self.geometry, model.workflows, model.default_steps)
        chosen = self._adapters.choose(request.lora, effective.workflow)
        header = replace(payload.header, values={**payload.header.values, "lora": chosen.applied})
        return replace(effective, lora=chosen.uses), replace(payload, header=header), chosen

    async def _admit(self, request: GenerateRequest, prepared: _Prepared, on_progress: OnProgress | None) -> JobHandle:
        self._adapters.still_loaded(prepared.chosen)
        job = self._engine.submit(
            request.request_id,
            prepared.effective.workflow,
            prepared.submitted,
            request.priority,
            context=prepared.context,
            above=prepared.above,
        )
        self._adapters.hold(prepared.chosen, job.future)
        if on_progress is not None:
            job.listeners.append(on_progress)
        return JobHandle(self, job, prepared)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the engine's loop and wait for it; an interrupt leaves the work to `close`."""
        if self._loop.is_closed():
            work.close()
            raise ClusterError("session: expected an open one, found it closed. Open a new session.")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@dataclass(frozen=True)
class _Prepared:
    """A checked request: what it will make, its payload, its adapters, the ids of its span, and the caller's span."""

    effective: Effective
    submitted: Packed
    chosen: Chosen
    context: TraceContext
    above: TraceContext | None


class JobHandle:
    """A submitted request. Every method may be called from any thread."""

    def __init__(self, session: Session, job: Job, prepared: _Prepared) -> None:
        self._session = session
        self._job = job
        self._context = prepared.context
        self.effective = prepared.effective

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._job.request_id

    def status(self) -> JobStatus:
        """Queued (with its position), running (with stage and step), completed, failed or cancelled."""
        if self._job.future.done():
            return self._job.status()  # nothing changes any more, also after the session was closed

        async def ask() -> JobStatus:
            return self._job.status()

        return self._session._wait(ask())

    def result(self, timeout: float | None = None) -> GenerateResult:
        """Wait for the film. Raises the request's error; RequestTimeout when only this wait is over."""
        if self._job.future.done():
            return self._made(self._job.future.result())  # also after the session was closed
        return self._session._wait(self._result(timeout))

    @property
    def spans(self) -> tuple[SpanRecord, ...]:
        """What was recorded of the request, however it ended; empty before that."""
        return self._job.spans

    def cancel(self) -> None:
        """Cancel: at once while queued, at the next step while running. Ended jobs are left as they are."""
        if not self._session._loop.is_closed():
            self._session._loop.call_soon_threadsafe(self._job.cancel)

    def progress(self) -> Iterator[Progress]:
        """Each step as it happens, until the job has ended."""
        steps = self._job.progress()

        async def following() -> Progress | None:
            return await anext(steps, None)

        while not self._job.future.done() and (step := self._session._wait(following())) is not None:
            yield step

    async def _result(self, timeout: float | None = None) -> GenerateResult:
        return self._made(await self._job.result(timeout))

    def _made(self, film: Film) -> GenerateResult:
        return replace(film_result(self._job.request_id, self.effective, film), recorder=self._recorder)

    @contextmanager
    def _recorder(self) -> Iterator[SpanRecorder]:
        """For what happens to the film after the request has ended."""
        observer = self._session._engine.observer
        spans = SpanRecorder(
            observer.place, request_id=self.request_id, stage="save", context=self._context, enabled=observer.enabled
        )
        try:
            yield spans
        finally:
            observer.spans(spans.finish())


def preflight(config: Config, requests: Sequence[GenerateRequest]) -> list[Effective | InvalidRequest | None]:
    """What each request would make, or why it is refused, without opening a session.

    None in place of what only a session can tell, because the model's geometry cannot be known here: a hub id, whose
    files are the workers'. Workflow and references are checked nevertheless. Reads the checkpoint's configuration files
    (`tiny` is made and cached first) and the requests' media. Raises CheckpointError.
    """
    workflows = config.model.workflows
    located = MiniMaxH3().locate(config.model.path)
    geometry = None
    if os.path.isdir(os.path.expanduser(located)) and not any(role.model_path for role in config.roles.values()):
        geometry = read_geometry(open_checkpoint(located, components=()), workflows)
    found: list[Effective | InvalidRequest | None] = []
    for request in requests:
        try:
            if geometry is not None:
                found.append(prepare(request, geometry, workflows, config.model.default_steps)[0])
            else:
                check_workflow(request, workflows)
                check_references(request)
                found.append(None)
        except InvalidRequest as error:
            found.append(error)
    return found


def film_result(request_id: str, effective: Effective, film: Film) -> GenerateResult:
    """What the user gets of a finished job."""
    payload: Payload = unpack(film.payload)
    return GenerateResult(
        request_id=request_id,
        effective=replace(effective, **denoise_counts(payload.header.values)),
        timings=timings_of(film.spans),
        seconds=film.seconds,
        **film_contents(payload),
    )


__all__ = ["AsyncSession", "JobHandle", "RequestTimeout", "Session", "film_result", "make_tiny", "preflight"]
