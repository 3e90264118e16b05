"""What is under way, on stderr: live rows on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from splitreel.observe.progress import LoadProgress, Progress
from splitreel.request import Stage
from splitreel.serve.cli.report import duration

if TYPE_CHECKING:
    import rich.progress

# A stage's steps are shown at most this often where each one is a line of its own.
_LINE_INTERVAL_S = 2.0


class Display(Protocol):
    """Called from the main thread, `on_load` and `on_progress` from the engine's."""

    def say(self, text: str) -> None:
        """What is being waited for now."""
        ...

    def on_load(self, progress: LoadProgress) -> None:
        """A worker loaded one more component."""
        ...

    def loaded(self) -> None:
        """All workers are ready."""
        ...

    def on_progress(self, progress: Progress) -> None:
        """A stage got further."""
        ...

    def ended(self, request_id: str) -> None:
        """A request has ended, well or not."""
        ...


def make_display(names: Mapping[str, str]) -> AbstractContextManager[Display]:
    """The display that suits stderr. `names`: what to call each request, by its id."""
    if sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb"):
        return _live(names)
    return _plain(names)


@contextmanager
def _plain(names: Mapping[str, str]) -> Iterator[Display]:
    yield PlainDisplay(names)


@contextmanager
def _live(names: Mapping[str, str]) -> Iterator[Display]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Rows

    rows = Rows(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[doing]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=8,
        # Results go above the rows when both are on the terminal; a stdout that goes elsewhere is left alone.
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=True,
    )
    with rows:
        yield LiveDisplay(rows, names)


class PlainDisplay:
    """One line per change of stage, and one per two seconds of steps; no control characters."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._shown: dict[str, tuple[str, float]] = {}

    def say(self, text: str) -> None:
        print(f"{text} ...", file=sys.stderr, flush=True)

    def on_load(self, progress: LoadProgress) -> None:
        print(f"{_loading(progress)} in {duration(progress.seconds)}", file=sys.stderr, flush=True)

    def loaded(self) -> None:
        pass

    def on_progress(self, progress: Progress) -> None:
        stage, at = self._shown.get(progress.request_id, ("", 0.0))
        now = time.monotonic()
        if progress.stage == stage and now - at < _LINE_INTERVAL_S:
            return
        self._shown[progress.request_id] = (progress.stage, now)
        doing, left = _doing(progress)
        parts = [doing, f"{duration(progress.seconds)} so far" if progress.done else "", left]
        print(f"{self._names[progress.request_id]}: {', '.join(filter(None, parts))}", file=sys.stderr, flush=True)

    def ended(self, request_id: str) -> None:
        self._shown.pop(request_id, None)


class LiveDisplay:
    """One row for what is waited for, one per worker that loads, one per request under way."""

    def __init__(self, rows: rich.progress.Progress, names: Mapping[str, str]) -> None:
        self._rows = rows
        self._names = names
        self._waiting = rows.add_task("", total=None, doing="", left="")
        self._tasks: dict[str, rich.progress.TaskID] = {}
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        self._rows.reset(self._waiting, description=text, total=None, doing="", left="", visible=True)

    def on_load(self, progress: LoadProgress) -> None:
        self._row(
            progress.worker,
            f"loading {progress.worker} on {progress.node}",
            progress.done,
            progress.total,
            progress.component,
            "",
        )

    def loaded(self) -> None:
        with self._lock:
            for task in self._tasks.values():
                self._rows.remove_task(task)
            self._tasks.clear()

    def on_progress(self, progress: Progress) -> None:
        doing, left = _doing(progress)
        name = self._names[progress.request_id]
        self._rows.update(self._waiting, visible=False)
        self._row(progress.request_id, name, progress.done, progress.total, doing, left)

    def ended(self, request_id: str) -> None:
        with self._lock:
            task = self._tasks.pop(request_id, None)
            if task is not None:
                self._rows.remove_task(task)

    def _row(self, key: str, description: str, done: int, total: int, doing: str, left: str) -> None:
        with self._lock:
            if key not in self._tasks:
                self._tasks[key] = self._rows.add_task(description, doing="", left="")
            self._rows.update(self._tasks[key], completed=done, total=total, doing=doing, left=left)


def _loading(progress: LoadProgress) -> str:
    size = f", {progress.num_bytes / 1e9:.1f} GB" if progress.num_bytes >= 5e7 else ""
    return (
        f"{progress.worker} on {progress.node}: loaded {progress.component} ({progress.done} of {progress.total}{size})"
    )


def _doing(progress: Progress) -> tuple[str, str]:
    """What a request is doing and how much of the stage is left, for example `denoise, step 2 of 4`, `about 3 s left`."""
    if progress.done >= progress.total:
        following = Stage(progress.stage).following
        return f"{progress.stage} done", f"{following} is next" if following else ""
    left = f"about {duration(progress.eta)} left" if progress.eta is not None and progress.eta >= 0.5 else ""
    return f"{progress.stage}, {progress.unit} {progress.done} of {progress.total}", left
