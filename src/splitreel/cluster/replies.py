"""What processes of a cluster say to each other about themselves, and errors in a form that always arrives.

Apart from the worker itself, so that who only asks need not import what a worker is made of (diffusers: 9 s of CPU time).
"""

from __future__ import annotations

import copy
import importlib.metadata
import platform
import traceback
from dataclasses import dataclass, field
from typing import Any

from splitreel.cluster.journal import Entry
from splitreel.errors import SplitreelError
from splitreel.observe.spans import SpanRecord
from splitreel.version import __version__

# What must be equal between processes that exchange payloads, or that must compute the same bits.
VERSIONED = ("torch", "diffusers", "transformers", "ray")


@dataclass(frozen=True)
class NodeFacts:
    """The machine a worker runs on: `node_id` as Ray knows it, `name` as people do."""

    node_id: str
    name: str


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker reports before it loads anything; compared between workers.

    `device`: what the worker calls it. `memory_id`: whose memory that is, the same in every process (`memory_id`).
    """

    worker: str
    role: str
    node: NodeFacts
    pid: int
    geometry: dict[str, Any]
    fingerprint: str
    schema: tuple[int, int]
    versions: dict[str, str]
    device: str = "cpu"
    memory_id: str = ""
    memory_needed: dict[str, int] = field(default_factory=dict)
    memory_free: int = 0
    spill_folder: str = ""
    spill_full: float = 0.0


@dataclass(frozen=True)
class Room:
    """What a worker's last payload needs, and what its node has: bytes of the payload, of Ray's object store and of the disk
    it spills to, and how full that is.
    """

    payload_bytes: int
    store_bytes: int
    folder: str
    free_bytes: int
    full: float

    def __str__(self) -> str:
        return (
            f"expected room for a payload of {self.payload_bytes / 1e6:.1f} MB in Ray's object store there "
            f"({self.store_bytes / 1e6:.0f} MB) or on the disk that it spills to, found the store full and {self.folder} "
            f"{self.full:.0%} full, {self.free_bytes / 1e6:.1f} MB free. Free space there, start Ray with a larger "
            "--object-store-memory or with --temp-dir elsewhere, or set a smaller engine.max_in_flight."
        )


@dataclass(frozen=True)
class Failure:
    """An exception in a form that always crosses processes: its words, and the error itself when it is one of ours."""

    error_type: str
    message: str
    remote_traceback: str
    error: SplitreelError | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno}" if frames else "without words"
        return cls(
            error_type=type(error).__name__,
            message=str(error) or where,
            remote_traceback="".join(traceback.format_exception(error)),
            error=error if isinstance(error, SplitreelError) else None,
        )


@dataclass(frozen=True)
class Reply:
    """What a worker's method gives back: a value or a failure, so that no exception has to be unpickled.

    `spans`: those of a failed stage, or of loading; a stage that was done has them in its receipt. `events`: what it
    reported and no watcher has taken yet.
    """

    value: Any = None
    failure: Failure | None = None
    spans: tuple[SpanRecord, ...] = ()
    events: tuple[Entry, ...] = ()


def versions() -> dict[str, str]:
    """Versions of this process that others must share."""
    found = {"python": ".".join(platform.python_version_tuple()[:2]), "splitreel": __version__}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def reply_value(reply: Reply) -> Any:
    """The value of a Reply, or its failure raised: as a copy, since frames in its traceback hold the reply, which would
    hold it, and all that is in those frames would stay until the garbage collector comes by.
    """
    failure = reply.failure
    if failure is None:
        return reply.value
    if failure.error is not None:
        raise copy.copy(failure.error) from failure.error.__cause__
    raise SplitreelError(
        f"{failure.error_type}: {failure.message}",
        error_type=failure.error_type,
        remote_traceback=failure.remote_traceback,
    )
