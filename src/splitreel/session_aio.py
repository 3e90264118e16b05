"""The session's coroutines: the same verbs, handed to the engine's loop and awaited on the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from splitreel.config import Config
from splitreel.engine.backend import WorkerHealth
from splitreel.errors import ClusterError
from splitreel.observe.progress import LoadProgress, Progress
from splitreel.request import GenerateRequest, GenerateResult
from splitreel.roles.definition import ModelDefinition
from splitreel.session_lora import AsyncSessionLora
from splitreel.session_stream import Window

if TYPE_CHECKING:
    from splitreel.session import Session
    from splitreel.session_job import JobHandle

T = TypeVar("T")
OnProgress = Callable[[Progress], None]
OnLoad = Callable[[LoadProgress], None]


class AsyncSession:
    """The session's coroutines, for use on any loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.lora = AsyncSessionLora(lambda: session._adapters, self._hand_over)

    @classmethod
    async def open(
        cls, config: Config, *, on_load: OnLoad | None = None, model: ModelDefinition | None = None
    ) -> Session:
        """As the constructor of `Session`; cancelling the coroutine ends what was started so far."""
        from splitreel.session import Session

        making = asyncio.ensure_future(asyncio.to_thread(Session, config, on_load=on_load, model=model, wait=False))
        try:
            session = await asyncio.shield(making)
            await session.aio._hand_over(session._open(on_load))
        except BaseException:
            await asyncio.to_thread((await making).close)
            raise
        return session

    async def submit(self, request: GenerateRequest, *, on_progress: OnProgress | None = None) -> JobHandle:
        """As `Session.submit`; media are read in a thread."""
        prepared = await asyncio.to_thread(self._session._prepare, request)
        return await self._hand_over(self._session._admit(request, prepared, on_progress))

    async def progress(self, job: JobHandle) -> AsyncIterator[Progress]:
        """As `JobHandle.progress`."""
        steps = job._job.progress()

        async def following() -> Progress | None:
            return await anext(steps, None)

        while (step := await self._hand_over(following())) is not None:
            yield step

    async def result(self, job: JobHandle, timeout: float | None = None) -> GenerateResult:
        """As `JobHandle.result`."""
        return await self._hand_over(job._result(timeout))

    async def generate(self, request: GenerateRequest, *, on_progress: OnProgress | None = None) -> GenerateResult:
        """As `Session.generate`; cancelling the coroutine cancels the request on the workers."""
        job = await self.submit(request, on_progress=on_progress)
        try:
            return await self.result(job)
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
    ) -> AsyncIterator[GenerateResult]: ...

    @overload
    def stream(
        self, requests: Iterable[GenerateRequest], *, on_progress: OnProgress | None = None, return_errors: bool
    ) -> AsyncIterator[GenerateResult | Exception]: ...

    async def stream(
        self,
        requests: Iterable[GenerateRequest],
        *,
        on_progress: OnProgress | None = None,
        return_errors: bool = False,
    ) -> AsyncIterator[GenerateResult | Exception]:
        """As `Session.stream`; closing the iterator cancels what is left."""
        window = Window(requests, 2 * self._session.config.max_in_flight)
        try:
            while True:
                while (request := window.wanted()) is not None:
                    try:
                        window.admitted(await self.submit(request, on_progress=on_progress))
                    except Exception as error:
                        window.refused(request, error)
                try:
                    job = window.first()
                    if job is None:
                        return
                    result: GenerateResult | Exception = await self.result(job)
                except Exception as error:
                    if not return_errors:
                        raise
                    result = error
                window.passed()
                yield result
        finally:
            window.cancel()

    async def health(self) -> list[WorkerHealth]:
        """As `Session.health`."""
        return await self._hand_over(self._session._engine.health())

    async def close(self) -> None:
        """As `Session.close`."""
        await asyncio.to_thread(self._session.close)

    async def _hand_over(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.wrap_future(self._session._hand(work))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise closed_session() from None


def closed_session() -> ClusterError:
    """What is said to whoever comes too late, or waited when the session was closed."""
    return ClusterError("session: expected an open one, found it closed. Open a new session.")
