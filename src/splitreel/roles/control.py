"""How a running stage talks to the outside: it reports steps and learns that it should stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from splitreel.errors import RequestCancelled
from splitreel.observe.progress import Progress
from splitreel.observe.spans import Place, SpanRecorder
from splitreel.request import Stage
from splitreel.share import Share
from splitreel.wire import Payload

# A part that another worker makes; None when it did not come.
TakePart = Callable[[], Payload | None]


class StageControl:
    """One run of one stage. `report` is called in the stage's thread; `stop` may be called from any.

    `share`: what of the stage is to be done here; the result of one above 0 is a part. `parts` of the other shares, from 1.
    """

    def __init__(
        self,
        request_id: str,
        stage: Stage,
        report: Callable[[Progress], None] | None = None,
        spans: SpanRecorder | None = None,
        share: Share | None = None,
    ) -> None:
        self.request_id = request_id
        self.share = share or Share(0, 1)
        self.parts: tuple[TakePart, ...] = ()
        self.stage = stage
        self.spans = spans or SpanRecorder(Place("", "", ""), request_id=request_id, stage=stage)
        self._report = report
        self._stopping = threading.Event()
        self._began = time.monotonic()
        self._last = Progress(request_id, stage, "", 0, 0, 0.0)
        self._part: int | None = None

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def stop(self) -> None:
        """Ask the stage to end at its next step."""
        self._stopping.set()

    def check(self) -> None:
        """Raise RequestCancelled if the stage was asked to end."""
        if self._stopping.is_set():
            last = self._last
            where = f" after {last.unit} {last.done} of {last.total}" if last.total else " before its first step"
            raise RequestCancelled(
                f"request {self.request_id}: cancelled; {self.stage} stopped{where}.",
                request_id=self.request_id,
                stage=self.stage,
                done=last.done,
                total=last.total,
                unit=last.unit,
            )

    def step(self, unit: str, done: int, total: int) -> None:
        """Report that `done` of `total` are behind, then stop here if asked to."""
        self._last = Progress(self.request_id, self.stage, unit, done, total, self.seconds)
        if self._report is not None:
            self._report(self._last)
        self.check()

    def span(self, name: str, **attributes: Any) -> AbstractContextManager[dict[str, Any]]:
        """Time a part of the stage on this machine's monotonic clock."""
        return self.spans.span(name, **attributes)

    def begin_part(self, unit: str, index: int) -> None:
        """A step or chunk begins, number `index` from 1: a span `denoise.step` or `decode.chunk` until `end_part`."""
        self.end_part()
        self._part = self.spans.begin(f"{self.stage}.{unit}", index=index)

    def end_part(self) -> None:
        """The step or chunk is done; nothing happens when none is under way."""
        if self._part is not None:
            self.spans.end(self._part)
            self._part = None
