"""A component with weights: built without them, then filled from its files, tensor by tensor, where it will stay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from splitreel.errors import IncompleteCheckpoint
from splitreel.observe.logs import get_logger
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.quantizing import quantized_bytes, quantizer
from splitreel.roles.quiet import quiet
from splitreel.roles.weights import StoredTensor, reading, stored_tensors

logger = get_logger(__name__)

# The libraries' constructors and loaders are not for two threads at once (nor is `quiet`). Reading weights needs no lock.
LIBRARIES = threading.Lock()


@dataclass(frozen=True)
class Recipe:
    """How a component becomes resident.

    skeleton  builds it, while weights are made on the meta device.
    dtype_of  the dtype in which a tensor of the files is held, by name; None for one that is not wanted.
    quantized  whether a tensor of the files is held in 8 bits, by name; `quantization` says in which form.
    beside    bytes that it will hold beside the tensors of its files.
    plain     the library's own loading, taken when the files' names are not the skeleton's; None where it will not do.
    """

    skeleton: Callable[[], nn.Module]
    dtype_of: Callable[[str], torch.dtype | None]
    quantized: Callable[[str], bool] = lambda name: False
    quantization: str | None = None
    beside: int = 0
    plain: Callable[[], nn.Module] | None = None

    def held_in(self, stored: StoredTensor) -> torch.dtype | None:
        """The dtype that a stored tensor is held in; whole numbers keep theirs."""
        dtype = self.dtype_of(stored.name)
        return dtype if dtype is None or stored.dtype.is_floating_point else stored.dtype

    def bytes_needed(self, checkpoint: Checkpoint, component: str) -> int:
        """Bytes that will be held, from the files' headers."""
        return self.beside + sum(self._bytes(stored) for stored in stored_tensors(checkpoint, component))

    def _bytes(self, stored: StoredTensor) -> int:
        dtype = self.held_in(stored)
        if dtype is None:
            return 0
        if self.quantization is not None and self.quantized(stored.name):
            return quantized_bytes(self.quantization, stored.shape)
        return stored.num_elements * dtype.itemsize


def unfilled(recipe: Recipe) -> nn.Module:
    """The component without its weights: modules, names and shapes, on the meta device."""
    with LIBRARIES, quiet(), _NothingAllocated():
        return recipe.skeleton()


def load_module(recipe: Recipe, checkpoint: Checkpoint, component: str, device: torch.device) -> nn.Module:
    """Build and fill a component on its device: what is held afterwards is all that was ever held, but for a buffer of
    `weights.BUFFER_BYTES`. Raises CheckpointError.
    """
    module = unfilled(recipe)
    wanted = [
        (stored, dtype)
        for stored in stored_tensors(checkpoint, component)
        if (dtype := recipe.held_in(stored)) is not None
    ]
    missing = _missing(module, [stored for stored, _ in wanted])
    if missing:
        return _load_plainly(recipe, checkpoint, component, device, missing)
    quantize = quantizer(recipe.quantization, component, device) if recipe.quantization is not None else None
    slots = dict(_slots(module))
    with reading(component, device) as reader:
        for stored, dtype in wanted:
            if stored.name in slots:
                slots[stored.name](reader.read(stored, dtype))
                if quantize is not None and recipe.quantized(stored.name):
                    # Each as soon as it is there, so that no two of them are ever whole.
                    quantize(module.get_submodule(stored.name.rpartition(".")[0]))
    return module.to(device).eval().requires_grad_(False)


def _load_plainly(
    recipe: Recipe, checkpoint: Checkpoint, component: str, device: torch.device, missing: Sequence[str]
) -> nn.Module:
    what = f"{len(missing)} of its tensors, such as {missing[0]}"
    if recipe.plain is None:
        raise IncompleteCheckpoint(
            f"{component}: expected {what}, in the files of {checkpoint.root / component}, found none of that name and "
            "shape. Set the role's memory options back to their defaults, or use the released layout.",
            component=component,
            file=str(checkpoint.root / component),
        )
    logger.warning(
        "%s: the files name their tensors otherwise (%s are not found); loading all of them, the library's way",
        component,
        what,
    )
    with LIBRARIES, quiet():
        module = recipe.plain()
    return module.to(device).eval().requires_grad_(False)


def _missing(module: nn.Module, stored: Sequence[StoredTensor]) -> list[str]:
    shapes = {item.name: item.shape for item in stored}
    return [
        name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if shapes.get(name) != tuple(parameter.shape)
    ]


def _slots(module: nn.Module) -> Iterator[tuple[str, Callable[[Tensor], None]]]:
    """For each parameter and each buffer that files may hold: its name, and what puts a tensor there."""

    def parameter_setter(owner: nn.Module, name: str) -> Callable[[Tensor], None]:
        return lambda tensor: setattr(owner, name, nn.Parameter(tensor, requires_grad=False))

    def buffer_setter(owner: nn.Module, name: str) -> Callable[[Tensor], None]:
        return lambda tensor: setattr(owner, name, tensor)

    stored = module.state_dict(keep_vars=True)
    for path, owner in module.named_modules():
        prefix = f"{path}." if path else ""
        for name in owner._parameters:
            yield prefix + name, parameter_setter(owner, name)
        for name in owner._buffers:
            if prefix + name in stored:
                yield prefix + name, buffer_setter(owner, name)


class _NothingAllocated(TorchFunctionMode):
    """Within it, `torch.empty`, which torch's layers make their weights with, gives tensors on the meta device.

    In this thread alone: accelerate's way patches torch.nn.Module for the whole process, and another role that loads at
    the same time gets meta tensors of its own ("Cannot copy out of meta tensor", seen). Buffers are computed as usual.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.empty:
            return func(*args, **{**(kwargs or {}), "device": "meta"})
        return func(*args, **(kwargs or {}))
