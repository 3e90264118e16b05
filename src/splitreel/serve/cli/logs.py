"""How much is logged, to stderr."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Annotated

import typer

from splitreel.observe.logs import FORMAT, PlaceFilter

Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        metavar="",
        show_default=False,
        help="Log what happens; -vv for every detail and tracebacks.",
    ),
]
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _ToStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever `sys.stderr` is at the time, so that lines appear above a live display and not within it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def set_verbosity(verbose: int) -> None:
    """Set the level of the root logger: 0 warnings, 1 information, 2 and more everything. Never lowers it again."""
    root = logging.getLogger()
    if not any(isinstance(handler, _ToStderr) for handler in root.handlers):
        handler = _ToStderr()
        handler.addFilter(PlaceFilter())
        handler.setFormatter(logging.Formatter(FORMAT, "%H:%M:%S"))
        root.addHandler(handler)
        root.setLevel(logging.WARNING)
        if not sys.warnoptions:
            # Warnings of libraries are for developers: shown with -v, as log lines.
            logging.captureWarnings(True)
            logging.getLogger("py.warnings").addFilter(lambda record: root.isEnabledFor(logging.INFO))
            warnings.simplefilter("default")
    root.setLevel(min(root.level, _LEVELS[min(verbose, 2)]))
    # These speak of every file they open.
    for name in ("PIL", "asyncio", "urllib3", "filelock", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(max(root.level, logging.INFO))
