"""Jobs in a database: every change is one transaction, and none is acknowledged before it is committed.

Called from several threads. Whoever runs a job holds a lease on it; what a server says of a job whose lease it no longer
holds changes nothing. So two servers on one database run a job once at a time, and finish it once.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import ColumnElement, Engine, create_engine, delete, event, func, select, update
from sqlalchemy.engine import CursorResult, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from splitreel.errors import ConfigError, QueueFull
from splitreel.serve.jobs.refusals import JobBusy, KeyReused, OverQuota, no_such_job
from splitreel.serve.jobs.table import ACTIVE, ENDED, SCHEMA, Base, Identity, Job, JobState, Meta
from splitreel.words import counted

_BUSY_SECONDS = 30  # how long a write waits for another process's write to the same SQLite file


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `film`: its file; `num_bytes`: what it adds to the job's files."""

    state: JobState
    at: float
    error_code: str | None = None
    error_message: str | None = None
    film: str | None = None
    num_bytes: int = 0
    seconds: float | None = None


class JobStore:
    """The ledger. Every method is a transaction of milliseconds."""

    def __init__(self, url: str) -> None:
        """Open, and make the tables if there are none. Raises ConfigError that does not show the URL's password."""
        self._lock = threading.Lock()  # one writer at a time in this process; others wait in the database
        try:
            address = make_url(url)
            if address.get_backend_name() == "sqlite" and address.database not in (None, "", ":memory:"):
                Path(str(address.database)).parent.mkdir(parents=True, exist_ok=True)
            self._engine = create_engine(address, connect_args=_connect_args(address.get_backend_name()))
        except (ArgumentError, ImportError, OSError, SQLAlchemyError) as error:
            raise ConfigError(
                f"serve.database: expected an SQLAlchemy URL such as sqlite:///jobs/jobs.db, found one that cannot be used "
                f"({type(error).__name__}). Check it, and install its driver."
            ) from error
        if self._engine.dialect.name == "sqlite":
            _prepare_sqlite(self._engine)
        self._sessions = sessionmaker(self._engine, expire_on_commit=False)
        self._readers = sessionmaker(self._engine.execution_options(reads_only=True), expire_on_commit=False)
        try:
            try:
                self.mark = self._introduce()
            except (IntegrityError, ProgrammingError):  # another server made the tables at the same time
                self.mark = self._introduce()
        except SQLAlchemyError as error:
            raise ConfigError(
                f"serve.database: expected a database that can be written at {address.render_as_string()}, found "
                f"{type(error).__name__}: {error.__cause__ or error}. Check the path, the server and the permissions."
            ) from error

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    # What clients do ------------------------------------------------------------------------------------------------------

    def add(self, job: Job, *, max_queued: int, max_active: int | None) -> tuple[Job, bool]:
        """Write a job down: (job, True), or the one that its idempotency key already made: (job, False).

        Raises KeyReused, QueueFull, OverQuota.
        """
        try:
            with self._writing() as session:
                if (known := self._same(session, job)) is not None:
                    return known, False
                _check_room(session, job.owner, max_queued, max_active)
                session.add(job)
            return job, True
        except IntegrityError:  # another server was first with the same idempotency key
            with self._reading() as session:
                known = self._same(session, job)
            if known is None:
                raise
            return known, False

    def known(self, owner: str, idempotency_key: str) -> Job | None:
        """The job that the key made."""
        with self._reading() as session:
            return session.scalar(select(Job).where(Job.owner == owner, Job.idempotency_key == idempotency_key))

    def check_room(self, owner: str, *, max_queued: int, max_active: int | None) -> None:
        """Raises QueueFull or OverQuota when `add` would, as far as can be told now."""
        with self._reading() as session:
            _check_room(session, owner, max_queued, max_active)

    def get(self, job_id: str, owner: str | None = None) -> Job:
        """A job. `owner`: only if it is theirs. Raises JobNotFound."""
        with self._reading() as session:
            return _find(session, job_id, owner)

    def page(
        self, owner: str | None, *, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> tuple[Sequence[Job], bool]:
        """Some jobs by the time they were made, and whether there are more. Raises JobNotFound for an unknown `after`."""
        query = select(Job).order_by(Job.number.asc() if order == "asc" else Job.number.desc()).limit(limit + 1)
        if owner is not None:
            query = query.where(Job.owner == owner)
        with self._reading() as session:
            if after is not None:
                last = _find(session, after, owner).number
                query = query.where(Job.number > last if order == "asc" else Job.number < last)
            rows = session.scalars(query).all()
        return rows[:limit], len(rows) > limit

    def cancel(self, job_id: str, owner: str | None, now: float) -> Job:
        """End a queued job now; leave word for whoever runs a running one. Raises JobNotFound."""
        with self._writing() as session:
            job = _find(session, job_id, owner)
            if job.state == "queued":
                _end(job, Outcome("cancelled", now, "cancelled", "Cancelled before it started."))
            elif job.state == "in_progress":
                job.cancel = True
            return job

    def remove(self, job_id: str, owner: str | None) -> Job:
        """Forget a job that has ended or not begun. Raises JobNotFound, JobBusy."""
        with self._writing() as session:
            job = _find(session, job_id, owner)
            if job.state == "in_progress":
                raise JobBusy(
                    f"video {job_id}: expected one that has ended, found it in progress. Cancel it first: POST "
                    f"/v1/videos/{job_id}/cancel.",
                    job_id=job_id,
                )
            session.delete(job)
            return job

    def position(self, job: Job) -> int:
        """How many jobs are before a queued one."""
        with self._reading() as session:
            return session.scalar(select(func.count()).where(Job.state == "queued", _before(job))) or 0

    def counts(self) -> dict[str, int]:
        """Jobs by state."""
        with self._reading() as session:
            found = session.execute(select(Job.state, func.count()).group_by(Job.state)).all()
        return {**dict.fromkeys((*ACTIVE, *ENDED), 0), **{row[0]: row[1] for row in found}}

    # What servers do --------------------------------------------------------------------------------------------------------

    def claim(self, server: str, now: float, until: float) -> Job | None:
        """Take the next queued job, for this server alone."""
        first = select(Job.id).where(Job.state == "queued").order_by(Job.rank, Job.number).limit(1)
        while True:
            with self._writing() as session:
                job_id = session.scalar(first)
                if job_id is None:
                    return None
                taken = update(Job).where(Job.id == job_id, Job.state == "queued")
                values = {"state": "in_progress", "lease_owner": server, "lease_until": until, "started": now}
                if _count(session.execute(taken.values(**values, attempts=Job.attempts + 1, progress=0, stage=None))):
                    return _find(session, job_id, None)
            # Another server was quicker; only a new transaction sees what it left.

    def renew(self, server: str, until: float, progress: dict[str, tuple[int, str | None]]) -> dict[str, bool]:
        """Prolong this server's leases on jobs that it runs, and note their progress (percent, stage).

        Which of them it still holds, and whether each is to be cancelled.
        """
        with self._writing() as session:
            mine = Job.lease_owner == server, Job.state == "in_progress", Job.id.in_(progress)
            rows = session.scalars(select(Job).where(*mine)).all()
            for row in rows:
                row.lease_until = until
                row.progress, row.stage = progress[row.id]
            return {row.id: row.cancel for row in rows}

    def finish(self, job_id: str, server: str, outcome: Outcome) -> bool:
        """End a job that this server runs; False, and nothing changed, if its lease has gone to another."""
        with self._writing() as session:
            job = session.scalar(select(Job).where(*_mine(job_id, server)).with_for_update())
            if job is None:
                return False
            _end(job, outcome)
            return True

    def release(self, job_id: str, server: str, *, refund: bool) -> bool:
        """Put a job that this server runs back into the queue. `refund`: the attempt does not count."""
        with self._writing() as session:
            job = session.scalar(select(Job).where(*_mine(job_id, server)).with_for_update())
            if job is None:
                return False
            _requeue(job)
            job.attempts -= int(refund)
            return True

    def recover(
        self, now: float, is_dead: Callable[[str], bool], attempts: int, held: Collection[str] = ()
    ) -> list[str]:
        """Put back the jobs of servers that are gone, end those that were begun too often; the ids of both.

        `held`: those that the asker runs, whatever the clock says of their leases.
        """
        with self._writing() as session:
            running = session.scalars(select(Job).where(Job.state == "in_progress").with_for_update()).all()
            lost = [
                job
                for job in running
                if job.id not in held
                and ((job.lease_until or 0.0) < now or (job.lease_owner and is_dead(job.lease_owner)))
            ]
            for job in lost:
                if job.cancel:
                    _end(job, Outcome("cancelled", now, "cancelled", "Cancelled while its server was being replaced."))
                elif job.attempts >= attempts:
                    words = f"Begun {counted(job.attempts, 'time')}, and each time the server ended under it (serve.attempts)."
                    _end(job, Outcome("failed", now, "interrupted", words))
                else:
                    _requeue(job)
            return [job.id for job in lost]

    def overdue(self, now: float) -> list[str]:
        """End queued jobs whose deadline has passed; their ids."""
        with self._writing() as session:
            late = session.scalars(select(Job).where(Job.state == "queued", Job.deadline < now)).all()
            for job in late:
                words = f"Not started within the {(job.deadline or now) - job.created:g} s that the request gave it."
                _end(job, Outcome("failed", now, "deadline_exceeded", words))
            return [job.id for job in late]

    def expired(self, before: float, max_bytes: int) -> list[str]:
        """Forget ended jobs from before a moment, then the oldest until all files fit; their ids."""
        with self._writing() as session:
            gone = list(session.scalars(select(Job.id).where(Job.state.in_(ENDED), Job.ended < before)))
            total = session.scalar(select(func.sum(Job.num_bytes)).where(Job.id.not_in(gone))) or 0
            oldest = select(Job.id, Job.num_bytes).where(Job.state.in_(ENDED), Job.ended >= before, Job.num_bytes > 0)
            for job_id, num_bytes in session.execute(oldest.order_by(Job.ended)) if total > max_bytes else ():
                if total <= max_bytes:
                    break
                gone.append(job_id)
                total -= num_bytes
            if gone:
                session.execute(delete(Job).where(Job.id.in_(gone)))
            return gone

    def unknown(self, job_ids: Collection[str]) -> list[str]:
        """Those ids that no job has."""
        with self._reading() as session:
            found = set(session.scalars(select(Job.id).where(Job.id.in_(job_ids))))
        return [job_id for job_id in job_ids if job_id not in found]

    # ------------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with self._lock, self._sessions.begin() as session:
            yield session

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with self._readers() as session:
            yield session

    def _introduce(self) -> str:
        """Make what is missing; the database's mark. Raises ConfigError for another schema."""
        Base.metadata.create_all(self._engine)
        with self._writing() as session:
            found = session.scalar(select(func.max(Meta.schema)))
            if found is None:
                session.add(Meta(schema=SCHEMA))
            elif found != SCHEMA:
                raise ConfigError(
                    f"serve.database: expected schema {SCHEMA}, found {found}, written by another version. Use that "
                    "version, or another database with a folder of its own (serve.folder)."
                )
            mark = session.scalar(select(Identity.mark))
            if mark is None:
                mark = secrets.token_hex(16)
                session.add(Identity(number=1, mark=mark))
            return mark

    def _same(self, session: Session, job: Job) -> Job | None:
        if job.idempotency_key is None:
            return None
        known = session.scalar(select(Job).where(Job.owner == job.owner, Job.idempotency_key == job.idempotency_key))
        if known is not None and known.digest != job.digest:
            raise KeyReused(
                f"Idempotency-Key: expected a new one for a new request, found {job.idempotency_key!r}, which made "
                f"{known.id} from another request. Use one key for one request."
            )
        return known


def resolve_url(setting: str | None, folder: Path) -> str:
    """What `serve.database` means. Raises ConfigError."""
    if setting is None:
        return f"sqlite:///{(folder / 'jobs.db').absolute()}"
    if not setting.startswith("env:"):
        return setting
    name = setting.removeprefix("env:")
    if not os.environ.get(name):
        raise ConfigError(f"serve.database: expected an SQLAlchemy URL in the environment variable {name}, found none.")
    return os.environ[name]


def _connect_args(backend: str) -> dict[str, Any]:
    return {"timeout": _BUSY_SECONDS, "check_same_thread": False} if backend == "sqlite" else {}


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, record: Any) -> None:
        # FULL: what was acknowledged survives a power cut too, for a few milliseconds per write.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.isolation_level = None  # transactions are begun below, not by the driver

    @event.listens_for(engine, "begin")
    def _begun(connection: Any) -> None:
        # A transaction that reads first and then writes would fail at once if another process wrote in between.
        reads_only = connection.get_execution_options().get("reads_only", False)
        connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")


def _find(session: Session, job_id: str, owner: str | None) -> Job:
    job = session.scalar(select(Job).where(Job.id == job_id))
    if job is None or owner not in (None, job.owner):
        raise no_such_job(job_id)
    return job


def _check_room(session: Session, owner: str, max_queued: int, max_active: int | None) -> None:
    queued = session.scalar(select(func.count()).where(Job.state == "queued")) or 0
    if queued >= max_queued:
        raise QueueFull(
            f"queue: expected room for one more video, found {queued} waiting of {max_queued} allowed. Try again later.",
            queued=queued,
            limit=max_queued,
        )
    if max_active is not None:
        active = session.scalar(select(func.count()).where(Job.owner == owner, Job.state.in_(ACTIVE))) or 0
        if active >= max_active:
            raise OverQuota(
                f"quota: expected fewer than {max_active} of your videos waiting or in progress, found {active}. Wait for "
                "one to end, or cancel one.",
                queued=active,
                limit=max_active,
            )


def _mine(job_id: str, server: str) -> tuple[ColumnElement[bool], ...]:
    return Job.id == job_id, Job.lease_owner == server, Job.state == "in_progress"


def _before(job: Job) -> ColumnElement[bool]:
    return (Job.rank < job.rank) | ((Job.rank == job.rank) & (Job.number < job.number))


def _requeue(job: Job) -> None:
    job.state, job.progress, job.stage, job.started = "queued", 0, None, None
    job.lease_owner = job.lease_until = None


def _end(job: Job, outcome: Outcome) -> None:
    job.state, job.ended, job.stage = outcome.state, outcome.at, None
    job.lease_owner = job.lease_until = None
    job.error_code, job.error_message = outcome.error_code, outcome.error_message
    job.film, job.seconds = outcome.film, outcome.seconds
    job.num_bytes += outcome.num_bytes
    if outcome.state == "completed":
        job.progress = 100


def _count(result: Any) -> int:
    assert isinstance(result, CursorResult)
    return result.rowcount
