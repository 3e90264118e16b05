"""Who holds a lease: a name for this server that others on the same machine can tell the end of."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def server_name() -> str:
    """Machine, process and start of this server: `host/namespace/boot|pid|started|nonce`."""
    return f"{_machine()}|{os.getpid()}|{_started(os.getpid())}|{secrets.token_hex(4)}"


def has_ended(name: str) -> bool:
    """Whether the server of that name is known to be gone. Of one on another machine nothing is known: False."""
    try:
        machine, pid, started, _ = name.split("|")
        return machine == _machine() and _started(int(pid)) != started
    except (psutil.NoSuchProcess, ProcessLookupError):
        return True
    except (ValueError, OSError, psutil.Error):
        return False


def _started(pid: int) -> str:
    """When a process began, in ticks since the machine did; "" of one that has ended and waits to be asked how.

    Of Linux's own figures: a time of day would move with every step of the wall clock, and with it all that run.
    Raises ProcessLookupError, psutil.NoSuchProcess.
    """
    if not psutil.LINUX:
        return f"{psutil.Process(pid).create_time():.2f}"
    try:
        content = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except FileNotFoundError:
        os.kill(pid, 0)  # another user's may be hidden from /proc: that is no sign of its end
        raise
    fields = content.rpartition(")")[
        2
    ].split()  # from the third on: the second is the program's name, whatever is in it
    return "" if fields[0] in ("Z", "X") else fields[19]


def _machine() -> str:
    """Host name, pid namespace and boot.

    Two containers may share a name and number their processes alike; the first namespace has the same number on every
    machine, and two machines may share a name.
    """
    try:
        return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}/{_BOOT.read_text().strip()}"
    except OSError:
        return socket.gethostname()
