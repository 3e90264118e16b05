"""Payload ↔ a JSON header and raw buffers.

Buffers are uint8 numpy views of contiguous CPU memory, so Ray's pickle-5 path ships them out of band and a receiver
on another node reads them from its store without a copy. Nothing is ever unpickled from a buffer. dtypes that numpy
lacks (bfloat16) travel as bytes like all others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitreel.errors import InvalidPayload
from splitreel.wire.payload import FieldValue, Header, Payload

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.uint8,
        torch.bool,
    )
}


@dataclass(frozen=True)
class Packed:
    """The wire form. `header` is UTF-8 JSON, `buffers` are in the order that the header lists."""

    header: bytes
    buffers: tuple[NDArray[np.uint8], ...]

    @property
    def num_bytes(self) -> int:
        """Serialised bytes: header and buffers."""
        return len(self.header) + sum(buffer.nbytes for buffer in self.buffers)


def pack(payload: Payload) -> Packed:
    """Make the wire form. Tensors on a device are copied to the CPU; a view takes only its own elements along."""
    header = payload.header
    entries: list[dict[str, Any]] = []
    buffers: list[NDArray[np.uint8]] = []
    for name, value in payload.tensors.items():
        items = [value] if isinstance(value, Tensor) else list(value)
        entries.append(
            {
                "name": name,
                "list": not isinstance(value, Tensor),
                "items": [[_dtype_name(name, item), list(item.shape), str(item.device)] for item in items],
            }
        )
        buffers.extend(_bytes_of(item) for item in items)
    document = {
        "request_id": header.request_id,
        "workflow": header.workflow,
        "kind": header.kind,
        "schema": list(header.schema),
        "geometry": header.geometry,
        "values": dict(header.values),
        "trace": dict(header.trace),
        "fields": entries,
    }
    return Packed(json.dumps(document, allow_nan=False).encode(), tuple(buffers))


def unpack(packed: Packed) -> Payload:
    """Read the wire form back; tensors share the buffers' memory, which may be read-only.

    Raises InvalidPayload when header and buffers do not agree.
    """
    try:
        document = json.loads(packed.header)
        header = Header(
            request_id=document["request_id"],
            workflow=document["workflow"],
            kind=document["kind"],
            schema=(int(document["schema"][0]), int(document["schema"][1])),
            geometry=document["geometry"],
            values=document["values"],
            trace=document["trace"],
        )
        entries = document["fields"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InvalidPayload(f"payload header: expected splitreel's JSON header, found {error!r}.") from error
    tensors: dict[str, FieldValue] = {}
    buffers = iter(packed.buffers)
    for entry in entries:
        items = [_tensor_of(entry["name"], dtype, shape, next(buffers, None)) for dtype, shape, *_ in entry["items"]]
        tensors[entry["name"]] = items if entry["list"] else items[0]
    if next(buffers, None) is not None:
        raise InvalidPayload("payload buffers: found more than the header lists.")
    return Payload(header, tensors)


def itemsize(dtype: str) -> int:
    """Bytes of one element of a dtype that payloads may have."""
    return _DTYPES[dtype].itemsize


def _dtype_name(field: str, tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise InvalidPayload(f"payload {field}: expected a dtype of {', '.join(_DTYPES)}, found {name}.", field=field)
    return name


def _bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    array: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return array


def _tensor_of(field: str, dtype_name: str, shape: Sequence[int], buffer: NDArray[np.uint8] | None) -> Tensor:
    dtype = _DTYPES.get(dtype_name)
    if dtype is None:
        raise InvalidPayload(f"payload {field}: expected a known dtype, found {dtype_name}.", field=field)
    size = dtype.itemsize
    for dim in shape:
        size *= int(dim)
    if buffer is None or buffer.nbytes != size:
        found = "nothing" if buffer is None else f"{buffer.nbytes} bytes"
        raise InvalidPayload(f"payload {field}: expected {size} bytes, found {found}.", field=field)
    if size == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    if not buffer.flags.writeable:
        return _read_only(buffer).view(dtype).reshape(tuple(shape))
    return torch.from_numpy(buffer).view(dtype).reshape(tuple(shape))


def _read_only(buffer: NDArray[np.uint8]) -> Tensor:
    """Wrap memory that must not be written (a shared object of the store) without the copy that torch would advise.

    torch warns once per process about read-only numpy arrays and has no read-only tensors; DLPack refuses them.
    Going through the array interface pointer keeps the array alive by way of `_Borrowed`.
    """
    return torch.from_numpy(np.asarray(_Borrowed(buffer)))


class _Borrowed:
    """Presents a read-only buffer as writable to numpy. The stages that receive it never write to their inputs."""

    def __init__(self, buffer: NDArray[np.uint8]) -> None:
        self.buffer = buffer
        interface = dict(buffer.__array_interface__)
        pointer, _ = interface["data"]
        interface["data"] = (pointer, False)
        self.__array_interface__ = interface
