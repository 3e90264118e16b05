"""Weights from safetensors files straight into tensors where they will stay: each byte is read once, nothing is kept twice.

The libraries' loaders map the files into memory. On a CPU the weights then are the page cache's, read again whenever it
was needed for something else; on a device that shares the machine's memory they are there twice. Here a tensor's bytes
are read into its own memory, or through a small buffer where they change dtype or go to a device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from splitreel.errors import IncompleteCheckpoint
from splitreel.roles.checkpoint import Checkpoint, check_safetensors

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# Large enough for a disk's full rate, small beside any component (32 MiB to 64 MiB made no difference to the time).
BUFFER_BYTES = 32 << 20


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file: its name, dtype and shape, and where its bytes begin in the file."""

    name: str
    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def num_elements(self) -> int:
        """How many values it has."""
        return torch.Size(self.shape).numel()


def stored_tensors(checkpoint: Checkpoint, component: str) -> list[StoredTensor]:
    """What a component's files hold, in the order of files and bytes. Reads headers. Raises CheckpointError."""
    found = []
    for path in checkpoint.weight_files(component):
        header = check_safetensors(path, component=component)
        names = {name: entry for name, entry in header.items() if name != "__metadata__"}
        data_begin = path.stat().st_size - max((entry["data_offsets"][1] for entry in names.values()), default=0)
        for name, entry in sorted(names.items(), key=lambda item: int(item[1]["data_offsets"][0])):
            dtype = _dtype(entry, path, component)
            found.append(
                StoredTensor(name, path, dtype, tuple(entry["shape"]), data_begin + int(entry["data_offsets"][0]))
            )
    return found


def _dtype(entry: dict[str, Any], path: Path, component: str) -> torch.dtype:
    try:
        return DTYPES[entry["dtype"]]
    except KeyError:
        raise IncompleteCheckpoint(
            f"{component}: expected values of {', '.join(DTYPES)} in {path}, found {entry['dtype']}. Use a checkpoint "
            "that is not quantised on disk.",
            component=component,
            file=str(path),
        ) from None


class Reader:
    """Reads stored tensors one after another; keeps the current file open and one buffer. Use `reading`."""

    def __init__(self, component: str, device: torch.device) -> None:
        self._component = component
        self._device = device
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._buffer: Tensor | None = None
        # Where the GPU's memory is the machine's, what the page cache keeps is missing there.
        self._drop_cache = device.type == "cuda" and bool(
            getattr(torch.cuda.get_device_properties(device), "is_integrated", False)
        )

    def read(self, stored: StoredTensor, dtype: torch.dtype) -> Tensor:
        """The tensor on the device, in `dtype`. Raises IncompleteCheckpoint when the file has become shorter."""
        target = torch.empty(stored.shape, dtype=dtype, device=self._device)
        flat = target.view(-1)
        file = self._open(stored.path)
        file.seek(stored.begin)
        if dtype == stored.dtype and self._device.type == "cpu":
            self._fill(file, flat.view(torch.uint8), stored)
            return target
        if self._buffer is None:
            self._buffer = torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        at_once = BUFFER_BYTES // stored.dtype.itemsize
        for begin in range(0, flat.numel(), at_once):
            count = min(at_once, flat.numel() - begin)
            part = self._buffer[: count * stored.dtype.itemsize]
            self._fill(file, part, stored)
            flat[begin : begin + count].copy_(part.view(stored.dtype))
        return target

    def close(self) -> None:
        """Close the file and let the buffer go."""
        if self._file is not None:
            if self._drop_cache:
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self._file.close()
        self._file = self._path = self._buffer = None

    def _open(self, path: Path) -> BinaryIO:
        if self._file is None or path != self._path:
            buffer = self._buffer
            self.close()
            self._buffer = buffer
            self._file, self._path = path.open("rb", buffering=0), path
        return self._file

    def _fill(self, file: BinaryIO, target: Tensor, stored: StoredTensor) -> None:
        view = memoryview(target.numpy())  # type: ignore[arg-type]
        while view:
            count = file.readinto(view)  # type: ignore[attr-defined]
            if not count:
                raise IncompleteCheckpoint(
                    f"{self._component}: expected {stored.name} whole in {stored.path}, found the file's end. Was it "
                    "replaced while it was read? Copy or download it again.",
                    component=self._component,
                    file=str(stored.path),
                )
            view = view[count:]


@contextmanager
def reading(component: str, device: torch.device) -> Iterator[Reader]:
    """A Reader that is closed afterwards."""
    reader = Reader(component, device)
    try:
        yield reader
    finally:
        reader.close()
