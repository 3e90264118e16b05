"""The session's coroutines: the same verbs, handed to the engine's loop and awaited on the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from splitreel.config import Config
from splitreel.engine.backend import WorkerHealth
from splitreel.errors import QueueFull
from splitreel.observe.progress import LoadProgress, Progress
from splitreel.request import GenerateRequest, GenerateResult
from splitreel.roles.definition import ModelDefinition
from splitreel.session_lora import AsyncSessionLora

if TYPE_CHECKING:
    from splitreel.session import JobHandle, Session

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

        session = await asyncio.to_thread(Session, config, on_load=on_load, model=model, wait=False)
        try:
            await session.aio._hand_over(session._open(on_load))
        except BaseException:
            await asyncio.to_thread(session.close)
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

    async def stream(
        self, requests: Iterable[GenerateRequest], *, on_progress: OnProgress | None = None
    ) -> AsyncIterator[GenerateResult]:
        """As `Session.stream`; closing the iterator cancels what is left."""
        source = iter(requests)
        window: list[JobHandle | Exception] = []
        held_back: GenerateRequest | None = None
        try:
            while True:
                limit = 2 * self._session.config.max_in_flight
                while len(window) < limit and (request := held_back or next(source, None)) is not None:
                    held_back = None
                    try:
                        window.append(await self.submit(request, on_progress=on_progress))
                    except Exception as error:
                        if isinstance(error, QueueFull) and window:
                            held_back = request
                            break
                        window.append(error)  # raised when its turn comes
                if not window:
                    return
                job = window[0]
                if isinstance(job, Exception):
                    raise job
                result = await self.result(job)
                window.pop(0)
                yield result
        finally:
            for left in window:
                if not isinstance(left, Exception):
                    left.cancel()

    async def health(self) -> list[WorkerHealth]:
        """As `Session.health`."""
        return await self._hand_over(self._session._engine.health())

    async def close(self) -> None:
        """As `Session.close`."""
        await asyncio.to_thread(self._session.close)

    async def _hand_over(self, work: Coroutine[Any, Any, T]) -> T:
        handed: Future[T] = asyncio.run_coroutine_threadsafe(work, self._session._loop)
        return await asyncio.wrap_future(handed)
