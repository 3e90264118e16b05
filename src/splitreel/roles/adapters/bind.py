"""Binding: every key of a file to a parameter of the component, or a refusal that says which and why."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitreel.errors import AdapterError
from splitreel.lora import InstallAdapter, LoraReceipt
from splitreel.roles.adapters.alpha import Alphas
from splitreel.roles.adapters.keys import Entry, Keys, described, sort_keys
from splitreel.roles.adapters.patches import Patch
from splitreel.words import counted

_SHOWN = 8


@dataclass(frozen=True)
class Slot:
    """A module that a file's module stands for, and which of its output rows are this one's, in its order."""

    module: str
    rows: Callable[[Tensor], Tensor] = lambda rows: rows


# From a module as a file names it, and whether PEFT's adapter name stands in the keys: whose name it is, and its slots.
Resolve = Callable[[str, bool], tuple[str, tuple[Slot, ...]] | None]


@dataclass(frozen=True)
class Surface:
    """What adapters may change of a component.

    `parameters`: the shape of each. `resolve` gives None for a module that is not there. `closed`: why a module cannot be
    changed. `free`: bytes left on the device.
    """

    component: str
    parameters: Mapping[str, tuple[int, ...]]
    resolve: Resolve
    closed: Mapping[str, str]
    device: str
    free: Callable[[], int]


@dataclass(frozen=True, eq=False)
class Bound:
    """A file's updates, by parameter, ready on the device."""

    patches: Mapping[str, Patch]
    receipt: LoraReceipt


def bind(order: InstallAdapter, content: NDArray[Any], surface: Surface, components: Sequence[str]) -> Bound:
    """Bind a file's bytes. Raises AdapterError, and nothing has changed."""
    tensors, metadata = _parse(order, content)
    return bind_tensors(order, tensors, metadata, surface, components)


def bind_tensors(
    order: InstallAdapter,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    surface: Surface,
    components: Sequence[str],
) -> Bound:
    """The same for a file's tensors; of those on the meta device only keys and sizes are checked."""
    return _Binding(order, tensors, metadata, surface, sort_keys(tensors, components)).bound()


class _Binding:
    def __init__(
        self,
        order: InstallAdapter,
        tensors: Mapping[str, Tensor],
        metadata: Mapping[str, str],
        surface: Surface,
        keys: Keys,
    ) -> None:
        self._order = order
        self._tensors = tensors
        self._metadata = metadata
        self._surface = surface
        self._keys = keys
        self._patches: dict[str, Patch] = {}
        self._alphas: set[float] = set()
        self._ranks: set[int] = set()
        self._unmatched = list(keys.unmatched)
        self._closed: dict[str, str] = {}
        self._naming: set[str] = set()
        self._acts = False

    def bound(self) -> Bound:
        surface, order, keys = self._surface, self._order, self._keys
        self._check_whose()
        if keys.twice:
            self._refuse(f"expected each part of an update once, found {_some(keys.twice)} again")
        try:
            alphas = Alphas(self._metadata, order.config, surface.component, order.alpha)
            for (component, module), entry in keys.entries.items():
                slots = self._slots(component, module)
                if slots:
                    self._bind_entry(entry, slots, alphas)
                else:
                    self._unmatched += entry.parts.values()
        except AdapterError as error:
            if "file" in error.details:
                raise
            raise AdapterError(f"lora {order.name}, {order.source}: {error.message}", file=order.source) from error
        if not self._patches:
            self._refuse(
                f"expected updates of {surface.component}, found none among {counted(len(self._tensors), 'key')}: "
                f"{_some(list(self._tensors))}",
                "It is an adapter of another model, or of a form that is not known here.",
            )
        if self._unmatched and not order.allow_unmatched:
            self._refuse(
                f"expected every key to fit {surface.component}, found {len(self._unmatched)} of {len(self._tensors)} that "
                f"do not: {self._explained()}",
                "Without them the film is not what the adapter was trained for. allow_unmatched=True ignores them.",
                unmatched=sorted(self._unmatched),
            )
        if not self._acts:
            self._refuse(
                f"expected updates that change something, found zeros only in {len(self._tensors)} keys",
                "It was saved before it was trained.",
            )
        modules = {name.rpartition(".")[0] for name in self._patches}
        num_bytes = sum({id(item): item.nbytes for item in self._all_tensors()}.values())
        if num_bytes > (free := surface.free()):
            self._refuse(f"expected {num_bytes} bytes free on {surface.device}, found {free}")
        receipt = LoraReceipt(
            name=order.name,
            source=order.source,
            sha256=order.sha256,
            target=surface.component,
            format=described(keys, self._naming, self._metadata),
            modules=len(modules),
            ranks=tuple(sorted(self._ranks)),
            alphas=tuple(sorted(self._alphas)),
            alpha_source=" and ".join(sorted(alphas.sources)),
            replaced=tuple(sorted(name for name, patch in self._patches.items() if patch.value is not None)),
            unmatched=tuple(sorted(self._unmatched)),
            num_bytes=num_bytes,
        )
        return Bound(_moved(self._patches, surface.device), receipt)

    def _check_whose(self) -> None:
        named, target = self._keys.components, self._surface.component
        if named and target not in named:
            other = " and ".join(sorted(named))
            self._refuse(
                f"expected an adapter of {target}, found keys that begin with {other}: it was trained on the other "
                "transformer, whose modules have the same names",
                f"Give target={other!r} where that is served.",
            )

    def _slots(self, component: str, module: str) -> tuple[Slot, ...]:
        """Where the module's update goes; nowhere when the file means another component, or no such module is there."""
        if component and component != self._surface.component:
            return ()
        found = self._surface.resolve(module, bool(self._keys.infixes))
        if found is None:
            if module in self._surface.closed:
                self._closed[module] = self._surface.closed[module]
            return ()
        naming, slots = found
        for slot in slots:
            if slot.module in self._surface.closed:
                self._closed[module] = self._surface.closed[slot.module]
                return ()
            if not any(f"{slot.module}.{part}" in self._surface.parameters for part in ("weight", "bias")):
                return ()
        self._naming.add(naming)
        return slots

    def _bind_entry(self, entry: Entry, slots: tuple[Slot, ...], alphas: Alphas) -> None:
        parts = {part: self._checked(part, key) for part, key in entry.parts.items()}
        for half, other in (("down", "up"), ("up", "down")):
            if half in parts and other not in parts:
                self._refuse(f"expected both factors of {entry.module}, found {entry.parts[half]} alone")
        whole = [part for part in ("down", "diff", "set_weight") if part in parts]
        if "set_weight" in whole and len(whole) > 1:
            self._refuse(f"expected {entry.module} to be added to or replaced, found both ({' and '.join(whole)})")
        if "alpha" in parts and "down" not in parts:
            self._refuse(f"expected factors beside {entry.parts['alpha']}, found none")
        if "down" in parts:
            self._bind_factors(entry, slots, parts, alphas)
        for part, parameter, field in (
            ("diff", "weight", "diff"),
            ("set_weight", "weight", "value"),
            ("diff_bias", "bias", "diff"),
        ):
            if part in parts:
                self._acts |= part == "set_weight" or _not_zero(parts[part])
                self._bind_whole(entry.parts[part], parts[part], slots, parameter, field)

    def _bind_factors(self, entry: Entry, slots: tuple[Slot, ...], parts: Mapping[str, Tensor], alphas: Alphas) -> None:
        down, up = parts["down"], parts["up"]
        shapes = [self._surface.parameters.get(f"{slot.module}.weight", ()) for slot in slots]
        if any(len(shape) != 2 for shape in shapes):
            self._refuse(f"expected factors of a projection, found {entry.parts['down']}, which is none")
        rows, columns = sum(shape[0] for shape in shapes), shapes[0][1]
        self._fits(entry.parts["down"], down, ("rank", columns))
        rank = down.shape[0]
        self._fits(entry.parts["up"], up, (rows, rank))
        if "rank" in parts and float(parts["rank"]) != rank:
            self._refuse(f"expected {entry.parts['rank']} to say {rank}, found {float(parts['rank']):g}")
        stated = float(parts["alpha"]) if "alpha" in parts else None
        alpha, factor = alphas.factor(entry.module, rank, stated)
        self._acts |= _not_zero(down) and _not_zero(up)
        self._alphas.add(alpha)
        self._ranks.add(rank)
        for slot in slots:
            self._add(f"{slot.module}.weight", entry.parts["down"], down=down, up=slot.rows(up), factor=factor)

    def _bind_whole(self, key: str, tensor: Tensor, slots: tuple[Slot, ...], parameter: str, field: str) -> None:
        shapes = [self._surface.parameters.get(f"{slot.module}.{parameter}") for slot in slots]
        if any(shape is None for shape in shapes):
            self._refuse(f"expected a module with a {parameter}, found {key}, whose module has none")
        first = shapes[0]
        assert first is not None
        rows = sum(shape[0] for shape in shapes if shape is not None)
        self._fits(key, tensor, (rows, *first[1:]))
        for slot in slots:
            self._add(f"{slot.module}.{parameter}", key, **{field: slot.rows(tensor)})

    def _add(self, parameter: str, key: str, **fields: Any) -> None:
        before = self._patches.get(parameter, Patch())
        if any(getattr(before, name) is not None for name in fields if name != "factor"):
            self._refuse(f"expected one update of {parameter}, found a second one, {key}, under another name")
        self._patches[parameter] = Patch(**{**vars(before), **fields})

    def _checked(self, part: str, key: str) -> Tensor:
        tensor = self._tensors[key]
        if part in ("alpha", "rank") and tensor.numel() != 1:
            self._refuse(f"expected one number in {key}, found shape {tuple(tensor.shape)}")
        if not tensor.dtype.is_floating_point and tensor.numel() > 1:
            self._refuse(f"expected floating-point values in {key}, found {str(tensor.dtype).removeprefix('torch.')}")
        if not tensor.is_meta and not bool(torch.isfinite(tensor.float()).all()):
            self._refuse(f"expected finite values in {key}, found NaN or infinity")
        return tensor

    def _fits(self, key: str, tensor: Tensor, wanted: tuple[int | str, ...]) -> None:
        found = tuple(tensor.shape)
        if len(found) != len(wanted) or any(
            isinstance(size, int) and size != have for size, have in zip(wanted, found, strict=True)
        ):
            self._refuse(
                f"expected {key} of shape ({', '.join(map(str, wanted))}), found {found}",
                "It was trained on a transformer of other sizes, for instance one whose AdaLN was pruned.",
            )

    def _all_tensors(self) -> list[Tensor]:
        return [item for patch in self._patches.values() for item in vars(patch).values() if isinstance(item, Tensor)]

    def _explained(self) -> str:
        reasons = sorted(set(self._closed.values()))
        return _some(self._unmatched) + (f" ({'; '.join(reasons)})" if reasons else "")

    def _refuse(self, what: str, advice: str = "", **details: Any) -> None:
        raise AdapterError(
            f"lora {self._order.name}, {self._order.source}: {what}.{f' {advice}' if advice else ''}",
            file=self._order.source,
            **details,
        )


def _parse(order: InstallAdapter, content: NDArray[Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    data = content.tobytes()
    try:
        (length,) = struct.unpack("<Q", data[:8])
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except Exception as error:
        raise AdapterError(
            f"lora {order.name}, {order.source}: expected a safetensors file, found {error}.", file=order.source
        ) from error
    return tensors, metadata


def _not_zero(tensor: Tensor) -> bool:
    return tensor.is_meta or bool(tensor.any())


def _some(keys: Sequence[str]) -> str:
    shown = ", ".join(sorted(keys)[:_SHOWN])
    return f"{shown} and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else shown


def _moved(patches: Mapping[str, Patch], device: str) -> dict[str, Patch]:
    """The patches on the device; a factor that several parameters share stays one."""
    moved: dict[int, Tensor] = {}

    def place(item: Any) -> Any:
        return moved.setdefault(id(item), item.to(device)) if isinstance(item, Tensor) else item

    return {
        parameter: Patch(**{name: place(item) for name, item in vars(patch).items()})
        for parameter, patch in patches.items()
    }
