"""The machine under a node: memory and who may kill for it, swap, shared memory, and the disk that Ray spills to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import psutil

from splitreel.cluster.doctor.context import Context
from splitreel.cluster.doctor.finding import Check, Finding, ok, skip, warn
from splitreel.cluster.handshake import NEARLY_FULL

GB = 1_000_000_000
SHM = "/dev/shm"
# Ray's own defaults (2.60), which its workers inherit as environment variables where somebody changed them.
MONITOR_MS, THRESHOLD = "RAY_memory_monitor_refresh_ms", "RAY_memory_usage_threshold"
_MONITOR_DEFAULT, _THRESHOLD_DEFAULT = "250", "0.95"
_KILLERS = ("earlyoom", "systemd-oomd", "nohang", "oomd")
_MUCH_SWAPPED = 0.5  # of the swap space, and at least 1 GB


def unified(context: Context) -> Iterator[Finding]:
    """Whether GPU and CPU share memory, and how much of it there is."""
    memory = psutil.virtual_memory()
    shown = f"{memory.total / GB:.1f} GB in all, {memory.available / GB:.1f} free"
    if context.is_unified:
        how = "as was said" if context.unified else "as the device says"
        yield ok("memory.unified", f"GPU and CPU share memory ({how}): {shown}")
    else:
        yield ok("memory.unified", f"the machine's own memory: {shown}")


def monitor(context: Context) -> Iterator[Finding]:
    """Whether Ray kills workers when memory is nearly full, and would do so before anything has loaded."""
    if not context.session_folder:
        yield skip("memory.monitor", "no Ray here")
        return
    memory = psutil.virtual_memory()
    # Ray counts what is used the same way: total without available.
    yield monitor_verdict(
        refresh=os.environ.get(MONITOR_MS, _MONITOR_DEFAULT),
        threshold=float(os.environ.get(THRESHOLD, _THRESHOLD_DEFAULT)),
        used=1 - memory.available / memory.total,
        unified=context.is_unified,
    )


def monitor_verdict(*, refresh: str, threshold: float, used: float, unified: bool) -> Finding:
    """From Ray's settings and the part of memory that is in use."""
    if refresh.strip() == "0":
        return ok("memory.monitor", "Ray's memory monitor is off")
    on = f"Ray's memory monitor is on, and kills workers from {threshold:.0%} of memory on"
    if unified:
        return warn(
            "memory.monitor",
            f"{on}; weights in unified memory count as well, so it may kill a worker while it loads",
            f"Set {MONITOR_MS}=0 where Ray is started there (splitreel cluster commands --unified prints it), and start "
            "Ray anew.",
        )
    if used > threshold - 0.02:
        return warn(
            "memory.monitor",
            f"{on}; {used:.0%} are in use before anything has loaded",
            f"Free memory there, or raise {THRESHOLD} where Ray is started.",
        )
    return ok("memory.monitor", f"{on}; {used:.0%} are in use")


def killers(context: Context) -> Iterator[Finding]:
    """Programs that kill others when memory is short."""
    running = {process.info["name"] for process in psutil.process_iter(["name"])}
    found = [name for name in _KILLERS if name in running]
    if found and context.is_unified:
        yield warn(
            "memory.killer",
            f"{' and '.join(found)} runs, and may kill a worker while it loads",
            f"Let it leave Ray alone or stop it while you use the model: sudo systemctl stop {found[0]}.",
        )
    else:
        yield ok("memory.killer", f"{' and '.join(found)} runs" if found else f"none of {', '.join(_KILLERS)} runs")


def swap(context: Context) -> Iterator[Finding]:
    """Whether the machine is out of memory already."""
    found = psutil.swap_memory()
    shown = f"{found.used / GB:.1f} of {found.total / GB:.1f} GB in use" if found.total else "none"
    if found.total and found.used > max(GB, _MUCH_SWAPPED * found.total):
        yield warn("memory.swap", shown, "End what holds the memory there: a stage that swaps takes hours.")
    else:
        yield ok("memory.swap", shown)


def shared_memory(context: Context) -> Iterator[Finding]:
    """Whether /dev/shm can hold Ray's object store."""
    if not context.store_bytes:
        yield skip("shm.size", "no Ray here")
        return
    if not os.path.isdir(SHM):
        yield skip("shm.size", f"no {SHM} on this system")
        return
    total = shutil.disk_usage(SHM).total
    store = context.store_bytes
    shown = f"{SHM} has {_mib(total)}, Ray's object store {_mib(store)}"
    if total < store:
        yield warn(
            "shm.size",
            f"{shown}; Ray puts payloads on the disk instead, which is slow",
            f"Give the container more (docker run --shm-size={-(-store * 11 // 10 >> 30)}g), or Ray less "
            "(ray start --object-store-memory), and start Ray anew.",
        )
    else:
        yield ok("shm.size", shown)


def spill(context: Context) -> Iterator[Finding]:
    """How full the disk is to which Ray spills objects."""
    if not context.session_folder:
        yield skip("disk.spill", "no Ray here")
        return
    usage = shutil.disk_usage(context.session_folder)
    full = usage.used / (usage.used + usage.free)
    shown = f"the disk of {context.session_folder} is {full:.0%} full, {usage.free / GB:.1f} GB free"
    if full >= NEARLY_FULL:
        yield warn(
            "disk.spill",
            f"{shown}; from 95 % on Ray spills no more, and requests fail whose payloads do not fit into its store",
            "Free space there, or start Ray with --temp-dir elsewhere.",
        )
    else:
        yield ok("disk.spill", shown)


def _mib(size: int) -> str:
    return f"{size / 1024**2:.0f} MiB"


CHECKS: tuple[tuple[str, Check], ...] = (
    ("memory.monitor", monitor),
    ("memory.killer", killers),
    ("memory.swap", swap),
    ("shm.size", shared_memory),
    ("disk.spill", spill),
)
