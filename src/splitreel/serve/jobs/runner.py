"""Takes jobs from the ledger, has the session make them, and writes down how they ended.

All of it on the server's loop; the ledger and the disk are asked in threads. A job is never in doubt: it is written down
as ended, put back into the queue, or its lease runs out and whoever finds it puts it back.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from splitreel.config import ServeConfig
from splitreel.errors import ClusterError, QueueFull, RequestCancelled, SplitreelError
from splitreel.observe.logs import get_logger
from splitreel.observe.progress import Progress
from splitreel.request import GenerateResult
from splitreel.serve.jobs.bell import Bell, rung_within
from splitreel.serve.jobs.folder import JobFolder
from splitreel.serve.jobs.pace import Pace
from splitreel.serve.jobs.refusals import code_of, message_of
from splitreel.serve.jobs.server import has_ended, server_name
from splitreel.serve.jobs.spec import restore_request
from splitreel.serve.jobs.store import JobStore, Outcome
from splitreel.serve.jobs.table import Job
from splitreel.session import JobHandle, Session

logger = get_logger(__name__)
T = TypeVar("T")
Why = Literal["cancel", "deadline", "drain", "lease"]

_LOOK_SECONDS = 1.0  # how often jobs of other servers, deadlines and words left by other servers are looked for
_JANITOR_SECONDS = 15.0
_FINISH_TRIES = 5


@dataclass(eq=False)
class Run:
    """A job of ours under way. `why`: what it was told to stop for. `put_back`: the queue has the job again."""

    job: Job
    began: float = field(default_factory=time.time)
    handle: JobHandle | None = None
    progress: Progress | None = None
    percent: int = 0
    why: Why | None = None
    put_back: bool = False

    @property
    def has_lost_it(self) -> bool:
        """How the job ends is no longer for this run to say."""
        return self.put_back or self.why == "lease"

    def stop(self, why: Why) -> None:
        """Ask it to end at its next step; the first reason counts."""
        if self.why is None:
            self.why = why
            if self.handle is not None:
                self.handle.cancel()


class Runner:
    """Runs the jobs of one server."""

    def __init__(
        self,
        store: JobStore,
        folder: JobFolder,
        pace: Pace,
        bell: Bell,
        settings: ServeConfig,
        threads: Executor,
        may_start: Callable[[], bool],
    ) -> None:
        """`may_start`: whether the session can take jobs now."""
        self.name = server_name()
        self.running: dict[str, Run] = {}
        self._store, self._folder, self._pace, self._bell = store, folder, pace, bell
        self._settings, self._threads, self._may_start = settings, threads, may_start
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._claiming: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def start(self, session: Session) -> None:
        """Begin to take jobs."""
        self._session = session
        self._claiming = self._spawn(self._claims())
        self._spawn(self._beats())
        self._spawn(self._janitor())

    def wake(self) -> None:
        """There may be a job to take."""
        self._wake.set()

    async def drain(self, seconds: float) -> int:
        """Take no more jobs; give running ones so long to end, and put the others back. How many were put back."""
        self._stopping.set()
        self.wake()
        if self._claiming is not None:
            await asyncio.wait({self._claiming}, timeout=10.0)
        if not await rung_within(self._idle, seconds):
            left = len(self.running)
            for run in list(self.running.values()):
                run.stop("drain")
            if not await rung_within(self._idle, 60.0):
                logger.error("%d jobs did not stop; another server takes them over", len(self.running))
        else:
            left = 0
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return left

    async def ask(self, function: Callable[..., T], *args: object, **named: object) -> T:
        """Run a method of the ledger or the folder in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **named))

    # The three loops --------------------------------------------------------------------------------------------------------

    async def _claims(self) -> None:
        bound = self._session.config.max_in_flight
        while not self._stopping.is_set():
            self._wake.clear()
            if len(self.running) < bound and self._may_start():
                try:
                    job = await self.ask(self._claim)
                except Exception as error:
                    self._failed("no job could be taken", error)
                    await asyncio.sleep(_LOOK_SECONDS)
                    continue
                if job is not None and self._stopping.is_set():
                    await self.ask(self._store.release, job.id, self.name, refund=True)
                elif job is not None:
                    self._begin(Run(job))
                    continue
            await rung_within(self._wake, _LOOK_SECONDS)

    async def _beats(self) -> None:
        """Leases, progress, deadlines, and what other servers were told of our jobs."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._settings.lease / 4))
            now = time.time()
            for run in self.running.values():
                if run.job.deadline is not None and run.job.deadline < now:
                    run.stop("deadline")
            known = {name: run for name, run in self.running.items() if not run.has_lost_it}
            if not known:
                continue
            noted = {name: (run.percent, run.progress and run.progress.stage) for name, run in known.items()}
            try:
                held = await self.ask(self._renew, noted)
            except Exception as error:
                self._failed("leases could not be renewed", error)
                continue
            for name, run in known.items():
                if name not in held and self.running.get(name) is run:
                    run.stop("lease")
                elif held.get(name):
                    run.stop("cancel")

    async def _janitor(self) -> None:
        """What was left by servers that ended, what is overdue, and what is kept no longer."""
        orphans_at = 0.0
        while True:
            try:
                now = time.time()
                settings = self._settings
                changed = await self.ask(self._store.recover, now, has_ended, settings.attempts, set(self.running))
                if changed:
                    logger.warning("jobs: %d were left by a server that ended: %s", len(changed), ", ".join(changed))
                    self.wake()
                changed += await self.ask(self._store.overdue, now)
                gone = await self.ask(
                    self._store.expired, now - settings.keep_days * 86_400, int(settings.keep_gb * 1e9)
                )
                if now >= orphans_at:
                    orphans_at = now + 3600.0
                    gone += await self.ask(self._store.unknown, await self.ask(self._folder.orphans))
                for job_id in gone:
                    await self.ask(self._folder.forget, job_id)
                for job_id in (*changed, *gone):
                    self._bell.ring(job_id)
            except Exception as error:
                self._failed("housekeeping failed", error)
            await asyncio.sleep(_JANITOR_SECONDS)

    # Of the wall clock, what holds when a thread is free, not when one was asked for.
    def _claim(self) -> Job | None:
        now = time.time()
        return self._store.claim(self.name, now, now + self._settings.lease)

    def _renew(self, noted: dict[str, tuple[int, str | None]]) -> dict[str, bool]:
        return self._store.renew(self.name, time.time() + self._settings.lease, noted)

    @staticmethod
    def _failed(what: str, error: Exception) -> None:
        """The loops go on whatever happens in one round; what no database or disk says is a mistake of ours."""
        expected = isinstance(error, SQLAlchemyError | OSError)
        logger.error("jobs: %s: %s", what, error, exc_info=None if expected else error)

    # One job ------------------------------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        before = self.running.get(run.job.id)
        if before is not None and not before.has_lost_it:
            logger.warning(
                "job %s: put back by another server and taken again while it runs here; it goes on", run.job.id
            )
            return
        self.running[run.job.id] = run
        self._idle.clear()
        self._spawn(self._work(run))
        self._bell.ring(run.job.id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _work(self, run: Run) -> None:
        job = run.job
        try:
            try:
                result = await self._make(run)
            except Exception as error:
                await self._keep_trace(run)
                await self._settle(run, error)
            else:
                await self._deliver(run, result)
        except Exception:
            logger.exception("job %s: how it ended could not be written down; its lease runs out", job.id)
        finally:
            if self.running.get(job.id) is run:  # a job that was put back may have been taken again already
                del self.running[job.id]
            if not self.running:
                self._idle.set()
            self._bell.ring(job.id)
            self.wake()

    async def _make(self, run: Run) -> GenerateResult:
        job, loop = run.job, asyncio.get_running_loop()
        request_id = job.id if job.attempts == 1 else f"{job.id}-{job.attempts}"
        request = await self.ask(restore_request, job.request, self._folder.inputs(job.id), request_id)

        def on_progress(progress: Progress) -> None:  # on the engine's thread
            loop.call_soon_threadsafe(self._on_progress, run, progress)

        run.handle = await self._session.aio.submit(request, on_progress=on_progress)
        if run.why is not None:
            run.handle.cancel()
        return await self._session.aio.result(run.handle)

    def _on_progress(self, run: Run, progress: Progress) -> None:
        run.progress = progress
        run.percent = max(run.percent, self._pace.percent(progress))
        self._bell.ring(run.job.id)

    async def _deliver(self, run: Run, result: GenerateResult) -> None:
        job = run.job
        assert result.video_bytes is not None
        # A name of its own: should another server have taken the job over, neither harms the other's film.
        name = f"film-{secrets.token_hex(4)}.mp4"
        try:
            await self.ask(self._folder.write, job.id, name, result.video_bytes)
        except OSError as error:
            problem = SplitreelError(f"serve.folder: the film was made and could not be written: {error.strerror}.")
            await self._settle(run, problem)
            return
        traced = await self._keep_trace(run)
        num_bytes = len(result.video_bytes) + traced
        ended = time.time()
        outcome = Outcome("completed", ended, film=name, num_bytes=num_bytes, seconds=result.seconds)
        if await self._finish(run, outcome):
            self._pace.film_done(result.timings, run.began, ended)
        else:
            await self.ask(self._folder.discard, job.id, name)

    async def _settle(self, run: Run, error: Exception) -> None:
        """A job that did not become a film: ended, put back, or left to who has it now."""
        job, why = run.job, run.why
        stopped = isinstance(error, RequestCancelled)
        if why == "lease":
            return
        if stopped and why in (None, "drain"):  # None: the session was closed under it
            await self._put_back(run, refund=True)
        elif isinstance(error, QueueFull):  # other users of the session were quicker
            await asyncio.sleep(_LOOK_SECONDS)
            await self._put_back(run, refund=True)
        elif isinstance(error, ClusterError) and job.attempts < self._settings.attempts:
            logger.warning("job %s: put back after attempt %d: %s", job.id, job.attempts, error)
            await asyncio.sleep(_LOOK_SECONDS)
            await self._put_back(run, refund=False)
        elif stopped and why == "cancel":
            await self._finish(run, Outcome("cancelled", time.time(), "cancelled", str(error)))
        elif stopped and why == "deadline":
            words = f"Not done within the {(job.deadline or 0.0) - job.created:g} s that the request gave it: {error}"
            await self._finish(run, Outcome("failed", time.time(), "deadline_exceeded", words))
        else:
            if not isinstance(error, SplitreelError):
                logger.error("job %s: %s", job.id, error, exc_info=error)
            await self._finish(run, Outcome("failed", time.time(), code_of(error), message_of(error)))

    async def _put_back(self, run: Run, *, refund: bool) -> None:
        """The last that is done with a run: from here on the job may be another's, or another run's here."""
        run.put_back = True
        await self.ask(self._store.release, run.job.id, self.name, refund=refund)

    async def _finish(self, run: Run, outcome: Outcome) -> bool:
        for left in reversed(range(_FINISH_TRIES)):
            try:
                return await self.ask(self._store.finish, run.job.id, self.name, outcome)
            except SQLAlchemyError:
                if not left:
                    raise
                await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def _keep_trace(self, run: Run) -> int:
        if run.handle is None or not run.handle.spans:
            return 0
        try:
            return await self.ask(self._folder.write_trace, run.job.id, run.handle.spans)
        except OSError as error:
            logger.warning("job %s: its trace could not be kept: %s", run.job.id, error)
            return 0
