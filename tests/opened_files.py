"""Which files below some folders are opened, by whichever process: Linux's inotify through the C library."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_OPEN, IN_ISDIR, IN_NONBLOCK = 0x20, 0x40000000, os.O_NONBLOCK


@contextmanager
def watching(root: Path) -> Iterator[set[str]]:
    """Within the block; afterwards the set holds the paths, relative to `root`, of all files that were opened."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(IN_NONBLOCK)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    opened: set[str] = set()
    try:
        folders = {
            libc.inotify_add_watch(descriptor, str(folder).encode(), IN_OPEN): folder
            for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]
        }
        yield opened
        while True:
            try:
                events = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                break
            while events:
                watch, mask, _, length = struct.unpack_from("iIII", events)
                name = events[16 : 16 + length].rstrip(b"\0").decode()
                events = events[16 + length :]
                if name and not mask & IN_ISDIR:
                    opened.add(str((folders[watch] / name).relative_to(root)))
    finally:
        os.close(descriptor)
