"""A small world to try the scheduler in: workers that run, fail, die and return, and the laws that must hold in it.

The world keeps its own books (who runs what, which payloads exist, who overtook whom) from nothing but the events that
it sends and the commands that it gets, by brute force, and raises AssertionError at the first command or omission that
breaks a law. `scheduler_life` fills it with random lives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

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
from splitreel.engine.scheduler import Scheduler
from splitreel.request import Stage

ENCODE, DENOISE, DECODE = Stage
WORKFLOWS = ("t2va", "fl2va", "ref2va")


@dataclass(eq=False)
class Hand:
    """A worker of the world."""

    stages: frozenset[Stage]
    workflows: frozenset[str]
    up: bool = True
    run: RunStage | None = None
    helps: tuple[str, int] | None = None  # the request and the attempt

    @property
    def idle(self) -> bool:
        return self.up and self.run is None and self.helps is None


@dataclass(eq=False)
class Wish:
    """A request of the world that was admitted and has not ended."""

    workflow: str
    priority: int
    arrival: int
    started: bool = False
    stopping: bool = False
    cancel: tuple[object] | None = None  # the reason, which may be None
    payloads: set[Stage] = field(default_factory=set)
    runs: dict[Stage, int] = field(default_factory=dict)
    run: RunStage | None = None
    overtaken: int = 0  # by later ones of higher priority, at a stage that this one waited for
    wronged: int = 0  # the same, and by one that took a worker and a place which this one could have taken

    @property
    def stage(self) -> Stage:
        """What it runs or waits for: the stage after the newest payload that exists."""
        if self.run:
            return self.run.stage
        return ENCODE if not self.payloads else max(self.payloads, key=list(Stage).index).following or DECODE


class World:
    """See the module. `ended` counts endings by kind, for a test to see that all kinds occurred."""

    def __init__(self, limits: Limits, crew: list[tuple[set[Stage], frozenset[str]]]) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self.hands: dict[str, Hand] = {}
        self.wishes: dict[str, Wish] = {}
        self.history: list[Event] = []
        self.answers: list[list[Command]] = []
        self.ended: dict[str, Command] = {}
        self.arrivals = 0
        for index, (stages, workflows) in enumerate(crew):
            self.tell(WorkerUp(f"w{index}", frozenset(stages), workflows))

    # An event reaches the scheduler -----------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Send the event, write it in the books, check the answer."""
        if self._is_wrong(event):
            before = self.scheduler.snapshot()
            with pytest.raises(ValueError, match="expected"):
                self.scheduler.handle(event)
            assert self.scheduler.snapshot() == before
            return
        self.history.append(event)
        self.spared: str | None = None
        due = self._note(event)
        if due is None:
            before = self.scheduler.snapshot()
            assert self.scheduler.handle(event) == [], f"{event} fits nothing and was answered"
            assert self.scheduler.snapshot() == before, f"{event} fits nothing and changed something"
            self.answers.append([])
            return
        commands = self.scheduler.handle(event)
        self.answers.append(commands)
        for index, command in enumerate(commands):
            self._obey(command, event, commands[index - 1] if index else None)
        for command in commands:
            if isinstance(command, RunStage) and command.helpers:
                self._obey_help(command)
        for command in due:
            assert command in commands, f"{command} was due at once after {event}; answer: {commands}"
        self._check_rest(event)

    def _is_wrong(self, event: Event) -> bool:
        match event:
            case Submitted(request):
                return request in self.wishes
            case WorkerUp(worker, stages, workflows):
                hand = self.hands.get(worker)
                return hand is not None and hand.up and (hand.stages, hand.workflows) != (stages, workflows)
        return False

    def _note(self, event: Event) -> list[Command] | None:
        """What the event changes in the world; the commands that must answer it, or None when it fits nothing."""
        match event:
            case WorkerUp(worker, stages, workflows):
                if worker in self.hands and self.hands[worker].up:
                    return None
                self.hands[worker] = Hand(stages, workflows)
                return []
            case WorkerDown(worker, returning):
                hand = self.hands.get(worker)
                if hand is None or (returning and not hand.up):
                    return None
                run, hand.run, hand.helps, hand.up = hand.run, None, None, False
                if not returning:
                    del self.hands[worker]
                return self._run_over(run, None) if run else []
            case Submitted(request, workflow, priority):
                for stage in Stage:
                    if not self._served(stage, workflow):
                        return [Fail(request, Unserved(workflow, stage), stage)]
                self.wishes[request] = Wish(workflow, priority, self.arrivals)
                self.arrivals += 1
                return []
            case CancelRequested(request, reason):
                wish = self.wishes.get(request)
                if wish is None or wish.stopping:
                    return None
                wish.cancel = (reason,)
                if wish.run:
                    return [StopStage(request, wish.stage, wish.run.worker)]
                return [Cancelled(request, wish.stage if wish.started else None, reason)]
            case PayloadLost(request, stage):
                wish = self.wishes.get(request)
                if wish is None or stage not in wish.payloads:
                    return None
                wish.payloads.remove(stage)
                return []
            case HelpEnded(request, worker, attempt):
                hand = self.hands.get(worker)
                if hand is None or hand.helps != (request, attempt):
                    return None
                hand.helps = None
                return []
            case StageDone() | StageFailed() | StageStopped():
                hand = self.hands.get(event.worker)
                run = hand.run if hand else None
                if run is None or (run.request, run.stage) != (event.request, event.stage):
                    return None
                if event.attempt not in (None, run.attempt):
                    return None
                assert hand is not None
                hand.run = None
                return self._run_over(run, event)

    def _run_over(self, run: RunStage, event: StageDone | StageFailed | StageStopped | None) -> list[Command]:
        """A run ended, with its worker if `event` is None."""
        wish = self.wishes[run.request]
        wish.run = None
        due: list[Command] = []
        if isinstance(event, StageDone):
            wish.payloads.add(run.stage)
            if wish.stopping or run.stage is DECODE:
                due.append(ReleasePayload(run.request, run.stage))
        if wish.stopping:
            if wish.cancel:
                due.append(Cancelled(run.request, run.stage, wish.cancel[0]))
            return due
        if isinstance(event, StageDone) and run.stage is DECODE:
            due.append(Deliver(run.request))
        if isinstance(event, StageFailed):
            input_lost = run.stage is not ENCODE and not wish.payloads
            if input_lost and all(
                self._served(stage, wish.workflow) and self._has_runs_left(wish, stage) for stage in Stage
            ):
                self.spared = run.request
            else:
                due.append(Fail(run.request, event.reason, run.stage))
        return due

    def _has_runs_left(self, wish: Wish, stage: Stage) -> bool:
        return wish.runs.get(stage, 0) <= self.limits.retries

    # A command is obeyed ----------------------------------------------------------------------------------------------

    def _obey(self, command: Command, event: Event, last: Command | None) -> None:
        match command:
            case RunStage():
                self._obey_run(command)
            case StopStage(request, stage, worker):
                wish = self.wishes[request]
                assert wish.run, "stops what does not run"
                assert (wish.run.stage, wish.run.worker) == (stage, worker), "stops another run"
                assert not wish.stopping, "stopped twice"
                assert wish.cancel or not self._served_from(wish.stage, wish.workflow), "stopped for nothing"
                wish.stopping = True
            case ReleasePayload(request, stage):
                if request in self.ended:
                    assert last == Deliver(request), "a payload released after the end"
                    assert stage is DECODE, "a payload released after the end"
                else:
                    self.wishes[request].payloads.remove(stage)
            case Deliver(request):
                wish = self.wishes[request]
                assert isinstance(event, StageDone)
                assert (event.request, event.stage) == (request, DECODE)
                assert not wish.stopping, "delivers with other payloads left"
                assert wish.payloads == {DECODE}, "delivers with other payloads left"
                self._end(request, command)
            case Fail(request, reason, stage):
                if request in self.wishes:  # else refused at submission
                    wish = self.wishes[request]
                    self._check_reason(wish, reason, stage, event)
                    assert not wish.run, "ended while it runs or holds a payload"
                    assert not wish.payloads, "ended while it runs or holds a payload"
                self._end(request, command)
            case Cancelled(request, stage, reason):
                wish = self.wishes[request]
                assert wish.cancel == (reason,), "cancelled by nobody"
                assert not wish.run, "ended while it runs or holds a payload"
                assert not wish.payloads, "ended while it runs or holds a payload"
                assert (stage is None) == (not wish.started)
                self._end(request, command)
            case Refuse(request, waiting, limit):
                assert isinstance(event, Submitted)
                assert event.request == request
                assert not self.wishes[request].started
                self._end(request, command)
                assert waiting == limit == self.limits.max_waiting == len(list(self._queued())), "refused for nothing"

    def _end(self, request: str, command: Command) -> None:
        assert request not in self.ended, f"{request} ended twice: {self.ended[request]} and {command}"
        self.ended[request] = command
        self.wishes.pop(request, None)

    def _check_reason(self, wish: Wish, reason: object, stage: Stage, event: Event) -> None:
        if isinstance(reason, Unserved):
            assert (reason.workflow, reason.stage) == (wish.workflow, stage)
            assert wish.cancel is None, "cancelled, and failed"
            decided_before = wish.stopping  # when its run was told to stop; a worker may have come since
            assert decided_before or not self._served(stage, wish.workflow), "failed for want of a worker that exists"
        elif isinstance(reason, LostTooOften):
            assert reason.stage == stage, "gave up too early"
            assert wish.runs[stage] == 1 + self.limits.retries, "gave up too early"
            assert isinstance(event, PayloadLost | WorkerDown | StageStopped)
        else:
            assert isinstance(event, StageFailed)
            assert (event.reason, event.stage) == (reason, stage)
            assert self.spared is None, "failed by the loss of its input, with runs left"

    def _obey_run(self, run: RunStage) -> None:
        wish, hand = self.wishes[run.request], self.hands[run.worker]
        assert hand.idle, "a worker that is down or busy"
        assert run.stage in hand.stages, "a worker that cannot"
        assert wish.workflow in hand.workflows, "a worker that cannot"
        assert not wish.run, "runs already, or is to end"
        assert not wish.stopping, "runs already, or is to end"
        assert run.stage is wish.stage, f"{run} without its input, or again without need"
        wish.runs[run.stage] = wish.runs.get(run.stage, 0) + 1
        assert run.attempt == wish.runs[run.stage] <= 1 + self.limits.retries, "more runs than allowed"
        for later in FOLLOWERS[run.stage]:
            assert self._has_runs_left(wish, later), f"{run} for a request that can never finish"
            assert later not in hand.stages or not any(
                other.stage is later and other.workflow in hand.workflows for other in self._waiting()
            ), f"{run} while the same worker could {later}"
        assert self._may_start(wish), f"{run} breaks the bound in flight or on look-ahead"
        for other in self._waiting():
            if other is not wish and other.stage is run.stage:
                self._check_order(wish, other, other.workflow in hand.workflows and self._may_start(other))
        wish.run = hand.run = run
        wish.started = True

    def _obey_help(self, run: RunStage) -> None:
        """What helps is idle, can do the same, and has nothing better to do."""
        assert run.stage is DECODE
        assert len(set(run.helpers)) == len(run.helpers) < self.limits.parallel_decode
        own = self.hands[run.worker]
        for name in run.helpers:
            hand = self.hands[name]
            assert hand.idle, "help of a worker that is down or busy"
            assert (hand.stages, hand.workflows) == (own.stages, own.workflows), "help of a worker of another kind"
            assert not any(self._could(hand, wish) for wish in self._waiting()), "helps while a request waits for it"
        for name in run.helpers:
            self.hands[name].helps = (run.request, run.attempt)

    def _could(self, hand: Hand, wish: Wish) -> bool:
        able = hand.idle and wish.stage in hand.stages and wish.workflow in hand.workflows
        return able and self._may_start(wish)

    def _check_order(self, wish: Wish, other: Wish, could: bool) -> None:
        """`wish` goes while `other` waits for the same stage, and `could` have gone instead or not."""
        if could:
            assert self._key(wish) < self._key(other), "a request went out of turn"
            if not wish.started and not other.started and wish.priority == other.priority:
                assert wish.arrival < other.arrival, "equal priority, out of order"
        if other.arrival < wish.arrival and other.priority < wish.priority:
            other.overtaken += 1
            other.wronged += could
            assert other.wronged <= self.limits.patience, "starved"

    def _key(self, wish: Wish) -> tuple[float, int]:
        return (-math.inf if wish.overtaken >= self.limits.patience else -wish.priority, wish.arrival)

    # What must be true when all is said -------------------------------------------------------------------------------

    def _check_rest(self, event: Event) -> None:
        in_flight = [wish for wish in self.wishes.values() if wish.started]
        assert len(in_flight) <= self.limits.max_in_flight
        assert len(list(self._queued())) <= self.limits.max_waiting
        for request, wish in self.wishes.items():
            if wish.stopping:
                assert not wish.payloads, "to end, and holds a payload"
                assert wish.run, "stopped, and did not end"
                continue
            previous = wish.stage.previous
            assert wish.payloads <= ({previous} if previous else set()), f"{request} keeps a payload too long"
            assert self._served_from(wish.stage, wish.workflow), f"{request} waits for a worker that will never come"
            if not wish.run:
                for name, hand in self.hands.items():
                    assert not self._could(hand, wish), f"{name} idles while {request} waits, after {event}"
        self._check_introspection(len(in_flight))

    def _check_introspection(self, in_flight: int) -> None:
        scheduler = self.scheduler
        assert scheduler.in_flight == in_flight
        assert scheduler.waiting == len(list(self._queued()))
        assert scheduler.busy == {name: hand.run.request for name, hand in self.hands.items() if hand.run}
        in_order = sorted((wish for wish in self._queued()), key=self._key)
        for request, wish in self.wishes.items():
            assert scheduler.state(request) == _state(wish)
            assert scheduler.position(request) == (None if wish.started else in_order.index(wish))

    def _served(self, stage: Stage, workflow: str) -> bool:
        return any(stage in hand.stages and workflow in hand.workflows for hand in self.hands.values())

    def _served_from(self, stage: Stage, workflow: str) -> bool:
        return all(self._served(needed, workflow) for needed in (stage, *FOLLOWERS[stage]))

    def _queued(self) -> Iterator[Wish]:
        return (wish for wish in self.wishes.values() if not wish.started)

    def _waiting(self) -> Iterator[Wish]:
        return (wish for wish in self.wishes.values() if not wish.run and not wish.stopping)

    def _may_start(self, wish: Wish) -> bool:
        """Whether the bounds let this waiting request run its stage now, given a worker."""
        if wish.stage is not ENCODE:
            return True
        if not wish.started and sum(other.started for other in self.wishes.values()) >= self.limits.max_in_flight:
            return False
        pools = {workflow: self._pool(workflow) for workflow in WORKFLOWS}
        own = pools[wish.workflow]
        for pool in pools.values():
            if own <= pool:
                room = sum(self.hands[name].up * self.limits.look_ahead + self.hands[name].idle for name in pool)
                ahead = [other for other in self.wishes.values() if pools[other.workflow] <= pool and _ahead(other)]
                if len(ahead) >= room:
                    return False
        return True

    def _pool(self, workflow: str) -> frozenset[str]:
        able = (name for name, hand in self.hands.items() if DENOISE in hand.stages and workflow in hand.workflows)
        return frozenset(able)


FOLLOWERS = {ENCODE: (DENOISE, DECODE), DENOISE: (DECODE,), DECODE: ()}


def _ahead(wish: Wish) -> bool:
    """Encoding, or encoded and not denoising."""
    return not wish.stopping and (wish.stage is ENCODE if wish.run else wish.stage is DENOISE)


def _state(wish: Wish) -> str:
    if wish.stopping:
        return "stopping"
    if not wish.started:
        return "queued"
    names = {ENCODE: ("encoding", "returned"), DENOISE: ("denoising", "encoded"), DECODE: ("decoding", "denoised")}
    return names[wish.stage][not wish.run]
