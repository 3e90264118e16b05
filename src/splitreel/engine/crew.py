"""The workers that the scheduler knows: who is up, who is idle, who can serve what."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from splitreel.request import Stage

if TYPE_CHECKING:
    from splitreel.engine.tickets import Ticket


class Kind:
    """The workers that hold the same stages for the same workflows; a deployment has a few kinds, not many."""

    __slots__ = ("idle", "known", "pools", "stages", "up", "workflows")

    def __init__(self, stages: frozenset[Stage], workflows: frozenset[str]) -> None:
        self.stages = stages
        self.workflows = workflows
        self.idle: deque[Worker] = deque()  # longest idle first
        self.up = 0
        self.known = 0  # up or returning
        self.pools: tuple[Pool, ...] = ()  # those that it is part of


class Pool:
    """The denoise workers that serve some workflow, and how many more requests may be encoded for them."""

    __slots__ = ("kinds", "room")

    def __init__(self, kinds: frozenset[Kind]) -> None:
        self.kinds = kinds
        self.room = 0  # the look-ahead of each worker up, one more for each idle one, less those encoding or encoded


class Worker:
    """One worker, up or returning, and what it runs, or the request and the attempt that it helps with."""

    __slots__ = ("helps", "kind", "name", "role", "running", "up")

    def __init__(self, name: str, kind: Kind) -> None:
        self.name = name
        self.role = ""
        self.helps: tuple[str, int] | None = None
        self.kind = kind
        self.up = False
        self.running: Ticket | None = None

    def describe(self) -> dict[str, Any]:
        """The worker as plain data."""
        return {
            "up": self.up,
            "stages": [str(stage) for stage in Stage if stage in self.kind.stages],
            "workflows": sorted(self.kind.workflows),
            "running": self.running.request if self.running else None,
            "helps": self.helps[0] if self.helps else None,
        }


class Crew:
    """Workers by kind. Looking up who can serve costs O(kinds), never O(workers)."""

    def __init__(self, look_ahead: int) -> None:
        """`look_ahead`: requests that may be encoding or encoded for each denoise worker that is busy."""
        self._each = look_ahead
        self.workers: dict[str, Worker] = {}
        self._kinds: dict[tuple[frozenset[Stage], frozenset[str]], Kind] = {}
        self._serving: dict[Stage, dict[str, tuple[Kind, ...]]] = {stage: {} for stage in Stage}
        self._holding: dict[Stage, tuple[Kind, ...]] = dict.fromkeys(Stage, ())
        self._ahead: dict[str, int] = {}  # requests encoding or encoded that do not denoise yet, by workflow
        self._pools: dict[str, tuple[Pool, ...]] = {}  # by workflow: its own pool and those that contain it

    # who can serve ----------------------------------------------------------------------------------------------------

    def serves(self, stage: Stage, workflow: str) -> bool:
        """Whether some worker, up or returning, serves the stage for the workflow."""
        return workflow in self._serving[stage]

    def any_idle(self, stage: Stage) -> bool:
        """Whether any worker that holds the stage is idle."""
        for kind in self._holding[stage]:  # noqa: SIM110 - all() and any() take twice as long as a loop
            if kind.idle:
                return True
        return False

    def idle_for(self, stage: Stage, workflow: str) -> Worker | None:
        """An idle worker for the stage: of those that can do least else, the one longest idle."""
        for kind in self._serving[stage].get(workflow, ()):
            if kind.idle:
                return kind.idle[0]
        return None

    def may_look_ahead(self, workflow: str) -> bool:
        """Whether one more request of the workflow may be encoded before a denoise worker is free for it.

        The requests that look ahead to the same denoise workers must be fewer than these workers have room for: the
        look-ahead of each, and one more for each idle one. A pool inside a larger pool must leave room in both.
        """
        for pool in self._pools[workflow]:  # noqa: SIM110
            if pool.room <= 0:
                return False
        return True

    def look_ahead(self, workflow: str, change: int) -> None:
        """So many more requests of the workflow, or fewer, are encoding or encoded and do not denoise yet."""
        self._ahead[workflow] = self._ahead.get(workflow, 0) + change
        for pool in self._pools.get(workflow, ()):
            pool.room -= change

    # coming and going -------------------------------------------------------------------------------------------------

    def come_up(self, name: str, stages: frozenset[Stage], workflows: frozenset[str], role: str = "") -> None:
        """Make the worker idle, known or not; it must not be up."""
        worker = self.workers.get(name)
        if worker is not None and (worker.kind.stages, worker.kind.workflows) != (stages, workflows):
            self.forget(worker)  # it returned as something else
            worker = None
        if worker is None:
            kind = self._kinds.get((stages, workflows))
            if kind is None:
                kind = self._kinds[stages, workflows] = Kind(stages, workflows)
                self._index()
            worker = self.workers[name] = Worker(name, kind)
            kind.known += 1
        worker.up, worker.role = True, role
        worker.kind.up += 1
        worker.kind.idle.append(worker)
        for pool in worker.kind.pools:
            pool.room += self._each + 1

    def go_down(self, worker: Worker) -> Ticket | None:
        """Take it out of service, and return what it ran."""
        ticket = worker.running
        if worker.up:
            worker.up = False
            worker.kind.up -= 1
            busy = ticket is not None or worker.helps is not None
            if not busy:
                worker.kind.idle.remove(worker)
            for pool in worker.kind.pools:
                pool.room -= self._each if busy else self._each + 1
        worker.running = worker.helps = None
        return ticket

    def forget(self, worker: Worker) -> None:
        """It is gone for good; it must be down."""
        del self.workers[worker.name]
        worker.kind.known -= 1
        if not worker.kind.known:
            del self._kinds[worker.kind.stages, worker.kind.workflows]
            self._index()

    def take(self, worker: Worker, ticket: Ticket) -> None:
        """The worker, the first of its idle kind, starts on the request."""
        worker.kind.idle.popleft()
        worker.running = ticket
        for pool in worker.kind.pools:
            pool.room -= 1

    def lend(self, worker: Worker, attempt: int, most: int) -> tuple[str, ...]:
        """Let up to `most` idle workers of the same role help with what the worker runs."""
        assert worker.running is not None
        helpers = [other for other in worker.kind.idle if other.role == worker.role][:most]
        for helper in helpers:
            worker.kind.idle.remove(helper)
            helper.helps = (worker.running.request, attempt)
            for pool in worker.kind.pools:
                pool.room -= 1
        return tuple(helper.name for helper in helpers)

    def free(self, worker: Worker) -> None:
        """The worker's run is over, or its help."""
        worker.running = worker.helps = None
        worker.kind.idle.append(worker)
        for pool in worker.kind.pools:
            pool.room += 1

    def _index(self) -> None:
        """Work out anew who serves what; only when a kind of worker appears or disappears."""
        by_skill = sorted(
            self._kinds.values(),
            key=lambda kind: (len(kind.stages), len(kind.workflows), sorted(kind.stages), sorted(kind.workflows)),
        )
        for stage in Stage:
            holding = self._holding[stage] = tuple(kind for kind in by_skill if stage in kind.stages)
            workflows = sorted({workflow for kind in holding for workflow in kind.workflows})
            self._serving[stage] = {
                workflow: tuple(kind for kind in holding if workflow in kind.workflows) for workflow in workflows
            }
        self._index_pools()

    def _index_pools(self) -> None:
        own = {workflow: frozenset(kinds) for workflow, kinds in self._serving[Stage.DENOISE].items()}
        pools = [Pool(kinds) for kinds in dict.fromkeys(own.values())]
        self._pools = {
            workflow: tuple(pool for pool in pools if kinds <= pool.kinds) for workflow, kinds in own.items()
        }
        for kind in self._kinds.values():
            kind.pools = tuple(pool for pool in pools if kind in pool.kinds)
        for pool in pools:
            pool.room = sum(self._each * kind.up + len(kind.idle) for kind in pool.kinds)
        for workflow, reaching in self._pools.items():
            for pool in reaching:
                pool.room -= self._ahead.get(workflow, 0)
