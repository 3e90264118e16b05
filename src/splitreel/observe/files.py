"""The trace file: one JSON object per span and line, in the order in which the spans ended."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from splitreel.errors import ConfigError
from splitreel.observe.spans import SpanRecord
from splitreel.words import plainly


class TraceFile:
    """A sink. The file is opened for each batch, so it is whole at any moment and may be moved away."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Begin the file anew. Raises ConfigError when it cannot be written."""
        self._path = Path(path).expanduser()
        self._lock = threading.Lock()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"trace.file: expected a file that can be written at {self._path}, found "
                f"{plainly(error, self._path)}. Choose another."
            ) from error

    def write(self, spans: Sequence[SpanRecord]) -> None:
        """Append the spans. Raises OSError."""
        lines = "".join(json.dumps(span.to_dict(), default=str) + "\n" for span in spans)
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(lines)

    def close(self) -> None:
        """Nothing is open between batches."""


def read_spans(path: str | os.PathLike[str]) -> list[SpanRecord]:
    """The spans of a trace file. A last line that was cut short is left out. Raises ConfigError for any other file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: expected a readable trace file, found {plainly(error, path)}. Name what trace.file wrote."
        ) from error
    return list(_parsed(lines, str(path)))


def _parsed(lines: Sequence[str], path: str) -> Iterable[SpanRecord]:
    for number, line in enumerate(lines, 1):
        try:
            yield SpanRecord.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines) and number > 1:
                return
            found = "another object" if isinstance(error, TypeError | AttributeError) else plainly(error)
            raise ConfigError(
                f"{path} line {number}: expected a span as JSON, found {found}. Name what trace.file wrote."
            ) from None
