"""Pictures of films: on threads of their own, as each takes the decoding of most of a film, and each made once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from splitreel.serve.jobs.folder import JobFolder

_THREADS = 2


class Previews:
    """Makes thumbnails and sprite sheets when they are first asked for. Belongs to one loop."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        # Not the ledger's: a page of thumbnails would keep leases from being renewed.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="splitreel-previews")
        self._made: dict[tuple[str, str], asyncio.Future[Path]] = {}

    async def get(self, job_id: str, film: str, variant: str) -> Path:
        """The picture's file; those who ask meanwhile wait for the same. Raises FileNotFoundError."""
        key = job_id, variant
        if key not in self._made:
            loop = asyncio.get_running_loop()
            self._made[key] = loop.run_in_executor(self._threads, self._folder.preview, job_id, film, variant)
            self._made[key].add_done_callback(lambda _: self._made.pop(key))
        # Whoever stops waiting takes it from nobody else.
        return await asyncio.shield(self._made[key])

    def close(self) -> None:
        """Give up what has not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)
