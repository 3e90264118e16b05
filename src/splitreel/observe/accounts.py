"""What a payload weighs: every field of a hop, counted once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class FieldAccount:
    """One tensor: its `dims`, `dtype`, the `device` where the sender had it, and elements times element size in bytes."""

    name: str
    dims: tuple[int, ...]
    dtype: str
    device: str
    num_bytes: int


@dataclass(frozen=True)
class PayloadAccount:
    """All tensors of one payload. `logical_bytes` is their sum; `wire_bytes` is what was serialised, header included.

    Neither holds what the transport adds: Ray's own framing, and that of the network.
    """

    kind: str
    fields: tuple[FieldAccount, ...]
    wire_bytes: int

    @property
    def logical_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(item.num_bytes for item in self.fields)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "fields": [asdict(item) for item in self.fields], "logical_bytes": self.logical_bytes}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PayloadAccount:
        """Back from plain data."""
        fields = tuple(FieldAccount(**{**item, "dims": tuple(item["dims"])}) for item in values["fields"])
        return cls(values["kind"], fields, values["wire_bytes"])
