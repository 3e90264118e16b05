"""How fast films are made here: what progress in percent, ETA and Retry-After are computed from."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from splitreel.observe.progress import Progress
from splitreel.observe.timings import STAGES, Timings

# Before the first film is done: roughly a released model's shares at 50 steps.
_FIRST_SHARES = {"encode": 0.05, "denoise": 0.8, "decode": 0.15}
_FIRST_SECONDS = 60.0
_MEMORY = 0.3  # the weight of the newest film in the averages


@dataclass
class Pace:
    """Averages over the films of this process, newer ones weighing more. Belongs to one loop."""

    stages: dict[str, float] = field(default_factory=dict)
    _ends: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=32))

    def film_done(self, timings: Timings, started: float, ended: float) -> None:
        """A film ended that took from `started` to `ended` on one clock."""
        for item in timings:
            known = self.stages.get(item.stage, item.seconds)
            self.stages[item.stage] = known + _MEMORY * (item.seconds - known)
        self._ends.append((started, ended))

    @property
    def seconds_per_film(self) -> float | None:
        """The inverse of the measured rate, films that overlap counted as they do; None before the first."""
        if not self._ends:
            return None
        ends = list(self._ends)
        # Idle time between films says nothing about the rate: only stretches in which one was being made count.
        busy, until = 0.0, -math.inf
        for started, ended in sorted(ends):
            busy += max(0.0, ended - max(started, until))
            until = max(until, ended)
        return busy / len(ends)

    def retry_after(self) -> int:
        """Whole seconds until a place in a full queue is likely free."""
        return min(3600, max(1, math.ceil(self.seconds_per_film or _FIRST_SECONDS)))

    def percent(self, progress: Progress) -> int:
        """How much of the film is done, 0 to 99, by the stages' shares of the time."""
        shares = self._shares()
        before = sum(shares[stage] for stage in STAGES[: STAGES.index(progress.stage)])
        part = progress.done / progress.total if progress.total else 0.0
        return min(99, int(100 * (before + part * shares[progress.stage])))

    def eta(self, progress: Progress) -> float | None:
        """Seconds until the film is done: this stage at its own pace, the following ones as they took before."""
        later = STAGES[STAGES.index(progress.stage) + 1 :]
        if progress.eta is None or any(stage not in self.stages for stage in later):
            return None
        return progress.eta + sum(self.stages[stage] for stage in later)

    def _shares(self) -> dict[str, float]:
        total = sum(self.stages.get(stage, 0.0) for stage in STAGES)
        if len(self.stages) < len(STAGES) or total <= 0:
            return _FIRST_SHARES
        return {stage: self.stages[stage] / total for stage in STAGES}
