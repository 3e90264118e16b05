"""Ray's C++ log lines on stderr, kept off while Ray is asked something whose failure we explain ourselves.

Ray has no switch for them outside a connected process: RAY_BACKEND_LOG_LEVEL is read when it connects, and the client that
only asks a head writes `[... W ...] gcs_client.cc:210: Failed to get cluster ID` to file descriptor 2 at any level.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import BinaryIO

_LINE = re.compile(rb"\[\d{4}-\d\d-\d\d [\d:,]+ [A-Z] \d+ \d+\] (\(\w+\) )?\w+\.(cc|h):\d+: ")
_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def without_ray_lines() -> Iterator[None]:
    """Within the block what is written to file descriptor 2 is set aside; then all but Ray's own lines is written there.

    For the whole process, so for short waits only; what other threads write meanwhile comes later, and is not lost.
    """
    with _one_at_a_time, _aside() as aside:
        _flush()
        try:
            stderr = os.dup(2)
        except OSError:  # closed: nobody reads it
            yield
            return
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(stderr, 2)
            aside.seek(0)
            for line in aside:
                if not _LINE.match(line):
                    os.write(stderr, line)
            os.close(stderr)


def _aside() -> BinaryIO:
    """A file without a name; in memory where there is such a thing, since the disk may be full."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("splitreel-stderr"), "w+b")
    return tempfile.TemporaryFile()


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
