"""How far things are: one stage of a request, or the loading of a role."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a stage is. `unit`: what is counted (`layer`, `step`, `chunk`); `seconds` since the stage began."""

    request_id: str
    stage: str
    unit: str
    done: int
    total: int
    seconds: float

    @property
    def eta(self) -> float | None:
        """Seconds until this stage ends if it goes on at this pace; None before the first unit is done."""
        return self.seconds / self.done * (self.total - self.done) if self.done else None


@dataclass(frozen=True)
class LoadProgress:
    """How far a worker is: `component` was just done (or began, when `done` is that many less), of `total`.

    `num_bytes`: what the component keeps resident. `seconds`: what it took.
    """

    worker: str
    node: str
    component: str
    done: int
    total: int
    num_bytes: int
    seconds: float
