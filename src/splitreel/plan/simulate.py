"""A deployment on a virtual clock: the real scheduler decides, a heap of finish times stands in for the cluster."""

from __future__ import annotations

import gc
import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from splitreel.config import EngineConfig
from splitreel.engine.events import Deliver, Event, Refuse, RunStage, StageDone, Submitted, WorkerUp
from splitreel.engine.limits import Limits
from splitreel.engine.scheduler import Scheduler
from splitreel.request import Stage

WORKFLOW = "t2va"
_BUCKET = math.log(1.01)


@dataclass(frozen=True)
class Hand:
    """A worker: seconds of each of its stages, and for a machine that cannot hold all its components, what it loads.

    `needs`: bytes of each component that a stage needs; `budget`: bytes that may be resident, None for all;
    `load_rate`: bytes per second from disk.
    """

    name: str
    seconds: dict[Stage, float]
    needs: dict[Stage, dict[str, int]] = field(default_factory=dict)
    budget: int | None = None
    load_rate: float = 1e9


@dataclass(frozen=True)
class Outcome:
    """What a simulation saw; times in virtual seconds. Percentiles are within 1 %.

    `per_hour`: films per hour between the first and the last quarter of deliveries, so without filling and draining.
    `busy`: the share of that run in which each worker computed or loaded.
    """

    films: int
    refused: int
    seconds: float
    per_hour: float
    latency_mean: float
    latency_p50: float
    latency_p95: float
    latency_max: float
    latency_last: float
    busy: dict[str, float]


class _Residency:
    """Which components a worker holds; where room is needed the largest goes first, so that small ones stay."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.held: dict[str, int] = {}

    def load(self, stage: Stage) -> float:
        """Seconds until the stage's components are resident."""
        needed = self.hand.needs.get(stage, {})
        missing = 0
        for name, size in needed.items():
            if name not in self.held:
                missing += size
            self.held[name] = size
        if self.hand.budget is not None:
            others = [name for name in self.held if name not in needed]
            for name in sorted(others, key=lambda name: -self.held[name]):
                if sum(self.held.values()) <= self.hand.budget:
                    break
                del self.held[name]
        return missing / self.hand.load_rate


def simulate(
    groups: Sequence[Sequence[Hand]],
    requests: int,
    *,
    rate: float | None = None,
    every: float | None = None,
    backlog: int | None = None,
    limits: Limits | None = None,
    spread: float = 0.0,
    seed: int = 7,
) -> Outcome:
    """Run `requests` through the groups, each with a scheduler of its own; a request goes to the least loaded group.

    Arrivals: `rate` per second at random (Poisson), or one `every` so many seconds, or, with neither, a new one whenever
    fewer than `backlog` are unfinished. `spread`: stage times vary evenly by so much of themselves, up and down. Memory
    is bounded by the requests that wait. Raises ValueError for none or several of the ways to arrive.
    """
    if sum(way is not None for way in (rate, every, backlog)) != 1:
        raise ValueError("simulate: expected one of rate, every and backlog.")
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"simulate: expected a rate above 0, found {rate}.")
    collecting = gc.isenabled()
    gc.disable()  # nothing here is cyclic, and a full collection walks every waiting request
    try:
        return _Run(groups, limits, spread, seed).run(requests, rate, every, backlog)
    finally:
        if collecting:
            gc.enable()


class _Run:
    def __init__(self, groups: Sequence[Sequence[Hand]], limits: Limits | None, spread: float, seed: int) -> None:
        self.draw = random.Random(seed)
        self.spread = spread
        self.schedulers = []
        self.unfinished = [0] * len(groups)
        self.hands: list[dict[str, _Residency]] = []
        self.busy: dict[str, float] = {}
        for index, group in enumerate(groups):
            dits = sum(Stage.DENOISE in hand.seconds for hand in group)
            ahead = EngineConfig().look_ahead
            usual = Limits(max_in_flight=(ahead + 1) * dits + 1, max_waiting=1_000_000, look_ahead=ahead)
            scheduler = Scheduler(limits or usual)
            for hand in group:
                scheduler.handle(WorkerUp(hand.name, frozenset(hand.seconds), frozenset({WORKFLOW})))
                self.busy[hand.name] = 0.0
            self.schedulers.append(scheduler)
            self.hands.append({hand.name: _Residency(hand) for hand in group})
            self.unfinished[index] = 0

    def run(self, requests: int, rate: float | None, every: float | None, backlog: int | None) -> Outcome:
        due: list[tuple[float, int, int, Event]] = []
        began: dict[str, float] = {}
        clock, order, submitted, delivered, refused = 0.0, 0, 0, 0, 0
        latencies = _Histogram()
        quarter = (max(1, requests // 4), max(2, requests * 3 // 4))
        marks = [0.0, 0.0]
        arrivals = self._arrivals(rate, every)
        next_arrival = next(arrivals)
        push, pop, pick = heapq.heappush, heapq.heappop, self.draw.uniform
        handlers, busy = [scheduler.handle for scheduler in self.schedulers], self.busy
        while delivered + refused < requests:
            arrives = submitted < requests and (
                len(began) < backlog if backlog is not None else not due or next_arrival <= due[0][0]
            )
            if arrives:
                if backlog is None:
                    clock = next_arrival
                    next_arrival = next(arrivals)
                group = min(range(len(self.unfinished)), key=self.unfinished.__getitem__) if len(self.hands) > 1 else 0
                name = f"r{submitted}"
                event: Event = Submitted(name, WORKFLOW)
                began[name] = clock
                submitted += 1
                self.unfinished[group] += 1
            else:
                clock, _, group, event = pop(due)
            for command in handlers[group](event):
                if isinstance(command, RunStage):
                    residency = self.hands[group][command.worker]
                    seconds = residency.hand.seconds[command.stage]
                    if self.spread:
                        seconds *= pick(1 - self.spread, 1 + self.spread)
                    if residency.hand.needs:
                        seconds += residency.load(command.stage)
                    busy[command.worker] += seconds
                    order += 1
                    push(
                        due, (clock + seconds, order, group, StageDone(command.request, command.stage, command.worker))
                    )
                elif isinstance(command, Deliver):
                    delivered += 1
                    self.unfinished[group] -= 1
                    latencies.add(clock - began.pop(command.request))
                    if delivered == quarter[0]:
                        marks[0] = clock
                    if delivered == quarter[1]:
                        marks[1] = clock
                elif isinstance(command, Refuse):
                    refused += 1
                    self.unfinished[group] -= 1
                    del began[command.request]
        span = marks[1] - marks[0]
        return Outcome(
            films=delivered,
            refused=refused,
            seconds=clock,
            per_hour=(quarter[1] - quarter[0]) / span * 3600 if span > 0 else delivered / max(clock, 1e-9) * 3600,
            latency_mean=latencies.mean,
            latency_p50=latencies.percentile(0.5),
            latency_p95=latencies.percentile(0.95),
            latency_max=latencies.largest,
            latency_last=latencies.last,
            busy={name: seconds / max(clock, 1e-9) for name, seconds in self.busy.items()},
        )

    def _arrivals(self, rate: float | None, every: float | None) -> Iterator[float]:
        at = 0.0
        while True:
            yield at
            at += self.draw.expovariate(rate) if rate is not None else every or 0.0


class _Histogram:
    """Durations in buckets 1 % wide: percentiles of any number of them in a few kB."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.total = self.largest = self.last = 0.0

    def add(self, seconds: float) -> None:
        bucket = int(math.log(max(seconds, 1e-6)) // _BUCKET)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.count += 1
        self.total += seconds
        self.last = seconds
        self.largest = max(self.largest, seconds)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, share: float) -> float:
        wanted, seen = share * self.count, 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return min(self.largest, math.exp((bucket + 0.5) * _BUCKET))
        return 0.0
