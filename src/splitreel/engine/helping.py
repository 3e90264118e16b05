"""Workers that make parts of a stage for the one that runs it. The run needs none of them: a part that does not come is
made where the run is, so whatever happens to a helper costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from splitreel.engine.backend import Backend, StageReceipt
from splitreel.engine.events import HelpEnded, RunStage
from splitreel.errors import RequestCancelled, WorkerLost
from splitreel.observe.logs import get_logger
from splitreel.share import Share

if TYPE_CHECKING:
    from splitreel.observe.observer import RequestTrace

logger = get_logger(__name__)


class Helpers:
    """Who helps with what, until it is told that the helper is free (`HelpEnded`) or the backend that it is lost."""

    def __init__(
        self,
        backend: Backend,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        ended: Callable[[HelpEnded], None],
    ) -> None:
        self._backend = backend
        self._spawn = spawn
        self._ended = ended
        # By worker: the request and the attempt, None once it was left, and what its part is called.
        self._keys: dict[str, tuple[tuple[str, int] | None, str]] = {}

    def start(self, run: RunStage, payload: Any, trace: RequestTrace) -> tuple[Any, ...]:
        """Order the parts of a run. A handle of each to come, None where a helper is not there after all."""
        return tuple(self._start(run, index, payload, trace) for index in range(len(run.helpers)))

    def _start(self, run: RunStage, index: int, payload: Any, trace: RequestTrace) -> Any | None:
        worker = run.helpers[index]
        share = Share(index + 1, len(run.helpers) + 1, f"{run.request}/{run.attempt}.{index + 1}")
        over = HelpEnded(run.request, worker, run.attempt)
        try:
            part, ends = self._backend.start_part(worker, run.stage, run.request, payload, share)
        except WorkerLost:
            self._ended(over)
            return None
        self._keys[worker] = ((run.request, run.attempt), share.key)
        self._spawn(self._wait(over, ends, trace))
        return part

    async def _wait(self, over: HelpEnded, ends: Callable[[], Awaitable[StageReceipt]], trace: RequestTrace) -> None:
        try:
            receipt = await ends()
        except (RequestCancelled, WorkerLost):
            pass  # of a loss the backend has told already, with what becomes of the worker
        except Exception as error:
            logger.warning("%s did not make its part: %s", over.worker, error, extra={"request_id": over.request})
        else:
            trace.add(receipt.spans)
        self._keys.pop(over.worker, None)
        self._ended(over)

    def leave(self, request: str, attempt: int | None = None) -> Iterator[tuple[str, str]]:
        """Worker and key of each part that this request does not need any more, in one attempt or in all; each once."""
        for worker, (helped, key) in list(self._keys.items()):
            if helped is not None and helped[0] == request and attempt in (None, helped[1]):
                self._keys[worker] = (None, key)
                yield worker, key
