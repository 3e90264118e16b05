"""The bounds that the scheduler keeps, and the deadlines that the engine does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The bounds that the scheduler keeps.

    `max_in_flight`: requests whose encode has started and whose decode has not finished; below
    `look_ahead` + 1 per denoise worker and 1 more, it is this bound, and not look-ahead, that leaves workers idle.
    `max_waiting`: requests admitted and not started; 0 admits only what can start at once.
    `retries`: how often a stage of one request may run again after a worker or payload was lost.
    `patience`: how often a request lets later ones of higher priority pass; 0 makes priority count for nothing. It
    holds for each request: a whole queue that has run out of patience goes before a later request of high priority.
    `look_ahead`: requests that may be encoding or encoded for each denoise worker while it is busy.
    `parallel_decode`: workers of one role that may decode one film together, those that are idle when its decode starts.
    Raises ValueError for a bound below 0, or one of `max_in_flight`, `look_ahead` and `parallel_decode` below 1.
    """

    max_in_flight: int = 3
    max_waiting: int = 1000
    retries: int = 1
    patience: int = 32
    look_ahead: int = 1
    parallel_decode: int = 1

    def __post_init__(self) -> None:
        ones = ("max_in_flight", "look_ahead", "parallel_decode")
        leasts = {"max_waiting": 0, "retries": 0, "patience": 0, **dict.fromkeys(ones, 1)}
        for name, least in leasts.items():
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"limits.{name}: expected {least} or more, found {value}.")


@dataclass(frozen=True)
class Deadlines:
    """Bounds on waiting, in seconds.

    `start`: until every role is resident. `request`: from the start of encode to the film. `stage`: for one stage.
    `stop`: how long a stage that was asked to stop may take before its worker is given up.
    """

    start: float = 1800.0
    request: float = 7200.0
    stage: float = 3600.0
    stop: float = 120.0
