"""Payload memory that stays in its worker until the next one reads it: Ray Direct Transport over NIXL.

What crosses Ray is a `Kept`: the header and a reference. The bytes lie in one buffer of the producer's host memory, and the
receiver's NIXL agent (UCX: RDMA where there is some, else TCP) reads them from there without the producer's doing. The
buffer lives as long as the driver holds the payload, and dies with the producer's process; the receiver gets
OwnerDiedError then, and both sides live on.

The transport is alpha in Ray 2.60. Only `ray.put` and `ray.get` are used, since references in positional arguments make
Ray kill the receiver when the producer has died.
"""

from __future__ import annotations

import importlib.metadata
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError

from splitreel.errors import WorkerNotReady
from splitreel.wire import Packed

REMEDY = (
    'Install it there, on every node (pip install "splitreel[nixl]"), or set cluster.transport: object_store, which needs '
    "nothing more."
)

# Each tensor of a payload begins at a multiple of this, so that it can be read as any dtype.
_ALIGNED = 64
# How often a transfer that waits is asked whether its request was cancelled.
_GLANCE = 0.25
# NIXL's agent is used by one transfer at a time: stages have one thread, but the probe's calls come from several.
_AGENT = threading.Lock()


@dataclass(frozen=True)
class Kept:
    """A payload whose bytes are with its producer. `sizes`: bytes of each buffer; `memory`: of all of them, None for none."""

    header: bytes
    sizes: tuple[int, ...]
    memory: Any

    @property
    def num_bytes(self) -> int:
        """Serialised bytes, as of `Packed`."""
        return len(self.header) + sum(self.sizes)


def open_agent(worker: str) -> str:
    """Make this process able to send and receive; NIXL's version. Raises WorkerNotReady with the cause and the remedy."""
    try:
        from ray.experimental.rdt.util import get_tensor_transport_manager

        get_tensor_transport_manager("NIXL").get_nixl_agent()  # type: ignore[attr-defined]
        return _version()
    except Exception as error:
        raise WorkerNotReady(
            f"cluster.transport: expected nixl to work in worker {worker} ({sys.executable}), found "
            f"{type(error).__name__}: {error}. {REMEDY}"
        ) from error


def try_agent() -> str:
    """Import NIXL and make an agent that is dropped again; its version. Raises whatever goes wrong."""
    from nixl._api import nixl_agent, nixl_agent_config

    nixl_agent("splitreel-doctor", nixl_agent_config(backends=["UCX"]))
    return _version()


def _version() -> str:
    return importlib.metadata.version("nixl")


def keep(packed: Packed) -> Kept:
    """Copy the payload into memory that others may read. The copy is as large as the one that Ray's store would take."""
    sizes = tuple(buffer.nbytes for buffer in packed.buffers)
    if not sum(sizes):
        return Kept(packed.header, sizes, None)
    places = list(_places(sizes))
    whole = torch.empty(places[-1] + sizes[-1], dtype=torch.uint8)
    array = whole.numpy()
    for place, buffer in zip(places, packed.buffers, strict=True):
        array[place : place + buffer.nbytes] = buffer.reshape(-1)
    with _AGENT:
        # A list: Ray looks for tensors inside of what it is given.
        return Kept(packed.header, sizes, ray.put([whole], _tensor_transport="nixl"))


def read(kept: Kept, *, timeout: float, check: Callable[[], None]) -> Packed:
    """Fetch the bytes into this process's memory; read-only, since within one process they are the producer's own.

    Ends after `timeout` seconds, or Ray's limit (RAY_rdt_fetch_fail_timeout_milliseconds, 60 s) if that is less. Raises
    what `check` raises, which ends the transfer, and Ray's GetTimeoutError, ObjectLostError (the producer died) or
    RayDirectTransportError.
    """
    if kept.memory is None:
        return Packed(kept.header, tuple(np.empty(0, np.uint8) for _ in kept.sizes))
    with _AGENT, _abort_when_cancelled(kept.memory, check):
        try:
            (whole,) = ray.get(kept.memory, timeout=timeout)
        except RayError:
            check()
            raise
    array = whole.numpy()
    array.flags.writeable = False
    places = _places(kept.sizes)
    return Packed(
        kept.header, tuple(array[place : place + size] for place, size in zip(places, kept.sizes, strict=True))
    )


def _places(sizes: tuple[int, ...]) -> Iterator[int]:
    place = 0
    for size in sizes:
        yield place
        place += -(-size // _ALIGNED) * _ALIGNED


@contextmanager
def _abort_when_cancelled(memory: Any, check: Callable[[], None]) -> Iterator[None]:
    """While the transfer blocks this thread, another asks `check`; Ray's wait looks for aborts every millisecond."""
    from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata
    from ray.experimental.rdt.util import get_tensor_transport_manager

    manager = get_tensor_transport_manager("NIXL")
    done = threading.Event()

    def look() -> None:
        while not done.wait(_GLANCE):
            try:
                check()
            except Exception:
                manager.abort_transport(memory.hex(), CommunicatorMetadata())
                return

    watcher = threading.Thread(target=look, name="splitreel-transfer", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
