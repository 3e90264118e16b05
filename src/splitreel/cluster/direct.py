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
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray._private import ray_constants
from ray.exceptions import GetTimeoutError

from splitreel.engine.backend import PayloadGone
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
_NEVER = 1e9
_READING = threading.Lock()


class TransferStuck(PayloadGone):
    """An earlier transfer of this process waits for ever: nothing can be received here any more."""


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

        manager: Any = get_tensor_transport_manager("NIXL")
        backend = manager.select_backend()
        # Ray's own agent takes no locks, though Ray frees memory in one thread while another receives.
        agent = _agent(ray.get_runtime_context().get_actor_id() or worker, backend)
        manager._nixl_agent, manager._backend = agent, backend
        if manager.get_nixl_agent() is not agent:
            raise RuntimeError(f"Ray {ray.__version__} makes its NIXL agent in another way")
        # Ray would free memory that is still written to when this has passed; `read` has its own deadline.
        ray_constants.RDT_FETCH_FAIL_TIMEOUT_SECONDS = _NEVER
        return importlib.metadata.version("nixl")
    except Exception as error:
        raise WorkerNotReady(
            f"cluster.transport: expected nixl to work in worker {worker} ({sys.executable}), found "
            f"{type(error).__name__}: {error}. {REMEDY}"
        ) from error


def try_agent() -> str:
    """Import NIXL and make an agent that is dropped again; its version. Raises whatever goes wrong."""
    _agent("splitreel-doctor", "UCX")
    return importlib.metadata.version("nixl")


def _agent(name: str, backend: str) -> Any:
    from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

    strict = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    return nixl_agent(name, nixl_agent_config(backends=[backend], sync_mode=strict))


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
    # A list: Ray looks for tensors inside of what it is given.
    return Kept(packed.header, sizes, ray.put([whole], _tensor_transport="nixl"))


def read(kept: Kept, *, timeout: float, check: Callable[[], None]) -> Packed:
    """Fetch the bytes into this process's memory; read-only, since within one process they are the producer's own.

    Ends within `timeout` seconds and when `check` raises, whatever NIXL does: it connects without a deadline of its own
    (the kernel's, two minutes), and memory that it was told to write to must not be freed. So the transfer goes on in its
    thread, with its memory, and what it brings late is dropped. Raises Ray's GetTimeoutError, ObjectLostError (the
    producer died) or RayDirectTransportError, and TransferStuck when an earlier transfer did not end all that time.
    """
    if kept.memory is None:
        return Packed(kept.header, tuple(np.empty(0, np.uint8) for _ in kept.sizes))
    transfer = _Transfer(kept.memory)
    deadline = time.monotonic() + timeout
    try:
        while not transfer.ended.wait(min(_GLANCE, max(0.0, deadline - time.monotonic()))):
            check()
            if time.monotonic() >= deadline:
                raise transfer.late(timeout)
    finally:
        transfer.wanted = False
    array = transfer.result()
    places = _places(kept.sizes)
    return Packed(
        kept.header, tuple(array[place : place + size] for place, size in zip(places, kept.sizes, strict=True))
    )


class _Transfer:
    """One `ray.get` in a thread of its own, one at a time in a process."""

    def __init__(self, memory: Any) -> None:
        self.wanted = True
        self.ended = threading.Event()
        self._memory = memory
        self._began = False
        self._outcome: NDArray[np.uint8] | BaseException | None = None
        threading.Thread(target=self._run, name="splitreel-transfer", daemon=True).start()

    def result(self) -> NDArray[np.uint8]:
        """What came, once ended, or the error raised."""
        assert self._outcome is not None
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def late(self, timeout: float) -> Exception:
        """The error for a transfer that has not ended in time."""
        if self._began:
            return GetTimeoutError(f"nixl has brought nothing within {timeout:g} s")
        return TransferStuck(f"an earlier transfer by nixl has not ended within another {timeout:g} s")

    def _run(self) -> None:
        with _READING:
            if self.wanted:
                self._began = True
                try:
                    (whole,) = ray.get(self._memory)
                    array = whole.numpy()
                    array.flags.writeable = False
                    self._outcome = array
                except Exception as error:
                    self._outcome = error
        self._memory = None
        self.ended.set()


def _places(sizes: tuple[int, ...]) -> Iterator[int]:
    place = 0
    for size in sizes:
        yield place
        place += -(-size // _ALIGNED) * _ALIGNED
