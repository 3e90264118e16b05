"""Session: a config becomes a backend and an engine. What users hold.

The engine lives on a loop of its own thread; every method here may be called from any thread, `session.aio` from any
other loop. With `session_job` the only importer of `h3`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

from splitreel.cluster.backends import bounds_of, make_backend
from splitreel.config import Config, load_config
from splitreel.engine.adapters import Adapters, Chosen
from splitreel.engine.backend import WorkerHealth
from splitreel.engine.engine import Engine
from splitreel.errors import ClusterError, ConfigError, InvalidRequest, RequestTimeout
from splitreel.h3.geometry import Geometry, read_geometry
from splitreel.h3.media import prepare
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.rules import check_references, check_workflow
from splitreel.h3.tiny import make_tiny
from splitreel.observe.progress import LoadProgress, Progress
from splitreel.observe.sinks import open_sinks
from splitreel.observe.spans import TraceContext
from splitreel.request import Effective, GenerateRequest, GenerateResult
from splitreel.roles.adapters.outlines import outlines_of
from splitreel.roles.checkpoint import local_checkpoint, open_checkpoint
from splitreel.roles.definition import ModelDefinition
from splitreel.session_aio import AsyncSession, closed_session
from splitreel.session_job import JobHandle, Prepared
from splitreel.session_lora import SessionLora
from splitreel.session_stream import Window
from splitreel.wire import Payload, pack

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
        self._ended = False
        self._door = threading.RLock()  # a signal's handler may come in while its thread is in here
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
        window = Window(requests, 2 * self.config.max_in_flight)
        try:
            while True:
                while (request := window.wanted()) is not None:
                    try:
                        window.admitted(self.submit(request, on_progress=on_progress))
                    except Exception as error:
                        window.refused(request, error)
                try:
                    job = window.first()
                    if job is None:
                        return
                    result: GenerateResult | Exception = job.result()
                except Exception as error:
                    if not return_errors:
                        raise
                    result = error
                window.passed()
                yield result
        finally:
            window.cancel()

    def health(self) -> list[WorkerHealth]:
        """What every worker holds and does; bounded, also while stages run."""
        return self._wait(self._engine.health())

    def metrics(self) -> str:
        """Counters, histograms and gauges of this session in the text format that Prometheus scrapes."""
        return self._engine.observer.metrics.text()

    def close(self) -> None:
        """Cancel what is left and end the workers. Bounded; safe to call again."""
        self._refuse_waiting_for_itself()
        with self._door:
            if self._closed:
                return
            self._closed = True
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=60)
        finally:
            with self._door:
                self._ended = True
                asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
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
            if not self._opening.cancelling():  # a second time it would end the start's own ending
                self._opening.cancel()
            await asyncio.wait({self._opening}, timeout=30)
        await self._engine.close()

    async def _stop(self) -> None:
        """The last on the loop: what was handed over before it ends now, such as the wait for an adapter's download."""
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                while left := asyncio.all_tasks() - {asyncio.current_task()}:
                    for task in left:
                        task.cancel()
                    await asyncio.wait(left)
        self._loop.stop()

    def _prepare(self, request: GenerateRequest) -> Prepared:
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
        return Prepared(effective, pack(carrying), chosen, context, above)

    def _prepared(self, request: GenerateRequest) -> tuple[Effective, Payload, Chosen]:
        model = self.config.model
        effective, payload = prepare(request, self.geometry, model.workflows, model.default_steps)
        chosen = self._adapters.choose(request.lora, effective.workflow)
        header = replace(payload.header, values={**payload.header.values, "lora": chosen.applied})
        return replace(effective, lora=chosen.uses), replace(payload, header=header), chosen

    async def _admit(self, request: GenerateRequest, prepared: Prepared, on_progress: OnProgress | None) -> JobHandle:
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
        try:
            self._refuse_waiting_for_itself()
        except ClusterError:
            work.close()
            raise
        try:
            return self._hand(work).result()
        except CancelledError:
            raise closed_session() from None

    def _hand(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run on the engine's loop. What is handed over ends with the session, cancelled if need be."""
        with self._door:
            if self._ended:
                work.close()
                raise closed_session()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _post(self, call: Callable[..., None], *args: Any) -> None:
        """Call on the engine's loop while there is one."""
        with self._door:
            if not self._ended:
                self._loop.call_soon_threadsafe(call, *args)

    def _refuse_waiting_for_itself(self) -> None:
        if threading.current_thread() is self._thread:
            raise ClusterError(
                "session: expected a call from a thread of the caller's, found one from on_progress or on_load, on the engine's "
                "own thread, which would wait for itself without end. Note what is wanted there and call from outside."
            )


def preflight(config: Config, requests: Sequence[GenerateRequest]) -> list[Effective | InvalidRequest | None]:
    """What each request would make, or why it is refused, without opening a session.

    None in place of what only a session can tell, because the model's geometry cannot be known here: a hub id, whose
    files are the workers'. Workflow and references are checked nevertheless. Reads the checkpoint's configuration files
    (`tiny` is made and cached first) and the requests' media. Raises CheckpointError.
    """
    workflows = config.model.workflows
    model = MiniMaxH3()
    located = model.locate(config.model.path)
    if config.cluster.address in ("local", "embedded"):  # the workers' machine is this one
        for path in dict.fromkeys(role.model_path for role in config.roles.values()):
            local_checkpoint(model.locate(path) if path else located)
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


__all__ = ["AsyncSession", "JobHandle", "RequestTimeout", "Session", "make_tiny", "preflight"]
