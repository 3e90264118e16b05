"""What the scheduler is told (events) and what it answers (commands): two closed unions of plain data.

Requests and workers are named by text ids; a payload is named by the request and the stage that made it.
"""

from __future__ import annotations

from dataclasses import dataclass

from splitreel.request import Stage

# Events: workers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """A worker is ready: it runs one stage at a time, any of `stages`, for requests of `workflows`. Workers of one `role`
    may take part in each other's runs.
    """

    worker: str
    stages: frozenset[Stage]
    workflows: frozenset[str]
    role: str = ""


@dataclass(frozen=True, slots=True)
class WorkerDown:
    """A worker stopped serving. `returning`: it is being restarted and its work may wait for it; else it is gone."""

    worker: str
    returning: bool


# Events: requests -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submitted:
    """A new request. Its id must never have been used before. Higher `priority` goes first."""

    request: str
    workflow: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class StageDone:
    """A run finished and its payload is held by the engine, until `ReleasePayload`.

    When the scheduler no longer knows the run it answers nothing, and the payload is the engine's to drop. `attempt`
    (that of `RunStage`) tells a late result from the same worker's second run of the stage; None matches any.
    """

    request: str
    stage: Stage
    worker: str
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A run raised; the worker is well. Fails this request alone, with `reason` passed through as it is.

    Only when the run's input was lost under it (`PayloadLost`) is the input made again instead.
    """

    request: str
    stage: Stage
    worker: str
    reason: object
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class StageStopped:
    """A run ended without a result, because it was told to (`StopStage`). Untold, it counts as lost and runs again."""

    request: str
    stage: Stage
    worker: str
    attempt: int | None = None
    lost: str = "a stop that nobody asked for"


@dataclass(frozen=True, slots=True)
class HelpEnded:
    """A helper of this run of the request's decode is free again, whatever became of its part."""

    request: str
    worker: str
    attempt: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A user or a deadline ends the request; `reason` comes back in `Cancelled`."""

    request: str
    reason: object = None


@dataclass(frozen=True, slots=True)
class PayloadLost:
    """The payload that `stage` made is gone, for instance with its node; no `ReleasePayload` follows for it.

    A run that already took it as input goes on, and is only repeated from further back if it fails or is lost.
    """

    request: str
    stage: Stage


Event = (
    WorkerUp
    | WorkerDown
    | Submitted
    | StageDone
    | StageFailed
    | StageStopped
    | HelpEnded
    | CancelRequested
    | PayloadLost
)

# Commands -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStage:
    """Start the stage on the worker, from the payload of the stage before. `attempt` counts from 1 for each stage.

    `helpers` take part; each is busy until `HelpEnded`, which may come after the run's own end. The run does not depend
    on them.
    """

    request: str
    stage: Stage
    worker: str
    attempt: int
    helpers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopStage:
    """Stop the run; answer with `StageStopped`, or with its end if that came first."""

    request: str
    stage: Stage
    worker: str


@dataclass(frozen=True, slots=True)
class ReleasePayload:
    """The payload that `stage` made is not needed any more. Given exactly once for each payload that was not lost."""

    request: str
    stage: Stage


@dataclass(frozen=True, slots=True)
class Deliver:
    """The film is made: hand out the decode payload. The request has ended."""

    request: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The request has ended at `stage`: `reason` is that of `StageFailed`, or `Unserved` or `LostTooOften`."""

    request: str
    reason: object
    stage: Stage


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The request has ended by cancel, in or before `stage`; None when it had not started."""

    request: str
    stage: Stage | None
    reason: object


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request was not admitted: `waiting` requests wait already, of `limit`."""

    request: str
    waiting: int
    limit: int


Command = RunStage | StopStage | ReleasePayload | Deliver | Fail | Cancelled | Refuse

# Reasons that the scheduler itself gives ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unserved:
    """No worker, up or returning, serves the stage for the workflow."""

    workflow: str
    stage: Stage

    def __str__(self) -> str:
        return (
            f'{self.stage}: expected a worker that serves workflow "{self.workflow}", found none, up or returning. '
            "Configure one or send another workflow."
        )


@dataclass(frozen=True, slots=True)
class LostTooOften:
    """The stage would have to run once more than allowed. `lost` says what was lost last."""

    stage: Stage
    runs: int
    limit: int
    lost: str

    def __str__(self) -> str:
        return (
            f"{self.stage}: expected to finish within {self.limit} runs, found run {self.runs} lost with {self.lost}. "
            "See why workers are lost, or raise engine.retries."
        )
