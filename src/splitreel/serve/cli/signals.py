"""Ctrl-C and SIGTERM: the first ends the work in order, the second at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Interrupted(BaseException):
    """A signal asked to end. No KeyboardInterrupt, so that no library on the way takes it for its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        self.line = f"{_WORDS[signal.Signals(number)]}."


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM raise Interrupted in the main thread once, and a second one ends the process."""

    def first(number: int, frame: FrameType | None) -> None:
        for each in taken:
            signal.signal(each, second)
        raise Interrupted(number)

    def second(number: int, frame: FrameType | None) -> None:
        os.write(sys.stderr.fileno(), b"ended at once, without waiting for workers to stop.\n")
        os._exit(128 + number)

    # A signal that whoever started us chose to ignore (nohup, a shell's background job) stays ignored.
    taken = {number: signal.getsignal(number) for number in _WORDS if signal.getsignal(number) != signal.SIG_IGN}
    for number in taken:
        signal.signal(number, first)
    try:
        yield
    finally:
        for number, handler in taken.items():
            if signal.getsignal(number) is first:
                signal.signal(number, handler)


def retake() -> None:
    """Put our handlers back on top: Ray installs one beneath Python's that prints a stack on SIGTERM."""
    for number in _WORDS:
        if callable(handler := signal.getsignal(number)):
            signal.signal(number, handler)
