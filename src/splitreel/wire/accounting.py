"""The account of a packed payload, read from its header: no tensor is touched, so it costs the same with and without."""

from __future__ import annotations

import json
import math

from splitreel.observe.accounts import FieldAccount, PayloadAccount
from splitreel.wire.packing import Packed, itemsize


def account(packed: Packed) -> PayloadAccount:
    """Dims, dtype, device and bytes of each tensor, named `latents`, `condition_latents[0]`, ... in field order."""
    document = json.loads(packed.header)
    fields = []
    for entry in document["fields"]:
        for index, (dtype, dims, device) in enumerate(entry["items"]):
            name = f"{entry['name']}[{index}]" if entry["list"] else entry["name"]
            fields.append(FieldAccount(name, tuple(dims), dtype, device, math.prod(dims) * itemsize(dtype)))
    return PayloadAccount(document["kind"], tuple(fields), packed.num_bytes)
