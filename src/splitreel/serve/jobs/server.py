"""Who holds a lease: a name for this server that others on the same machine can tell the end of."""

from __future__ import annotations

import os
import secrets
import socket

import psutil


def server_name() -> str:
    """Machine, process and start of this server: `host/namespace|pid|started|nonce`."""
    process = psutil.Process()
    return f"{_machine()}|{process.pid}|{process.create_time():.2f}|{secrets.token_hex(4)}"


def has_ended(name: str) -> bool:
    """Whether the server of that name is known to be gone. Of one on another machine nothing is known: False."""
    try:
        machine, pid, started, _ = name.split("|")
        if machine != _machine():
            return False
        process = psutil.Process(int(pid))
        is_another = abs(process.create_time() - float(started)) > 1.0
        return is_another or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except (ValueError, psutil.Error):
        return False


def _machine() -> str:
    """Host name and pid namespace: two containers may share a name, and number their processes alike."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}/{namespace}"
