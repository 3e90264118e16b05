"""What an adapter's header says, read where the file is so that workers can refuse it before they load anything. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from splitreel.config import LoraConfig
from splitreel.errors import AdapterError
from splitreel.lora import AdapterOutline, InstallAdapter
from splitreel.roles.adapters.files import check_adapter, config_beside, find_adapter, named_components, target_of
from splitreel.roles.adapters.keys import sort_keys

_NUMBERS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}


def outlines_of(adapters: Mapping[str, LoraConfig], served: Iterable[str]) -> tuple[AdapterOutline, ...]:
    """Of a config's adapters, by name; `served`: the components that denoise. Raises AdapterError. Fetches hub ids."""
    components = list(dict.fromkeys(served))
    return tuple(
        read_outline(
            find_adapter(adapter.path),
            InstallAdapter(
                id="",
                name=name,
                source=adapter.path,
                sha256="",
                target=adapter.target or "",
                alpha=adapter.alpha,
                allow_unmatched=adapter.allow_unmatched,
            ),
            components,
        )
        for name, adapter in adapters.items()
    )


def read_outline(path: Path, order: InstallAdapter, served: Sequence[str]) -> AdapterOutline:
    """The header of a file, and the few numbers of it that are settings. `order.target` may be "" to be settled here.

    Raises AdapterError for what is no adapter at all, whatever the model is, and for a target that is not served.
    """
    header = check_adapter(path)
    metadata: dict[str, str] = header.pop("__metadata__", {})
    entries = {key: (entry["dtype"], tuple(entry["shape"])) for key, entry in header.items()}
    keys = sort_keys(entries, served)
    if not keys.entries:
        some = ", ".join(sorted(entries)[:4]) or "no tensors"
        raise AdapterError(
            f"lora {order.name}, {order.source}: expected updates of weights (such as NAME.lora_A.weight), found none among "
            f"{len(entries)} keys: {some}. It is no adapter, or of a form that is not known here.",
            file=str(path),
        )
    target = target_of(order.source, named_components(entries, served), order.target or None, served)
    settled = InstallAdapter(**{**vars(order), "target": target, "config": config_beside(path)})
    begin = path.stat().st_size - max((entry["data_offsets"][1] for entry in header.values()), default=0)
    single = {key: entry for key, entry in header.items() if math.prod(entry["shape"]) == 1}
    return AdapterOutline(
        order=settled,
        tensors={key: entry for key, entry in entries.items() if key not in single},
        numbers={key: _number(path, begin, entry) for key, entry in single.items()},
        metadata=metadata,
        num_bytes=sum(
            entry["data_offsets"][1] - entry["data_offsets"][0] for key, entry in header.items() if key not in single
        ),
    )


def _number(path: Path, begin: int, entry: Mapping[str, Any]) -> float:
    first, last = entry["data_offsets"]
    with path.open("rb") as file:
        file.seek(begin + first)
        data = file.read(last - first)
    if entry["dtype"] == "BF16":
        return float(np.frombuffer(b"\0\0" + data, "<f4")[0])
    return float(np.frombuffer(data, _NUMBERS[entry["dtype"]])[0]) if entry["dtype"] in _NUMBERS else math.nan
