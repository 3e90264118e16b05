"""The rules by which requests move through the stages, as a pure state machine: `handle(event) -> commands`.

- Requests go by priority, then by arrival; one that was overtaken `patience` times goes before all others.
- A worker that holds several stages decodes before it denoises before it encodes.
- At most `max_in_flight` requests are between the start of encode and the end of decode; at most `max_waiting` wait.
- So many encodes of look-ahead per busy denoise worker, and one more for an idle one (`Crew.may_look_ahead`).
- A payload is kept until the next stage's result is there, so a lost worker costs the stage that it ran and no other.
- A stage runs at most `1 + retries` times for one request.
- With `parallel_decode`, workers of the same role that would be idle help with a decode that starts; it needs none of them.
- A request that no worker can ever serve fails at once; whatever is admitted ends in exactly one of Deliver, Fail and
  Cancelled; events that fit no current run change nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

from splitreel.engine.crew import Crew, Kind, Worker
from splitreel.engine.events import (
    Cancelled,
    CancelRequested,
    Command,
    Deliver,
    Event,
    Fail,
    HelpEnded,
    LostTooOften,
    PayloadLost,
    Refuse,
    ReleasePayload,
    RunStage,
    StageDone,
    StageFailed,
    StageStopped,
    StopStage,
    Submitted,
    Unserved,
    WorkerDown,
    WorkerUp,
)
from splitreel.engine.limits import Limits
from splitreel.engine.tickets import RUNNING, WAITING, Lines, State, Ticket
from splitreel.request import Stage

ENCODE, DENOISE, DECODE = Stage
LATER_FIRST = (DECODE, DENOISE, ENCODE)
FOLLOWING = {stage: stage.following for stage in Stage}
Choice = tuple[Ticket, Worker]
LOOKS_AHEAD = (State.ENCODING, State.ENCODED)
FROM = {stage: tuple(Stage)[index:] for index, stage in enumerate(Stage)}


class Scheduler:
    """Feed it every event in the order of arrival and carry out what it answers, in that order."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._crew = Crew(self.limits.look_ahead)
        self._tickets: dict[str, Ticket] = {}
        self._queue = Lines(self.limits.patience)  # not started
        self._lines = {stage: Lines(self.limits.patience) for stage in LATER_FIRST}  # started, waiting for the stage
        self._arrivals = 0
        self._in_flight = 0
        self._commands: list[Command] = []

    def handle(self, event: Event) -> list[Command]:
        """Take in what happened; return what to do now.

        Raises ValueError, and changes nothing, for a request id that is already known and for a worker that comes up
        with other stages or workflows while it is up.
        """
        self._commands = []
        match event:
            case StageDone(request, stage, worker, attempt):
                if ticket := self._run_of(request, stage, worker, attempt):
                    self._on_done(ticket)
            case Submitted(request, workflow, priority):
                self._on_submitted(request, workflow, priority)
            case StageFailed(request, stage, worker, reason, attempt):
                if ticket := self._run_of(request, stage, worker, attempt):
                    self._on_failed(ticket, reason)
            case StageStopped(request, stage, worker, attempt, lost):
                if ticket := self._run_of(request, stage, worker, attempt):
                    self._on_stopped(ticket, lost)
            case HelpEnded(request, name, attempt):
                helper = self._crew.workers.get(name)
                if helper is not None and helper.helps == (request, attempt):
                    self._crew.free(helper)
            case CancelRequested(request, reason):
                self._on_cancel(request, reason)
            case PayloadLost(request, stage):
                self._on_payload_lost(request, stage)
            case WorkerUp(worker, stages, workflows, role):
                self._on_worker_up(worker, stages, workflows, role)
            case WorkerDown(worker, returning):
                self._on_worker_down(worker, returning)
            case _:
                assert_never(event)
        self._start_what_may_start()
        if self.limits.parallel_decode > 1:
            self._share_decodes()
        if isinstance(event, Submitted) and self._queue.waiting > self.limits.max_waiting:
            self._refuse(self._tickets[event.request])  # it waits: without it, nothing that waits could have started
        return self._commands

    # Requests come and end --------------------------------------------------------------------------------------------

    def _on_submitted(self, request: str, workflow: str, priority: int) -> None:
        if request in self._tickets:
            raise ValueError(f'Submitted: expected a new request id, found "{request}" in use. Give each its own.')
        for stage in Stage:
            if not self._crew.serves(stage, workflow):
                self._commands.append(Fail(request, Unserved(workflow, stage), stage))
                return
        ticket = self._tickets[request] = Ticket(request, workflow, priority, self._arrivals)
        self._arrivals += 1
        self._queue.add(ticket)

    def _refuse(self, ticket: Ticket) -> None:
        self._forget(ticket)
        self._commands.append(Refuse(ticket.request, self._queue.waiting, self.limits.max_waiting))

    def _on_cancel(self, request: str, reason: object) -> None:
        ticket = self._tickets.get(request)
        if ticket is not None and ticket.ending is None:
            self._end(ticket, Cancelled(request, None if ticket.state is State.QUEUED else ticket.stage, reason))

    def _end(self, ticket: Ticket, ending: Cancelled | Fail) -> None:
        """End the request: at once, or when its run has stopped. Its payload is released at once either way."""
        self._release(ticket)
        if ticket.worker is None:
            self._conclude(ticket, ending)
        else:
            ticket.ending = ending
            self._enter(ticket, State.STOPPING)
            self._commands.append(StopStage(ticket.request, ticket.stage, ticket.worker.name))

    def _conclude(self, ticket: Ticket, ending: Cancelled | Fail | Deliver) -> None:
        self._forget(ticket)
        self._commands.append(ending)

    def _forget(self, ticket: Ticket) -> None:
        """Drop the note on a request that does not run."""
        self._leave_line(ticket)
        if ticket.state is not State.QUEUED:
            self._in_flight -= 1
        self._enter(ticket, State.STOPPING)  # it looks ahead no more
        del self._tickets[ticket.request]

    # Runs end ---------------------------------------------------------------------------------------------------------

    def _run_of(self, request: str, stage: Stage, worker: str, attempt: int | None) -> Ticket | None:
        """The request that this event is about, freed from its worker; None when no such run is known."""
        ticket = self._tickets.get(request)
        if ticket is None or ticket.worker is None or ticket.stage is not stage or ticket.worker.name != worker:
            return None
        if attempt is not None and attempt != ticket.runs[stage]:
            return None
        self._crew.free(ticket.worker)
        ticket.worker = None
        return ticket

    def _on_done(self, ticket: Ticket) -> None:
        stage = ticket.stage
        if ticket.ending is not None:  # the stop came too late: there is a result, which nobody needs
            self._commands.append(ReleasePayload(ticket.request, stage))
            self._conclude(ticket, ticket.ending)
            return
        self._release(ticket)
        following = FOLLOWING[stage]
        if following is None:
            self._conclude(ticket, Deliver(ticket.request))
            self._commands.append(ReleasePayload(ticket.request, stage))
        else:
            ticket.held = stage
            self._wait_for(ticket, following)

    def _on_failed(self, ticket: Ticket, reason: object) -> None:
        if ticket.ending is not None:
            self._conclude(ticket, ticket.ending)
        elif ticket.held is None and ticket.stage is not ENCODE and self._obstacle(ticket, "its input") is None:
            self._go_back(ticket, "its input")
        else:
            self._end(ticket, Fail(ticket.request, reason, ticket.stage))

    def _on_stopped(self, ticket: Ticket, lost: str) -> None:
        if ticket.ending is not None:
            self._conclude(ticket, ticket.ending)
        else:
            self._go_back(ticket, lost)

    # Losses -----------------------------------------------------------------------------------------------------------

    def _on_worker_up(self, name: str, stages: frozenset[Stage], workflows: frozenset[str], role: str) -> None:
        worker = self._crew.workers.get(name)
        before = worker.kind if worker is not None else None
        if worker is not None and worker.up:
            if (worker.kind.stages, worker.kind.workflows) != (stages, workflows):
                raise ValueError(f'WorkerUp: expected "{name}" to go down before it changes, found it up.')
            return
        self._crew.come_up(name, stages, workflows, role)
        if before is not None:
            self._fail_unserved(before)

    def _on_worker_down(self, name: str, returning: bool) -> None:
        worker = self._crew.workers.get(name)
        if worker is None:
            return
        ticket = self._crew.go_down(worker)
        if not returning:
            self._crew.forget(worker)
        if ticket is not None:
            ticket.worker = None
            if ticket.ending is not None:
                self._conclude(ticket, ticket.ending)
            else:
                self._go_back(ticket, f"worker {name}")
        if not returning:
            self._fail_unserved(worker.kind)

    def _fail_unserved(self, kind: Kind) -> None:
        """Fail the requests that still need what no worker serves since one of this kind is gone."""
        gone = {(s, w) for s in kind.stages for w in kind.workflows if not self._crew.serves(s, w)}
        if not gone:
            return
        for ticket in list(self._tickets.values()):
            missing = next((s for s in FROM[ticket.stage] if (s, ticket.workflow) in gone), None)
            if missing is not None and ticket.ending is None:
                self._end(ticket, Fail(ticket.request, Unserved(ticket.workflow, missing), missing))

    def _on_payload_lost(self, request: str, stage: Stage) -> None:
        ticket = self._tickets.get(request)
        if ticket is None or ticket.held is not stage:
            return
        ticket.held = None
        if ticket.worker is None:
            self._go_back(ticket, f"the payload of {stage}")

    def _go_back(self, ticket: Ticket, lost: str) -> None:
        """Let a request that does not run wait for the stage after the payload that it still has."""
        if obstacle := self._obstacle(ticket, lost):
            self._end(ticket, obstacle)
        else:
            self._leave_line(ticket)
            self._wait_for(ticket, self._resume_at(ticket))

    def _obstacle(self, ticket: Ticket, lost: str) -> Fail | None:
        """Why the request cannot be finished from the payload that it has; None when it can."""
        for stage in FROM[self._resume_at(ticket)]:
            if not self._crew.serves(stage, ticket.workflow):
                return Fail(ticket.request, Unserved(ticket.workflow, stage), stage)
            runs = ticket.runs.get(stage, 0)
            if runs > self.limits.retries:
                return Fail(ticket.request, LostTooOften(stage, runs, 1 + self.limits.retries, lost), stage)
        return None

    def _resume_at(self, ticket: Ticket) -> Stage:
        return ENCODE if ticket.held is None else FOLLOWING[ticket.held] or DECODE

    # Runs start -------------------------------------------------------------------------------------------------------

    def _start_what_may_start(self) -> None:
        for stage, lines in self._lines.items():  # later stages first
            while (lines.waiting or stage is ENCODE) and self._crew.any_idle(stage):
                choice = self._choose(stage, lines)
                if choice is None:
                    break
                self._start(*choice)

    def _choose(self, stage: Stage, lines: Lines) -> Choice | None:
        """The request that goes next at this stage, and the worker for it; None when nothing may start."""
        best = self._best(stage, lines, None) if lines.waiting else None
        if stage is ENCODE and self._queue.waiting and self._in_flight < self.limits.max_in_flight:
            best = self._best(stage, self._queue, best)
        return best

    def _best(self, stage: Stage, lines: Lines, best: Choice | None) -> Choice | None:
        """The better of `best` and the first in these lines that has a worker and may start."""
        for line in lines:
            ticket = line.first
            if ticket is None or (best is not None and best[0].key < ticket.key):
                continue
            if stage is ENCODE and not self._crew.may_look_ahead(line.workflow):
                continue
            worker = self._crew.idle_for(stage, line.workflow)
            if worker is not None:
                best = (ticket, worker)
        return best

    def _start(self, ticket: Ticket, worker: Worker) -> None:
        stage = ticket.stage
        self._leave_line(ticket)
        self._lines[stage].overtake(ticket)
        if stage is ENCODE:
            self._queue.overtake(ticket)
        if ticket.state is State.QUEUED:
            self._in_flight += 1
        self._crew.take(worker, ticket)
        ticket.worker = worker
        ticket.runs[stage] = attempt = ticket.runs.get(stage, 0) + 1
        self._enter(ticket, RUNNING[stage])
        self._commands.append(RunStage(ticket.request, stage, worker.name, attempt))

    def _share_decodes(self) -> None:
        """Let workers that nothing else has use for now help with the decodes that start now."""
        for index, command in enumerate(self._commands):
            if isinstance(command, RunStage) and command.stage is DECODE:
                worker = self._crew.workers[command.worker]
                helpers = self._crew.lend(worker, command.attempt, self.limits.parallel_decode - 1)
                self._commands[index] = replace(command, helpers=helpers)

    # Bookkeeping ------------------------------------------------------------------------------------------------------

    def _wait_for(self, ticket: Ticket, stage: Stage) -> None:
        ticket.stage = stage
        self._enter(ticket, WAITING[stage])
        self._lines[stage].add(ticket)

    def _leave_line(self, ticket: Ticket) -> None:
        if ticket.line is not None:
            (self._queue if ticket.state is State.QUEUED else self._lines[ticket.stage]).remove(ticket)

    def _enter(self, ticket: Ticket, state: State) -> None:
        """Change the state, and with it the count of look-ahead."""
        change = (state in LOOKS_AHEAD) - (ticket.state in LOOKS_AHEAD)
        if change:
            self._crew.look_ahead(ticket.workflow, change)
        ticket.state = state

    def _release(self, ticket: Ticket) -> None:
        if ticket.held is not None:
            self._commands.append(ReleasePayload(ticket.request, ticket.held))
            ticket.held = None

    # Looking in -------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests admitted and not started."""
        return self._queue.waiting

    @property
    def in_flight(self) -> int:
        """Requests whose encode has started and whose decode has not finished, those being stopped included."""
        return self._in_flight

    @property
    def busy(self) -> dict[str, str]:
        """Which worker runs which request."""
        return {name: worker.running.request for name, worker in self._crew.workers.items() if worker.running}

    def state(self, request: str) -> State | None:
        """Where the request is; None when it was never admitted or has ended."""
        ticket = self._tickets.get(request)
        return ticket.state if ticket is not None else None

    def position(self, request: str) -> int | None:
        """How many requests in the queue go before this one; None unless it is queued. O(waiting)."""
        ticket = self._tickets.get(request)
        if ticket is None or ticket.state is not State.QUEUED:
            return None
        return sum(other.key < ticket.key for line in self._queue for other in line)

    def snapshot(self) -> dict[str, Any]:
        """Everything as plain data, fit for JSON. O(requests + workers)."""
        return {
            "waiting": self._queue.waiting,
            "in_flight": self._in_flight,
            "requests": {ticket.request: ticket.describe() for ticket in self._tickets.values()},
            "workers": {worker.name: worker.describe() for worker in self._crew.workers.values()},
        }
