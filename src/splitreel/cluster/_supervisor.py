"""The process that owns an embedded cluster's raylets, so that they never outlive the program that started them.

Run as a file by `splitreel.cluster.embedded`, with the standard library only: it must start in milliseconds and need no
import path. It leads a session of its own (a terminal's Ctrl-C does not reach the raylets), adopts every orphan below
it (Linux), and ends the cluster when its standard input closes or its parent dies, whichever it sees first: a forked
sibling may hold the pipe open, and only Linux offers a file descriptor of a process.

Standard input, one JSON object a line:
    {"op": "start", "node": 0, "argv": [...], "env": {...}}    run one `ray start --block`
    {"op": "kill", "node": 0}                                  SIGKILL its whole process tree, as a power cut would
    end of file                                                stop everything, remove the directory, exit
Standard output, likewise:
    {"event": "line", "node": 0, "text": "..."}                what `ray start` printed
    {"event": "exit", "node": 0, "code": 1}                    it ended

Arguments: the directory to remove at the end, and the process id of the parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

GRACE_S = 4.0  # two idle raylets end in 0.8 to 1.8 s after SIGTERM on two cores
SWEEP_S = 3.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINUX = sys.platform.startswith("linux")


def main(directory: str, parent: int) -> None:
    """Serve commands until the parent is gone or says so; then leave nothing behind."""
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    nodes = Nodes()
    commands = Lines(0)
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ, "command")
        selector.register(nodes.signals, selectors.EVENT_READ, "signal")
        if LINUX and hasattr(os, "pidfd_open"):
            try:
                selector.register(os.pidfd_open(parent), selectors.EVENT_READ, "parent")
            except ProcessLookupError:
                ended = True
        while not ended:
            for key, _ in selector.select():
                if key.data == "command":
                    for line in commands.read():
                        nodes.obey(json.loads(line), selector)
                    ended = ended or commands.closed
                elif key.data == "signal":
                    os.read(nodes.signals, 4096)
                    nodes.reap()
                elif key.data == "parent":
                    ended = True
                else:
                    nodes.relay(key.data, selector)
    nodes.stop()
    shutil.rmtree(directory, ignore_errors=True)


class Lines:
    """Whole lines from a file descriptor, as they come."""

    def __init__(self, fd: int) -> None:
        self.fd, self.closed, self._rest = fd, False, b""

    def read(self) -> list[str]:
        """The lines that one read completed; sets `closed` at end of file."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        self.closed = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


class Nodes:
    """The `ray start` processes by node number, and everything below them."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._output: dict[int, Lines] = {}
        self.signals, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def obey(self, command: dict[str, Any], selector: selectors.BaseSelector) -> None:
        node = command["node"]
        if command["op"] == "kill":
            pid = self._processes[node].pid
            kill([pid, *descendants(pid)])
            return
        process = subprocess.Popen(
            command["argv"],
            env=command["env"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent if LINUX else None,
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)  # daemons below may hold it open after `ray start` ended
        self._processes[node] = process
        self._output[node] = Lines(process.stdout.fileno())
        selector.register(process.stdout, selectors.EVENT_READ, node)

    def relay(self, node: int, selector: selectors.BaseSelector) -> None:
        output = self._output[node]
        for text in output.read():
            tell({"event": "line", "node": node, "text": text})
        if output.closed:
            selector.unregister(output.fd)

    def reap(self) -> None:
        """Collect the dead: our own children through their Popen, adopted orphans directly."""
        ours = {process.pid: node for node, process in self._processes.items()}
        for pid in exited():
            if pid not in ours:
                os.waitpid(pid, 0)
                continue
            node = ours[pid]
            code = self._processes[node].wait()
            for text in self._output[node].read():
                tell({"event": "line", "node": node, "text": text})
            tell({"event": "exit", "node": node, "code": code})

    def stop(self) -> None:
        """End all nodes: politely first, since a raylet ends its workers in order; then whatever is left."""
        signal.set_wakeup_fd(-1)
        for process in self._processes.values():
            process.terminate()  # does nothing to one that was reaped
        deadline = time.monotonic() + GRACE_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
        deadline = time.monotonic() + SWEEP_S
        while (rest := descendants(os.getpid())) and time.monotonic() < deadline:
            kill(rest)
            for pid in exited():
                os.waitpid(pid, 0)
            time.sleep(0.01)  # the kernel has no event for "a grandchild was handed to me"


def exited() -> Iterator[int]:
    """Ids of children that ended and were not collected yet; the caller collects each before the next."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        yield found.si_pid


def descendants(root: int) -> list[int]:
    """Ids of all live processes below `root`, deepest last. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                # The command's name stands in parentheses and may hold blanks and parentheses.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z" or int(parent) == root:
            children.setdefault(int(parent), []).append(int(entry))
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def die_with_parent() -> None:
    """In the child, before exec: should the supervisor itself be killed, so is `ray start`, and with it Ray's daemons.

    Ray's light agent processes then still try for a minute to tell the dead head. SIGTERM instead is no better: Ray
    waits up to 30 s for busy workers.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def tell(event: dict[str, Any]) -> None:
    """Report to the parent, who may be gone."""
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except OSError:
        return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
