"""The scheduler's note on each request, and the lines that requests wait in."""

from __future__ import annotations

import math
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from splitreel.engine.events import Cancelled, Fail
from splitreel.request import Stage

if TYPE_CHECKING:
    from splitreel.engine.crew import Worker


class State(StrEnum):
    """Where an admitted request is. Ended requests are forgotten."""

    QUEUED = "queued"  # not started
    RETURNED = "returned"  # started, but its payload was lost: waits to be encoded again
    ENCODING = "encoding"
    ENCODED = "encoded"
    DENOISING = "denoising"
    DENOISED = "denoised"
    DECODING = "decoding"
    STOPPING = "stopping"  # its end is decided; the run has yet to stop


RUNNING = {Stage.ENCODE: State.ENCODING, Stage.DENOISE: State.DENOISING, Stage.DECODE: State.DECODING}
WAITING = {Stage.ENCODE: State.RETURNED, Stage.DENOISE: State.ENCODED, Stage.DECODE: State.DENOISED}


class Ticket:
    """One admitted request. `stage` is the one that runs, or else the one that it waits for."""

    __slots__ = (
        "arrival",
        "ending",
        "held",
        "key",
        "line",
        "overtaken",
        "priority",
        "rank",
        "request",
        "runs",
        "stage",
        "state",
        "worker",
        "workflow",
    )

    def __init__(self, request: str, workflow: str, priority: int, arrival: int) -> None:
        self.request = request
        self.workflow = workflow
        self.priority = priority
        self.arrival = arrival
        self.state = State.QUEUED
        self.stage = Stage.ENCODE
        self.worker: Worker | None = None
        self.line: Line | None = None
        self.held: Stage | None = None  # the one payload that exists: the newest, as each replaces the one before
        self.runs: dict[Stage, int] = {}
        self.ending: Cancelled | Fail | None = None
        self.overtaken = 0
        self.set_rank(priority)

    def set_rank(self, rank: float) -> None:
        """Highest rank first, then arrival: `key` sorts that way."""
        self.rank = rank
        self.key = (-rank, self.arrival)

    def describe(self) -> dict[str, Any]:
        """The request as plain data."""
        return {
            "state": str(self.state),
            "workflow": self.workflow,
            "priority": self.priority,
            "stage": str(self.stage),
            "worker": self.worker.name if self.worker else None,
            "holds": str(self.held) if self.held else None,
            "runs": {str(stage): runs for stage, runs in self.runs.items()},
            "overtaken": self.overtaken,
        }


class Line:
    """Requests of one workflow that wait for one stage, in the order in which they go.

    By priority, then by arrival; but a request that `patience` later ones of higher priority have overtaken goes
    before all others. A request is counted up at most `patience` times, so counting costs O(patience) per request.
    """

    __slots__ = ("_by_rank", "_patience", "_ranks", "first", "workflow")

    def __init__(self, workflow: str, patience: int) -> None:
        self.workflow = workflow
        self.first: Ticket | None = None  # the one that goes next
        self._patience = patience
        self._ranks: list[float] = []  # ascending; those in use
        self._by_rank: dict[float, OrderedDict[int, Ticket]] = {}  # each in order of arrival

    def __iter__(self) -> Iterator[Ticket]:
        for rank in reversed(self._ranks):
            yield from self._by_rank[rank].values()

    def add(self, ticket: Ticket) -> None:
        """Take its place in the order."""
        if ticket.overtaken >= self._patience:
            ticket.set_rank(math.inf)
        same = self._by_rank.get(ticket.rank)
        if same is None:
            self._by_rank[ticket.rank] = same = OrderedDict()
            insort(self._ranks, ticket.rank)
        newest = next(reversed(same), -1)
        same[ticket.arrival] = ticket
        if newest > ticket.arrival:  # came back, or its earlier stage ended out of order
            for later in [arrival for arrival in same if arrival > ticket.arrival]:
                same.move_to_end(later)
        if self.first is None or ticket.key < self.first.key:
            self.first = ticket

    def remove(self, ticket: Ticket) -> None:
        """Leave the line."""
        same = self._by_rank[ticket.rank]
        del same[ticket.arrival]
        if not same:
            del self._by_rank[ticket.rank]
            self._ranks.remove(ticket.rank)
        if ticket is self.first:
            self.first = next(iter(self._by_rank[self._ranks[-1]].values())) if self._ranks else None

    def overtake(self, winner: Ticket) -> None:
        """Count that `winner` goes now, before the earlier requests of lower priority that wait here."""
        if not self._ranks or self._ranks[0] >= winner.priority:
            return
        promoted: list[Ticket] = []
        for rank in self._ranks:
            if rank >= winner.priority:
                break
            for ticket in self._by_rank[rank].values():
                if ticket.arrival > winner.arrival:
                    break
                ticket.overtaken += 1
                if ticket.overtaken >= self._patience:
                    promoted.append(ticket)
        for ticket in promoted:
            self.remove(ticket)
            self.add(ticket)


class Lines:
    """All requests that wait for one stage: a line for each workflow, which other workers may serve."""

    __slots__ = ("_by_workflow", "_patience", "waiting")

    def __init__(self, patience: int) -> None:
        self.waiting = 0
        self._patience = patience
        self._by_workflow: dict[str, Line] = {}

    def __iter__(self) -> Iterator[Line]:
        return iter(self._by_workflow.values())

    def add(self, ticket: Ticket) -> None:
        """Let the request wait here; it must wait nowhere."""
        line = self._by_workflow.get(ticket.workflow)
        if line is None:
            line = self._by_workflow[ticket.workflow] = Line(ticket.workflow, self._patience)
        line.add(ticket)
        ticket.line = line
        self.waiting += 1

    def remove(self, ticket: Ticket) -> None:
        """Let the request, which waits here, go."""
        assert ticket.line is not None
        ticket.line.remove(ticket)
        ticket.line = None
        self.waiting -= 1

    def overtake(self, winner: Ticket) -> None:
        """Count that `winner` goes now, before whom it overtakes in any line: they may need the same worker."""
        if self.waiting:
            for line in self._by_workflow.values():
                line.overtake(winner)
