"""Waking those who follow a job. Belongs to one loop; what happens on another server is found by asking the database."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Bell:
    """Rings for one job at a time."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def ring(self, job_id: str) -> None:
        """Something about the job changed."""
        for event in self._listeners.get(job_id, ()):
            event.set()

    def ring_all(self) -> None:
        """The service itself changed: whoever follows anything looks again."""
        for job_id in list(self._listeners):
            self.ring(job_id)

    @contextmanager
    def listen(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever the job changes; clear it before looking."""
        event = asyncio.Event()
        self._listeners[job_id].add(event)
        try:
            yield event
        finally:
            self._listeners[job_id].discard(event)
            if not self._listeners[job_id]:
                del self._listeners[job_id]


async def rung_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set within so many seconds."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
