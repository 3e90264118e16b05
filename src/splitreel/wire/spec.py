"""What a payload of one kind must look like. Checks name the field, its dtype and dims; they never ask for a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from splitreel.errors import GeometryMismatch, InvalidPayload, SchemaMismatch
from splitreel.wire.payload import FieldValue, Header, Payload

FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class FieldSpec:
    """One tensor field, or a list of tensors when `repeated`.

    `dims`: a number is an exact size, a name must be the same size wherever it appears in the payload, None is free.
    `finite`: NaN and infinity are refused. `optional`: the field may be absent. `on_device`: the receiving role moves it
    to its own device; all others stay on the CPU. Where the sender had it does not matter.
    """

    name: str
    dtypes: tuple[str, ...]
    dims: tuple[int | str | None, ...]
    repeated: bool = False
    finite: bool = False
    optional: bool = False
    on_device: bool = False


@dataclass(frozen=True)
class PayloadSpec:
    """The fields and values of one kind of payload."""

    kind: str
    schema: tuple[int, int]
    fields: tuple[FieldSpec, ...]
    values: Mapping[str, type | tuple[type, ...]] = field(default_factory=dict)

    def check(self, payload: Payload, *, geometry: str) -> None:
        """Raise SchemaMismatch, GeometryMismatch or InvalidPayload unless `payload` is as specified."""
        header = payload.header
        self._check_header(header, geometry)
        known = {item.name: item for item in self.fields}
        unknown = sorted(set(payload.tensors) - set(known))
        if unknown and header.schema[1] <= self.schema[1]:
            raise _invalid(header, unknown[0], f"one of {', '.join(known)}", "an unknown field")
        sizes: dict[str, int] = {}
        for item in self.fields:
            value = payload.tensors.get(item.name)
            if value is None:
                if not item.optional:
                    raise _invalid(header, item.name, "to be present", "nothing")
                continue
            for name, tensor in _named(item, value, header):
                _check_tensor(item, name, tensor, sizes, header)

    def place(self, payload: Payload, device: str) -> Payload:
        """The payload with every `on_device` field on `device` and all others on the CPU."""
        homes = {item.name: device if item.on_device else "cpu" for item in self.fields}
        moved: dict[str, FieldValue] = {}
        for name, value in payload.tensors.items():
            home = homes.get(name, "cpu")
            moved[name] = value.to(home) if isinstance(value, Tensor) else [item.to(home) for item in value]
        return Payload(payload.header, moved)

    def _check_header(self, header: Header, geometry: str) -> None:
        if header.schema[0] != self.schema[0]:
            raise SchemaMismatch(
                f"payload {header.kind} of request {header.request_id}: expected wire schema {_dotted(self.schema)}, "
                f"found {_dotted(header.schema)}. Install the same splitreel on both nodes.",
                expected=self.schema,
                found=header.schema,
            )
        if header.kind != self.kind:
            raise _invalid(header, "kind", self.kind, header.kind)
        if header.geometry != geometry:
            raise GeometryMismatch(
                f"payload {header.kind} of request {header.request_id}: expected geometry {geometry}, found "
                f"{header.geometry}. The two roles read different checkpoints."
            )
        for name, expected in self.values.items():
            if name not in header.values:
                raise _invalid(header, name, "to be present in the header", "nothing")
            found = header.values[name]
            if not isinstance(found, expected) or (isinstance(found, bool) and expected is int):
                wanted = expected.__name__ if isinstance(expected, type) else " or ".join(t.__name__ for t in expected)
                raise _invalid(header, name, wanted, type(found).__name__)


def _named(item: FieldSpec, value: Any, header: Header) -> list[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if item.repeated:
            raise _invalid(header, item.name, "a list of tensors", "one tensor")
        return [(item.name, value)]
    if not item.repeated or not isinstance(value, Sequence):
        raise _invalid(header, item.name, "a tensor", type(value).__name__)
    named = [(f"{item.name}[{index}]", tensor) for index, tensor in enumerate(value)]
    for name, tensor in named:
        if not isinstance(tensor, Tensor):
            raise _invalid(header, name, "a tensor", type(tensor).__name__)
    return named


def _check_tensor(item: FieldSpec, name: str, tensor: Tensor, sizes: dict[str, int], header: Header) -> None:
    found_dtype = str(tensor.dtype).removeprefix("torch.")
    if found_dtype not in item.dtypes:
        raise _invalid(header, name, f"dtype {' or '.join(item.dtypes)}", found_dtype)
    if tensor.ndim != len(item.dims):
        raise _invalid(header, name, f"{len(item.dims)} dims {_dims(item.dims)}", str(tuple(tensor.shape)))
    for expected, size in zip(item.dims, tensor.shape, strict=True):
        wanted = sizes.setdefault(expected, size) if isinstance(expected, str) else expected
        if wanted is not None and wanted != size:
            raise _invalid(
                header, name, f"dims {_dims(item.dims)} with {expected} = {wanted}", str(tuple(tensor.shape))
            )
    if item.finite and not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise _invalid(header, name, "finite values", f"{bad} of {tensor.numel()} not finite (NaN or infinity)")


def _dims(dims: tuple[int | str | None, ...]) -> str:
    return "(" + ", ".join("?" if dim is None else str(dim) for dim in dims) + ")"


def _dotted(schema: tuple[int, int]) -> str:
    return f"{schema[0]}.{schema[1]}"


def _invalid(header: Header, name: str, expected: str, found: str) -> InvalidPayload:
    return InvalidPayload(
        f"payload {header.kind} of request {header.request_id}, {name}: expected {expected}, found {found}.",
        field=name,
        request_id=header.request_id,
    )
