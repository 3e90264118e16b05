"""The typed, versioned state of a hop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

FieldValue = Tensor | Sequence[Tensor]


@dataclass(frozen=True)
class Header:
    """What a receiver must know before it looks at tensors.

    `kind` names the payload's spec, `schema` is (major, minor): another major is refused, another minor tolerated.
    `geometry` is the fingerprint of the checkpoint's geometry. `values` holds small JSON data. `trace` carries the
    caller's trace context.
    """

    request_id: str
    workflow: str
    kind: str
    schema: tuple[int, int]
    geometry: str
    values: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Payload:
    """A header and its tensors; a field is one tensor or a list of them (one per keyframe, reference...)."""

    header: Header
    tensors: Mapping[str, FieldValue]

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its name: `latents`, `condition_latents[0]`, ... in field order."""
        for name, value in self.tensors.items():
            if isinstance(value, Tensor):
                yield name, value
            else:
                for index, item in enumerate(value):
                    yield f"{name}[{index}]", item

    @property
    def num_bytes(self) -> int:
        """Logical bytes of all tensors: elements times element size, views not counted twice."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self.named_tensors())
