"""What the engine asks of whatever runs the stages. `cluster` has two: in this process, and on Ray."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from splitreel.errors import WorkerLost
from splitreel.lora import AdapterOrder, LoraReceipt
from splitreel.observe.progress import LoadProgress, Progress
from splitreel.observe.spans import SpanRecord, SpanRecorder
from splitreel.request import Stage
from splitreel.share import Share

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class WorkerInfo:
    """A worker: a process hosting a role. `node` is what people call its machine, `node_id` what Ray calls it."""

    name: str
    role: str
    stages: tuple[Stage, ...]
    workflows: tuple[str, ...]
    node: str
    node_id: str


@dataclass(frozen=True)
class WorkerHealth:
    """What a worker says of itself. `state`: `loading`, `ready`, `silent`, `lost`, or `restarting` until it
    serves again. `components`: resident bytes of each.

    `attention`: the backend in force in each part, such as `{"transformer": "flash_3", "transformer.refiner": "native"}`.
    `transport`: how payloads leave it for other workers: `object_store`, `nixl`, or `memory` within one process.
    `compile`, `step_cache`: the same of the components that are compiled or reuse steps; others are not in there.
    """

    worker: str
    role: str
    node: str
    node_id: str
    state: str
    components: dict[str, int] = field(default_factory=dict)
    running: str | None = None
    stages_done: int = 0
    loads: int = 0
    pid: int = 0
    device: str = ""
    threads: int = 0
    geometry: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    attention: dict[str, str] = field(default_factory=dict)
    compile: dict[str, str] = field(default_factory=dict)
    step_cache: dict[str, str] = field(default_factory=dict)
    python: str = ""
    transport: str = ""


@dataclass(frozen=True)
class StageReceipt:
    """What a worker reports of a finished stage. Seconds on its own monotonic clock, without the hop into it.

    `spans`: the hop into the stage, the stage and its parts. `payload_bytes`: logical bytes of what it made;
    `wire_bytes`: serialised.
    """

    request_id: str
    stage: Stage
    worker: str
    node: str
    seconds: float
    spans: tuple[SpanRecord, ...] = ()
    payload_bytes: int = 0
    wire_bytes: int = 0
    values: dict[str, Any] = field(default_factory=dict)


def hop_into(stage: Stage | None) -> str:
    """What the hop into a stage is called, such as `encode-to-denoise`; None for the film's way to the driver."""
    if stage is None:
        return f"{Stage.DECODE}-to-driver"
    return f"{stage.previous or 'driver'}-to-{stage}"


def hop_between(stage: Stage) -> str:
    """What the hop of a part of a stage is called, to the worker that joins the parts."""
    return f"{stage}-to-{stage}"


class PayloadGone(Exception):
    """The payload that a stage was to start from no longer exists (its node died)."""


BeforeServing = Callable[[WorkerInfo], Awaitable[None]]


async def as_it_is(worker: WorkerInfo) -> None:
    """Let a restarted worker serve as it came up."""


class Listener(Protocol):
    """What a backend tells the engine; called on the engine's loop."""

    def on_progress(self, progress: Progress) -> None:
        """A running stage got further."""

    def on_spans(self, spans: Sequence[SpanRecord]) -> None:
        """What was recorded of a stage that failed, or of loading. A finished stage's are in its receipt."""

    def on_worker_up(self, worker: WorkerInfo) -> None:
        """A worker serves (again)."""

    def on_worker_down(self, worker: WorkerInfo, error: WorkerLost, *, returning: bool) -> None:
        """A worker no longer serves; it comes back when `returning`."""


class Backend(Protocol):
    """Runs stages on workers. Payload handles are opaque: the engine keeps them and hands them on.

    `before_serving` is awaited for each worker that was restarted, before it is reported up.
    """

    before_serving: BeforeServing

    @property
    def workers(self) -> Sequence[WorkerInfo]:
        """All workers, once started."""
        ...

    @property
    def geometry(self) -> Mapping[str, Any]:
        """The checkpoint's geometry as the workers agree on it, once started."""
        ...

    async def start(self, listener: Listener, on_load: Callable[[LoadProgress], None]) -> None:
        """Place, check and load. Raises ClusterError or CheckpointError; leaves nothing behind when it does."""
        ...

    async def run_stage(
        self, worker: str, stage: Stage, request_id: str, payload: Any, parts: Sequence[Any] = ()
    ) -> tuple[Any, StageReceipt]:
        """Run a stage from a payload handle to a new one.

        `parts`: of `start_part`, for shares 1, 2 and so on; the worker makes what is None, or does not come, itself.
        Raises StageError (this request's fault or the stage's), RequestCancelled (stopped as asked), WorkerLost, or
        PayloadGone.
        """
        ...

    def start_part(
        self, worker: str, stage: Stage, request_id: str, payload: Any, share: Share
    ) -> tuple[Any, Callable[[], Awaitable[StageReceipt]]]:
        """Start a share of a stage: a handle for `run_stage`, and what to await, which ends as `run_stage` does, when the
        worker is done.

        It is stopped by `stop_stage` with the share's key as request id. Raises WorkerLost.
        """
        ...

    async def stop_stage(self, worker: str, request_id: str) -> None:
        """Ask a running stage to end at its next step."""
        ...

    async def replace_worker(self, worker: str, error: WorkerLost) -> None:
        """Give up a worker that does not answer, and start another in its place if the limits allow."""
        ...

    async def share(self, content: NDArray[np.uint8]) -> Any:
        """Bytes in the form in which `adapt` hands them to workers; they are kept as long as what this returns is."""
        ...

    async def adapt(self, worker: str, order: AdapterOrder, content: Any, timeout: float) -> LoraReceipt | None:
        """Change a worker's adapters: at once, but weights (`FuseAdapters`) only between two stages.

        `content`: what `share` gave, for `InstallAdapter`. Raises AdapterError (nothing changed there), WorkerLost, or
        WorkerNotReady after `timeout` seconds.
        """
        ...

    async def fetch(self, payload: Any, spans: SpanRecorder) -> Any:
        """Bring a payload into this process, recording its hop. Raises PayloadGone."""
        ...

    async def health(self) -> list[WorkerHealth]:
        """Ask every worker; bounded. One that does not answer is reported as lost."""
        ...

    async def close(self) -> None:
        """End all workers and give everything back. Bounded; may be called twice."""
        ...
