"""What a worker reports while it works, numbered, so that the driver gets each event once whichever way it comes.

Events come by a standing `watch` call, at most one answer every 50 ms: a call for each step of stages that take
milliseconds cost more than the stages. What no watcher has taken when a stage ends comes with the stage's reply.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from splitreel.observe.progress import LoadProgress, Progress

Entry = tuple[int, Progress | LoadProgress]

_APART = 0.05


@dataclass
class Journal:
    """The worker's side. Bounded: a watcher that stays away loses the oldest."""

    entries: deque[Entry] = field(default_factory=lambda: deque(maxlen=10_000))
    changed: threading.Condition = field(default_factory=threading.Condition)
    count: int = 0
    _taken: int = 0
    _answered: float = 0.0

    def add(self, event: Progress | LoadProgress) -> None:
        """Write an event down."""
        with self.changed:
            self.count += 1
            self.entries.append((self.count, event))
            self.changed.notify_all()

    def since(self, seen: int, timeout: float) -> list[Entry]:
        """Wait for events after number `seen`, `timeout` seconds at most, and for the answer before to be 50 ms ago."""
        with self.changed:
            if self.changed.wait_for(lambda: self.count > seen, timeout):
                # `wait` lets go of the lock; what comes meanwhile comes along.
                until = self._answered + _APART
                self.changed.wait_for(lambda: time.monotonic() >= until, max(0.0, until - time.monotonic()))
            self._answered, self._taken = time.monotonic(), self.count
            return [entry for entry in self.entries if entry[0] > seen]

    def untaken(self) -> tuple[Entry, ...]:
        """The events that no answer has had yet."""
        with self.changed:
            return tuple(entry for entry in self.entries if entry[0] > self._taken)


@dataclass
class Reader:
    """The driver's side: passes each event on once, in order."""

    seen: int = 0

    def new(self, entries: Iterable[Entry]) -> Iterator[Progress | LoadProgress]:
        """The events among these that have not been passed on."""
        for number, event in entries:
            if number > self.seen:
                self.seen = number
                yield event
