"""The cluster panel: who holds what, how busy they are, and what waits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from html import escape

from prometheus_client.parser import text_string_to_metric_families

from splitreel.engine.backend import WorkerHealth
from splitreel.serve.jobs.service import JobService
from splitreel.serve.jobs.view import ServiceStats
from splitreel.serve.studio.shown import bar, seconds_in_words

_WINDOW = 60.0  # seconds that the busy share is of
_SHOWN_BYTES = 1000  # a scheduler or tokenizer holds no memory worth a word
_FRESH = 0.9  # however many pages are open, the figures are read about once a second


class Cluster:
    """Figures of the service and its workers, read for all pages at once. Belongs to one loop."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._busy: deque[tuple[float, Mapping[str, float]]] = deque()
        self._read_at = 0.0
        self.stats: ServiceStats | None = None

    async def read(self) -> ServiceStats:
        """How the service is now."""
        now = time.monotonic()
        if self.stats is None or now - self._read_at > _FRESH:
            self._read_at = now
            self.stats = await self._service.stats()
            self._busy.append((now, _busy_seconds(await self._service.metrics())))
            while now - self._busy[0][0] > _WINDOW:
                self._busy.popleft()
        return self.stats

    def share(self, worker: str) -> tuple[int, float] | None:
        """Percent of how many seconds, the last minute at most, in which the worker had a stage."""
        if len(self._busy) < 2:
            return None
        (began, before), (ended, after) = self._busy[0], self._busy[-1]
        if worker not in before or worker not in after:
            return None
        busy = max(0.0, after[worker] - before[worker])
        return min(100, round(100 * busy / (ended - began))), ended - began

    def _works(self, worker: str) -> bool:
        """Whether it was busy between the last two looks: its own word is some seconds old."""
        return len(self._busy) > 1 and self._busy[-1][1].get(worker, 0.0) > self._busy[-2][1].get(worker, 0.0)

    def panel(self, stats: ServiceStats) -> str:
        """The panel."""
        workers = "".join(_worker(item, self.share(item.worker), self._works(item.worker)) for item in stats.workers)
        queue = f"{stats.jobs.get('queued', 0)} queued · {stats.jobs.get('in_progress', 0)} in progress"
        if stats.seconds_per_film is not None:
            queue += f" · a film every {seconds_in_words(stats.seconds_per_film)}"
        return (
            f'<section class="sr-card"><div class="sr-head"><h2>Cluster</h2>{condition(stats)}</div>'
            f'<p class="sr-queue">{queue}</p><ul class="sr-workers">{workers}</ul></section>'
        )


def condition(stats: ServiceStats) -> str:
    """How the service is, and why if it takes no films."""
    detail = "" if stats.condition == "ready" else f' <span class="sr-faint">{escape(stats.detail)}</span>'
    return f'<span><span class="sr-badge {stats.condition}">{stats.condition}</span>{detail}</span>'


def _worker(worker: WorkerHealth, share: tuple[int, float] | None, works: bool) -> str:
    percent, seconds = share or (0, 0.0)
    words = "measuring" if share is None else f"{percent} % of the last {seconds_in_words(seconds)}"
    parts = "".join(
        f"<li>{escape(name)} <b>{_bytes(size)}</b></li>"
        for name, size in sorted(worker.components.items(), key=lambda item: -item[1])
        if size >= _SHOWN_BYTES
    )
    facts = [f"{worker.worker} on {worker.node}", worker.device, "working" if works else "idle"]
    if total := sum(worker.components.values()):
        facts.append(f"{_bytes(total)} resident")
    settings = [
        *(f"{name}: {words}" for name, words in worker.compile.items()),
        *(f"{name}: step cache {words}" for name, words in worker.step_cache.items()),
    ]
    return (
        f'<li class="sr-worker"><div class="sr-head"><h3>{escape(worker.role)}</h3>'
        f'<span class="sr-badge {escape(worker.state)}">{escape(worker.state)}</span></div>'
        f'<p class="sr-faint">{escape(" · ".join(facts))}</p>'
        f'<div class="sr-share"><span>busy</span>{bar(percent, f"{worker.worker} busy", words)}<span>{words}</span></div>'
        f"{''.join(f'<p class=sr-faint>{escape(text)}</p>' for text in settings)}"
        f"{parts and f'<ul class=sr-parts>{parts}</ul>'}</li>"
    )


def _bytes(count: int) -> str:
    for size, unit, digits in ((1e9, "GB", 1), (1e6, "MB", 0)):
        if count >= size:
            return f"{count / size:.{digits}f} {unit}"
    return f"{count / 1e3:.0f} kB"


def _busy_seconds(text: str) -> dict[str, float]:
    """By worker, from the session's figures."""
    return {
        sample.labels["worker"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "splitreel_worker_busy_seconds_total"
    }
