"""Results of a stage kept for requests that would give the same: the same prompt with another seed skips the encoder.

Kept is the result itself, on the CPU, so that a hit is bit for bit what the stage would have made. What decides a result
is everything in the stage's input but the values that the model says it only hands on.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Set
from dataclasses import replace

import torch
from torch import Tensor

from splitreel.wire import Payload
from splitreel.wire.payload import FieldValue


class ResultCache:
    """Least recently used results go when `max_bytes` of tensors are exceeded; 0 keeps none. One thread at a time."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._results: OrderedDict[bytes, Payload] = OrderedDict()

    def get(self, key: bytes, payload: Payload, passing: Set[str]) -> Payload | None:
        """The result for `payload`, as the stage would have made it for this request; None when there is none."""
        found = self._results.get(key)
        if found is None:
            return None
        self._results.move_to_end(key)
        header = payload.header
        handed_on = {name: header.values[name] for name in passing if name in header.values}
        kept = {name: value for name, value in found.header.values.items() if name not in passing}
        return replace(
            found,
            header=replace(
                found.header, request_id=header.request_id, trace=header.trace, values={**kept, **handed_on}
            ),
        )

    def put(self, key: bytes, result: Payload) -> Payload:
        """Keep a result, if it fits at all; the result with its tensors on the CPU, where it travels from."""
        on_cpu = replace(result, tensors={name: _to_cpu(value) for name, value in result.tensors.items()})
        size = on_cpu.num_bytes
        if size <= self.max_bytes:
            self._results[key] = on_cpu
            self.num_bytes += size
            while self.num_bytes > self.max_bytes:
                self.num_bytes -= self._results.popitem(last=False)[1].num_bytes
        return on_cpu

    def clear(self) -> None:
        """Forget everything."""
        self._results.clear()
        self.num_bytes = 0


def result_key(payload: Payload, passing: Set[str]) -> bytes:
    """A digest of all that decides what the stage makes of `payload`."""
    header = payload.header
    values = {name: value for name, value in header.values.items() if name not in passing}
    digest = hashlib.sha256(
        json.dumps([header.workflow, header.kind, header.schema, header.geometry, values], sort_keys=True).encode()
    )
    for name, tensor in payload.named_tensors():
        digest.update(f"|{name} {tensor.dtype} {tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def _to_cpu(value: FieldValue) -> FieldValue:
    return value.cpu() if isinstance(value, Tensor) else [item.cpu() for item in value]
