"""The table of jobs, and the view of a row that leaves the store."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import JSON, BigInteger, Float, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

JobState = Literal["queued", "in_progress", "completed", "failed", "cancelled"]
ACTIVE: tuple[JobState, ...] = ("queued", "in_progress")
ENDED: tuple[JobState, ...] = ("completed", "failed", "cancelled")
SCHEMA = 1

# One point of priority is worth this many seconds of waiting: a bound on how long anybody can be overtaken.
PRIORITY_SECONDS = 60.0
MAX_PRIORITY = 100


class Base(DeclarativeBase):
    """Of this package's tables."""


class Meta(Base):
    """Which schema the database has."""

    __tablename__ = "splitreel_meta"
    schema: Mapped[int] = mapped_column(Integer, primary_key=True)


class Identity(Base):
    """Which database this is; the folder of its jobs bears the same mark."""

    __tablename__ = "splitreel_identity"
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    mark: Mapped[str] = mapped_column(String(32))


class Job(Base):
    """One job. Times are seconds since 1970 on the wall clock of the server that wrote them.

    `rank`: when it was made, less its priority's worth; the lowest runs first. `lease_owner`, `lease_until`: the server
    that runs it, and until when it may be silent. `request`: what to make, media by their names in the job's folder.
    `effective`: what that comes to. `film`: the film's file name in the folder. `num_bytes`: of all its files.
    """

    __tablename__ = "splitreel_jobs"
    __table_args__ = (
        UniqueConstraint("owner", "idempotency_key"),
        Index("splitreel_jobs_next", "state", "rank"),
    )

    number: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    id: Mapped[str] = mapped_column(String(40), unique=True)
    owner: Mapped[str] = mapped_column(String(64), index=True)
    state: Mapped[str] = mapped_column(String(16))
    rank: Mapped[float] = mapped_column(Float(53))
    priority: Mapped[int] = mapped_column(Integer)
    created: Mapped[float] = mapped_column(Float(53))
    started: Mapped[float | None] = mapped_column(Float(53))
    ended: Mapped[float | None] = mapped_column(Float(53), index=True)
    deadline: Mapped[float | None] = mapped_column(Float(53))
    request: Mapped[dict[str, Any]] = mapped_column(JSON)
    effective: Mapped[dict[str, Any]] = mapped_column(JSON)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    digest: Mapped[str] = mapped_column(String(64))
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    lease_owner: Mapped[str | None] = mapped_column(String(255), index=True)
    lease_until: Mapped[float | None] = mapped_column(Float(53))
    cancel: Mapped[bool] = mapped_column(default=False)
    progress: Mapped[int] = mapped_column(Integer, default=0)
    stage: Mapped[str | None] = mapped_column(String(16))
    seconds: Mapped[float | None] = mapped_column(Float(53))
    error_code: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(Text)
    film: Mapped[str | None] = mapped_column(String(64))
    num_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
