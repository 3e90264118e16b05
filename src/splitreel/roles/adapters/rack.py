"""The adapters of one worker: held by id, and applied to exactly the set that the request at hand names.

Why not peft's layers: they add the low-rank product to a layer's output, which is another sum than that of updated
weights, replace the modules that other code holds on to, and know neither norms nor biases nor replaced parameters.
Here a parameter is updated where it is read (torch's parametrization), so whoever reads it (a processor of its own, a
compiled block) gets the update, and the result equals updating the weights by hand. The weights themselves are not
written: no copy of them is kept, and taking an adapter away leaves what was loaded, bit for bit.

`fuse` does write them, which saves the sum at each use, and keeps no copy either: before anything is written each
parameter is compared with the checkpoint's file, from which it is read again to undo it. Only parameters that are not in
the files as they are in memory are kept, on the CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parametrize

from splitreel.config import RoleSpec
from splitreel.errors import AdapterError
from splitreel.lora import AdapterOrder, Applied, DropAdapter, FuseAdapters, InstallAdapter, LoraReceipt
from splitreel.observe.logs import get_logger
from splitreel.request import Stage
from splitreel.roles.adapters.bind import Bound, Surface, bind
from splitreel.roles.adapters.originals import Originals
from splitreel.roles.adapters.patches import Term, Update, updated
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.definition import ModelDefinition
from splitreel.roles.loading import Recipe

logger = get_logger(__name__)


class AdaptedComponent:
    """One component and what is applied to it. `apply` and `fuse` belong to the stage's thread.

    `always_write`: write the weights for each change of adapters, as `fuse` does. For a compiled component: torch would
    compile every block anew for each set of adapters (9 s for one on a CPU), and after eight not compile any more.
    """

    def __init__(
        self, module: nn.Module, surface: Surface, originals: Originals, *, always_write: bool = False
    ) -> None:
        self.surface = surface
        self.always_write = always_write
        self.bound: dict[str, Bound] = {}
        self._module = module
        self._originals = originals
        self._applied: tuple[Applied, ...] = ()
        self._updated: list[tuple[nn.Module, str]] = []
        self._fused: tuple[Applied, ...] = ()  # in the weights now
        self._to_be_fused: tuple[Applied, ...] = ()  # what the weights hold whenever a request asks for just that
        self._broken = ""

    @property
    def holds(self) -> tuple[Applied, ...]:
        """What acts now, fused or not."""
        return self._fused or self._applied

    def apply(self, uses: Sequence[Applied]) -> None:
        """Let exactly these act. Raises AdapterError, and then none acts."""
        if self._broken:
            raise AdapterError(self._broken)
        wanted = acting(uses)
        if wanted == self.holds:
            return
        missing = next((adapter for adapter, _ in wanted if adapter not in self.bound), None)
        if missing is not None:
            raise AdapterError(f"lora: expected adapter {missing} on this worker, found it not loaded. Load it again.")
        self.take_off()
        if self._fused:
            logger.info("taking the weights of %s back as loaded, for other adapters", self.surface.component)
            self._restore()
        if wanted and (self.always_write or wanted == self._to_be_fused):
            self._write(wanted)
            return
        for name, terms in self._terms(wanted).items():
            owner, _, parameter = name.rpartition(".")
            module = self._module.get_submodule(owner)
            parametrize.register_parametrization(module, parameter, Update(terms), unsafe=True)
            self._updated.append((module, parameter))
        self._applied = wanted

    def fuse(self, uses: Sequence[Applied]) -> None:
        """Have these in the weights, and no others. Raises AdapterError, and then the weights are as loaded."""
        wanted = acting(uses)
        self.take_off()
        if wanted != self._fused:
            self._restore()
            if wanted:
                self._write(wanted)
        self._to_be_fused = wanted

    def _terms(self, uses: Sequence[Applied]) -> dict[str, list[Term]]:
        terms: dict[str, list[Term]] = {}
        for adapter, scale in uses:
            for name, patch in self.bound[adapter].patches.items():
                terms.setdefault(name, []).append((patch, scale))
        return terms

    def take_off(self) -> None:
        """Let none act but what is fused: the component is as without adapters, every parameter the very same object."""
        for module, parameter in self._updated:
            parametrize.remove_parametrizations(module, parameter, leave_parametrized=False)
        self._updated.clear()
        self._applied = ()

    def _write(self, uses: tuple[Applied, ...]) -> None:
        try:
            with torch.no_grad():
                for name, terms in self._terms(uses).items():
                    parameter = self._module.get_parameter(name)
                    self._originals.keep(name, parameter)
                    parameter.copy_(updated(parameter, terms))
        except BaseException:
            self._restore()
            raise
        self._fused = uses

    def _restore(self) -> None:
        try:
            with torch.no_grad():
                self._originals.restore(self._module.get_parameter)
        except AdapterError as error:
            self._broken = error.message
            raise
        self._fused = ()


class AdapterRack:
    """All adapted components of a role. `carry_out` may be called from any thread, but `FuseAdapters` from the stage's.

    `prefixes`: the components that a file's keys may name, present here or not. `busy`: held while a stage computes.
    """

    def __init__(self, components: Mapping[str, AdaptedComponent], prefixes: Sequence[str] = ()) -> None:
        self.busy = threading.Lock()
        self._components = dict(components)
        self._prefixes = tuple(prefixes)

    @property
    def num_bytes(self) -> int:
        """What all adapters take on the device."""
        components = list(self._components.values())
        return sum(bound.receipt.num_bytes for component in components for bound in list(component.bound.values()))

    def carry_out(self, order: AdapterOrder, content: Callable[[], NDArray[Any]]) -> LoraReceipt | None:
        """Do what the driver orders. Raises AdapterError, and then nothing has changed."""
        match order:
            case InstallAdapter():
                return self._install(order, content)
            case DropAdapter(adapter):
                self._drop(adapter)
            case FuseAdapters(uses):
                self._fuse(uses)
        return None

    def would_change(self, component: str, uses: Sequence[Applied]) -> bool:
        """Whether `apply` has anything to do."""
        adapted = self._components.get(component)
        return (acting(uses) != adapted.holds) if adapted is not None else bool(uses)

    def apply(self, component: str, uses: Sequence[Applied]) -> None:
        """Before a request's stage: let exactly its adapters act."""
        adapted = self._components.get(component)
        if adapted is None:
            raise AdapterError(
                f"lora: expected {component} on this worker, found {', '.join(self._components) or 'none'}."
            )
        adapted.apply(uses)

    def _install(self, order: InstallAdapter, content: Callable[[], NDArray[Any]]) -> LoraReceipt:
        adapted = self._components.get(order.target)
        if adapted is None:
            raise AdapterError(
                f"lora {order.name}: expected {order.target} on this worker, found {', '.join(self._components) or 'none'}."
            )
        bound = bind(order, content(), adapted.surface, self._prefixes)
        adapted.bound[order.id] = bound
        return bound.receipt

    def _drop(self, adapter: str) -> None:
        for component in self._components.values():
            component.bound.pop(adapter, None)
            # Its last request may have left it in place; if another request is under way, that one took it off or will.
            if any(adapter == held for held, _ in component.holds) and self.busy.acquire(blocking=False):
                try:
                    component.take_off()
                finally:
                    self.busy.release()

    def _fuse(self, uses: Sequence[Applied]) -> None:
        before = {name: adapted._to_be_fused for name, adapted in self._components.items()}
        done: list[str] = []
        try:
            for name, adapted in self._components.items():
                done.append(name)
                adapted.fuse([use for use in uses if use[0] in adapted.bound])
        except BaseException:
            for name in done:
                self._components[name].fuse(before[name])
            raise


def make_rack(
    model: ModelDefinition,
    spec: RoleSpec,
    components: Mapping[str, Any],
    checkpoint: Checkpoint,
    free: Callable[[], int],
) -> AdapterRack:
    """The rack of a loaded role; one that takes nothing when the role does not denoise."""
    adapted: dict[str, AdaptedComponent] = {}
    for workflow in spec.workflows if Stage.DENOISE in spec.stages else ():
        name = model.adapted_component(workflow)
        if name in components and name not in adapted:
            module = components[name]
            surface = surface_of(model, name, module, spec.device, free)
            adapted[name] = AdaptedComponent(
                module, surface, Originals(checkpoint, name), always_write=name in spec.compile
            )
    return AdapterRack(adapted, prefixes_of(model))


def prefixes_of(model: ModelDefinition) -> list[str]:
    """The components that the keys of adapters may name."""
    return sorted({model.adapted_component(workflow) for workflow in model.workflows})


def surface_of(
    model: ModelDefinition,
    name: str,
    module: nn.Module,
    device: str,
    free: Callable[[], int],
    recipe: Recipe | None = None,
) -> Surface:
    """What adapters may change of a component. `recipe`: how it will be loaded, when `module` is not filled yet."""
    resolve, closed = model.adapter_surface(name, module)
    quantised = recipe.quantized if recipe is not None and recipe.quantization is not None else lambda tensor: False
    shapes, not_plain = parameters_of(module, quantised)
    return Surface(name, shapes, resolve, {**not_plain, **closed}, device, free)


def acting(uses: Sequence[Applied]) -> tuple[Applied, ...]:
    """Those that change anything: at scale 0 an adapter is not there."""
    return tuple((adapter, scale) for adapter, scale in uses if scale != 0.0)


def parameters_of(
    module: nn.Module, quantised: Callable[[str], bool] = lambda name: False
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """The shapes of the parameters that adapters can update, and why the modules of the others cannot be."""
    shapes: dict[str, tuple[int, ...]] = {}
    closed: dict[str, str] = {}
    for name, parameter in module.named_parameters():
        plain = type(parameter) is nn.Parameter and type(parameter.data) is Tensor and not quantised(name)
        if (
            plain
            and parameter.ndim
            and parameter.dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
        ):
            shapes[name] = tuple(parameter.shape)
        else:
            closed[name.rpartition(".")[0]] = "its weights are quantised on this worker"
    return shapes, closed
