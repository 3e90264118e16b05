"""JobService: what every door (HTTP, the studio page) holds. Submit, get, list, cancel, delete, follow, trace, stats."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

from splitreel.config import Config
from splitreel.errors import InvalidRequest
from splitreel.observe.spans import SpanRecord
from splitreel.request import GenerateRequest
from splitreel.roles.definition import ModelDefinition
from splitreel.serve.jobs.bell import Bell, rung_within
from splitreel.serve.jobs.deployment import Deployment
from splitreel.serve.jobs.ledger import open_ledger
from splitreel.serve.jobs.pace import Pace
from splitreel.serve.jobs.previews import Previews
from splitreel.serve.jobs.refusals import JobNotFound, NotFinished, NothingThere, NotReady, VideoFailed
from splitreel.serve.jobs.runner import Runner
from splitreel.serve.jobs.spec import MediaLimits, check_media, digest, placed, store_request
from splitreel.serve.jobs.table import MAX_PRIORITY, PRIORITY_SECONDS, Job
from splitreel.serve.jobs.view import Condition, JobView, ServiceStats, view_of
from splitreel.session import Session

T = TypeVar("T")

_QUIET_SECONDS = 10.0  # a follower hears this often at least
_LOOK_SECONDS = 1.0  # how often a follower asks the database for what another server did
_CHECKS = 2  # requests whose media are decoded at the same time: a long clip takes about a gigabyte


class JobService:
    """Jobs that outlive the process. `await start()`, then everything else; `await stop()` at the end.

    Every method belongs to the loop that called `start`. `owner` is the name of a client's key; None sees all jobs.
    """

    def __init__(self, config: Config, *, model: ModelDefinition | None = None) -> None:
        """Open the ledger. Raises ConfigError. `model`: as `Session` has it."""
        settings = config.serve
        self.config = config
        self.folder, self._store = open_ledger(settings)
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="splitreel-jobs")
        self._previews = Previews(self.folder)
        self._pace = Pace()
        self._bell = Bell()
        self._checks = asyncio.Semaphore(_CHECKS)
        self._quotas = {key.name: key.max_active for key in settings.keys if key.max_active is not None}
        self._began = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self.deployment = Deployment(config, model, self._on_change)
        self._runner = Runner(
            self._store, self.folder, self._pace, self._bell, settings, self._threads, lambda: self._is("ready")
        )

    # Life -------------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to open the session; returns at once. `deployment` says how that goes."""
        self._task = asyncio.ensure_future(self._open())

    async def drain(self, seconds: float | None = None) -> int:
        """Take no more jobs, let running ones end or put them back (`serve.drain`). How many were put back."""
        self.deployment.set("draining", "the server is being stopped")
        return await self._runner.drain(self.config.serve.drain if seconds is None else seconds)

    async def stop(self) -> None:
        """Drain at once if that was not done, and close the session. Safe to call again."""
        if not self._is("draining"):
            await self.drain(0.0)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.deployment.close()
        self._previews.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    # Jobs -------------------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        request: GenerateRequest,
        *,
        owner: str = "",
        idempotency_key: str | None = None,
        deadline: float | None = None,
    ) -> JobView:
        """Check a request and write it down; it is durable when this returns.

        Media are copied. `deadline`: seconds from now after which the job fails unless it is done. Raises InvalidRequest,
        QueueFull (OverQuota), KeyReused, NotReady.
        """
        session = self._open_session()
        if abs(request.priority) > MAX_PRIORITY:
            raise InvalidRequest(
                f"priority: expected -{MAX_PRIORITY} to {MAX_PRIORITY}, found {request.priority}.", field="priority"
            )
        async with self._checks:
            work = asyncio.to_thread(self._admit, session, request, owner, idempotency_key, deadline)
            # What is written down stays so: a client that goes away now finds its job in the list.
            job = await asyncio.shield(asyncio.ensure_future(work))
        self._runner.wake()
        return await self._view(job)

    async def check_room(self, owner: str = "", idempotency_key: str | None = None) -> None:
        """Refuse early what `submit` would refuse for want of room, before a large body is read."""
        self._open_session()
        if idempotency_key is None or await self._ask(self._store.known, owner, idempotency_key) is None:
            most = self.config.serve.max_queued
            await self._ask(self._store.check_room, owner, max_queued=most, max_active=self._max_active(owner))

    async def get(self, job_id: str, owner: str | None = None) -> JobView:
        """One job. Raises JobNotFound."""
        return await self._view(await self._ask(self._store.get, job_id, owner))

    async def page(
        self,
        owner: str | None = None,
        *,
        after: str | None = None,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> tuple[list[JobView], bool]:
        """Some jobs by the time they were made, from the one behind `after`; and whether there are more."""
        jobs, more = await self._ask(self._store.page, owner, after=after, limit=limit, order=order)
        return [await self._view(job) for job in jobs], more

    async def cancel(self, job_id: str, owner: str | None = None) -> JobView:
        """End a job: at once while it is queued, at its next step while it runs. Ended jobs are left as they are."""
        job = await self._ask(self._store.cancel, job_id, owner, time.time())
        if job.state == "in_progress" and (run := self._runner.running.get(job_id)) is not None:
            run.stop("cancel")
        self._bell.ring(job_id)
        return await self._view(job)

    async def delete(self, job_id: str, owner: str | None = None) -> None:
        """Forget a job and its files. Raises JobNotFound, JobBusy."""
        await self._ask(self._store.remove, job_id, owner)
        await self._ask(self.folder.forget, job_id)
        self._bell.ring(job_id)

    async def events(self, job_id: str, owner: str | None = None) -> AsyncIterator[JobView]:
        """The job now, whenever it changes, and every 10 s. Raises JobNotFound.

        The last one has ended, unless the server is stopped or the job deleted first.
        """
        with self._bell.listen(job_id) as rung:
            last: JobView | None = None
            told = 0.0
            while True:
                rung.clear()
                try:
                    view = await self.get(job_id, owner)
                except JobNotFound:
                    if last is None:
                        raise
                    return
                if view != last or time.monotonic() - told > _QUIET_SECONDS:
                    last, told = view, time.monotonic()
                    yield view
                if view.has_ended or self._is("draining"):
                    return
                await rung_within(rung, _LOOK_SECONDS)

    async def content(
        self,
        job_id: str,
        owner: str | None = None,
        variant: Literal["video", "thumbnail", "spritesheet"] = "video",
    ) -> Path:
        """The film's file, or a picture of it. Raises JobNotFound, NotFinished, VideoFailed, NothingThere."""
        job: Job = await self._ask(self._store.get, job_id, owner)
        if job.film is None:
            raise await self._no_film(job)
        film = self.folder.film(job_id, job.film)
        try:
            if variant == "video":
                await self._ask(film.stat)
                return film
            return await self._previews.get(job_id, job.film, variant)
        except FileNotFoundError as error:
            raise NothingThere(
                f"video {job_id}: expected its file, found none. It was deleted from serve.folder; make it again.",
                job_id=job_id,
                state=job.state,
            ) from error

    async def trace(self, job_id: str, owner: str | None = None) -> list[SpanRecord]:
        """The spans of the job's last run, for reports, Chrome traces and Gantt pictures.

        Raises JobNotFound, NotFinished, NothingThere.
        """
        job = await self._ask(self._store.get, job_id, owner)
        spans = await self._ask(self.folder.read_trace, job_id)
        if spans is None and job.state in ("queued", "in_progress"):
            raise await self._no_film(job)
        if spans is None:
            raise NothingThere(
                f"video {job_id}: expected what was recorded of its run, found nothing ({job.state}). trace.record must be "
                "on while it runs.",
                job_id=job_id,
                state=job.state,
            )
        return spans

    async def stats(self) -> ServiceStats:
        """The queue, the measured rate, and the workers as they last answered."""
        return ServiceStats(
            condition=self.deployment.condition,
            detail=self.deployment.detail,
            jobs=await self._ask(self._store.counts),
            seconds_per_film=self._pace.seconds_per_film,
            workers=self.deployment.workers,
            max_in_flight=self.config.max_in_flight,
            uptime=time.monotonic() - self._began,
        )

    async def metrics(self) -> str:
        """The session's figures in the text format that Prometheus scrapes; empty before it is open."""
        session = self.deployment.session
        return await asyncio.to_thread(session.metrics) if session is not None else ""

    def retry_after(self) -> int:
        """Whole seconds after which a refused client may try again, by the measured rate."""
        return self._pace.retry_after()

    # ------------------------------------------------------------------------------------------------------------------------

    def _admit(
        self,
        session: Session,
        request: GenerateRequest,
        owner: str,
        idempotency_key: str | None,
        deadline: float | None,
    ) -> Job:
        """In a thread: copy, check, write down."""
        settings = self.config.serve
        with self.folder.incoming() as place:
            plain, num_bytes = store_request(request, place)
            try:
                stored = placed(request, place)
                check_media(stored, MediaLimits(settings.max_pixels, settings.max_seconds))
                seeded = stored.with_seed()
                effective = session.check(seeded)
            except InvalidRequest as error:
                # Where the server keeps things is no client's business.
                raise InvalidRequest(error.message.replace(f"{place}/", ""), **error.details) from None
            now = time.time()
            job = Job(
                id=f"video_{secrets.token_hex(12)}",
                owner=owner,
                state="queued",
                rank=now - PRIORITY_SECONDS * request.priority,
                priority=request.priority,
                created=now,
                deadline=None if deadline is None else now + deadline,
                request={**plain, "seed": seeded.seed},
                effective=_effective(effective),
                idempotency_key=idempotency_key,
                digest=digest({**plain, "deadline": deadline}, place),
                num_bytes=num_bytes,
            )
            self.folder.adopt(place, job.id)
        try:
            kept, created = self._store.add(job, max_queued=settings.max_queued, max_active=self._max_active(owner))
        except BaseException:
            self.folder.forget(job.id)
            raise
        if not created:
            self.folder.forget(job.id)
        return kept

    async def _no_film(self, job: Job) -> NotFinished | VideoFailed:
        """Why a job has no film: not yet, with the seconds until it probably has one; or never."""
        if job.state in ("queued", "in_progress"):
            eta = (await self._view(job)).eta
            return NotFinished(
                f"video {job.id}: expected a completed one, found it {job.state}. Wait for it.",
                job_id=job.id,
                state=job.state,
                retry_after=self._pace.retry_after() if eta is None else max(1, math.ceil(eta)),
            )
        return VideoFailed(
            f"video {job.id}: expected a completed one, found it {job.state}: {job.error_message or 'no reason is known'} "
            f"({job.error_code}). Make it again.",
            job_id=job.id,
            state=job.state,
            reason=job.error_code,
        )

    async def _view(self, job: Job) -> JobView:
        live: dict[str, Any] = {}
        run = self._runner.running.get(job.id) if job.state == "in_progress" else None
        if run is not None and run.progress is not None:
            at = run.progress
            live = {"progress": run.percent, "stage": at.stage, "unit": at.unit, "done": at.done, "total": at.total}
            live["eta"] = self._pace.eta(at)
        elif job.state == "queued":
            live["position"] = await self._ask(self._store.position, job)
            if (each := self._pace.seconds_per_film) is not None:
                live["eta"] = each * (live["position"] + 1 + len(self._runner.running))
        if live.get("eta") is not None:
            live["eta"] = round(live["eta"], 1)
        return view_of(job, keep_seconds=self.config.serve.keep_days * 86_400, **live)

    def _max_active(self, owner: str) -> int | None:
        return self._quotas.get(owner, self.config.serve.max_active_per_key)

    def _open_session(self) -> Session:
        session = self.deployment.session
        if session is not None and (self._is("ready") or self._is("degraded")):
            return session
        raise NotReady(
            f"server: expected it to be ready, found it {self.deployment.condition} ({self.deployment.detail}). Try again "
            "later.",
            retry_after=30 if self._is("loading") else self._pace.retry_after(),
        )

    def _is(self, condition: Condition) -> bool:
        return self.deployment.condition == condition

    def _on_change(self) -> None:
        self._runner.wake()
        self._bell.ring_all()

    async def _ask(self, function: Callable[..., T], *args: object, **named: object) -> T:
        return await self._runner.ask(function, *args, **named)

    async def _open(self) -> None:
        session = await self.deployment.open()
        if session is not None:
            self._runner.start(session)
            await self.deployment.watch()


def _effective(effective: Any) -> dict[str, Any]:
    names = ("workflow", "num_frames", "fps", "height", "width", "steps", "transformer_calls", "seed", "warnings")
    lora = [asdict(use) for use in effective.lora]
    return {**{name: getattr(effective, name) for name in names}, "seconds": effective.seconds, "lora": lora}
