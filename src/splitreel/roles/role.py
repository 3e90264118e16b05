"""A role: the components of some stages, loaded once, and the programs that run on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from splitreel.config import RoleSpec
from splitreel.errors import MissingComponent, SplitreelError
from splitreel.observe.logs import get_logger
from splitreel.observe.spans import Place, SpanRecorder
from splitreel.request import Stage
from splitreel.roles.adapters.check import check_adapters
from splitreel.roles.adapters.rack import AdapterRack, make_rack
from splitreel.roles.attention import Attention
from splitreel.roles.checkpoint import Checkpoint, open_checkpoint
from splitreel.roles.compiling import compile_blocks
from splitreel.roles.control import StageControl
from splitreel.roles.definition import GeometryFacts, ModelDefinition, StageProgram
from splitreel.roles.loading import LIBRARIES, load_module
from splitreel.roles.quantizing import held_tensors, try_quantization
from splitreel.roles.quiet import quiet
from splitreel.roles.results import ResultCache, result_key
from splitreel.wire import Payload

logger = get_logger(__name__)


class Role:
    """Loads and runs. Use in order: `prepare()`, `load()`, `run()`; one run at a time."""

    def __init__(self, model: ModelDefinition, spec: RoleSpec) -> None:
        self.model = model
        self.spec = spec
        self.resident: dict[str, int] = {}
        self._weights: dict[str, int] = {}
        self.components: dict[str, Any] = {}
        self.attention = Attention(spec)
        self.compiled: dict[str, str] = {}
        self._checkpoint: Checkpoint | None = None
        self._geometry: GeometryFacts | None = None
        self._programs: dict[tuple[str, Stage], StageProgram] = {}
        self._results = ResultCache(spec.prompt_cache_bytes)
        self.adapters = AdapterRack({})

    @property
    def geometry(self) -> GeometryFacts:
        """The checkpoint's geometry, known after `prepare()`."""
        if self._geometry is None:
            raise RuntimeError("prepare() has not run")
        return self._geometry

    def prepare(self) -> GeometryFacts:
        """Find the files, check that they are whole, read the geometry, try the attention backends. Loads no weight.

        Raises CheckpointError naming component and file, AdapterError for an adapter that does not fit, or WorkerNotReady for
        a backend that does not run here.
        """
        needs = self.model.components(self.spec.workflows, self.spec.stages)
        checkpoint = open_checkpoint(
            self.model.locate(self.spec.model_path),
            components=[need.name for need in needs],
            revision=self.spec.revision,
        )
        checkpoint.check(needs)
        self._geometry = self.model.read_geometry(checkpoint, self.spec.workflows)
        self._checkpoint = checkpoint
        check_adapters(self.model, self.spec, checkpoint)
        _check_device(self.spec.device)
        held = {need.name for need in needs}
        for component, kind in self.spec.memory.quantization:
            if component in held:
                try_quantization(kind, component, torch.device(self.spec.device), self.spec.torch_dtype(component))
        self.attention.choose(self.model.attention_parts(checkpoint, self.spec.workflows, self.spec.stages))
        return self._geometry

    def memory_needed(self) -> dict[str, int]:
        """Bytes that each component's weights will take, read from file headers after `prepare()`."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            raise RuntimeError("prepare() has not run")
        return {
            need.name: self.model.recipe(need.name, checkpoint, self.spec).bytes_needed(checkpoint, need.name)
            for need in self.model.components(self.spec.workflows, self.spec.stages)
            if need.weights
        }

    def memory_free(self) -> int:
        """Free bytes where the weights will go: the device's memory, or the machine's for the CPU.

        Devices that share the machine's memory may not answer ("not supported" on some GB10 drivers); the machine's is
        taken then.
        """
        if self.spec.device.startswith("cuda"):
            try:
                free, _ = torch.cuda.mem_get_info(torch.device(self.spec.device))
            except RuntimeError as error:
                logger.warning("memory of %s: %s; taking the machine's", self.spec.device, error)
            else:
                return free
        available: int = psutil.virtual_memory().available
        return available

    def load(
        self,
        report: Callable[[str, int, int, int, float], None] | None = None,
        spans: SpanRecorder | None = None,
    ) -> None:
        """Load this role's components, and nothing else. Raises MissingComponent with the original cause.

        `report(component, done, total, resident bytes, seconds)` is called after each, also after each compilation, as
        `compile.COMPONENT`. Raises WorkerNotReady when one cannot be compiled.
        """
        checkpoint, geometry = self._checkpoint, self.geometry
        if checkpoint is None:
            raise RuntimeError("prepare() has not run")
        self._set_threads()
        names = [need.name for need in self.model.components(self.spec.workflows, self.spec.stages)]
        work = [*names, *(f"compile.{name}" for name in names if name in self.spec.compile)]
        components = self.components
        for index, what in enumerate(work):
            name = what.removeprefix("compile.")
            began = time.monotonic()
            with (spans or SpanRecorder(Place("", self.spec.role, ""))).span(f"load.{what}") as attributes:
                if what == name:
                    components[name] = self._load_component(name, checkpoint)
                    self.attention.apply(name, components[name])
                    self.resident[name] = attributes["bytes"] = resident_bytes(components[name])
                else:
                    count = attributes["blocks"] = self._compile(name, components[name])
                    self.compiled[name] = f"torch.compile ({count} blocks, dynamic sizes)"
            seconds = time.monotonic() - began
            logger.info("loaded %s: %d bytes in %.2f s", what, self.resident[name], seconds)
            if report is not None:
                report(what, index + 1, len(work), self.resident[name], seconds)
        if self.spec.cache is not None:
            # After compiling, so that its hooks stay outside of what is compiled.
            for name in names:
                self.model.enable_cache(name, components[name], self.spec.cache)
        for workflow in self.spec.workflows:
            for stage in self.spec.stages:
                self._programs[workflow, stage] = self.model.build_stage(
                    stage, workflow, components, checkpoint, geometry
                )
        self.adapters = make_rack(self.model, self.spec, components, checkpoint, self.memory_free)
        self._weights = {name: weight_bytes(component) for name, component in components.items()}
        self._count_resident()

    def _load_component(self, name: str, checkpoint: Checkpoint) -> Any:
        cls = self.model.component_class(name)
        component: Any
        try:
            if issubclass(cls, torch.nn.Module):
                recipe = self.model.recipe(name, checkpoint, self.spec)
                component = load_module(recipe, checkpoint, name, torch.device(self.spec.device))
            else:
                with LIBRARIES, quiet():
                    component = cls.from_pretrained(  # type: ignore[attr-defined]
                        str(checkpoint.root), subfolder=name, local_files_only=True
                    )
                component = self.model.adapted(name, component, checkpoint, self.spec)
        except SplitreelError:
            raise
        except Exception as error:
            raise MissingComponent(
                f"{name}: expected {cls.__name__} to load from {checkpoint.root / name}, found "
                f"{type(error).__name__}: {error}",
                component=name,
                file=str(checkpoint.root / name),
            ) from error
        return component

    def _compile(self, name: str, component: Any) -> int:
        self._set_threads()
        return compile_blocks(
            name,
            self.model.repeated_blocks(name, component),
            lambda: self.model.warm_up(name, component, self.spec.device),
        )

    def step_caches(self) -> dict[str, str]:
        """The step cache of each component that has one, read off the component."""
        if self.spec.cache is None:
            return {}
        from splitreel.roles.step_cache import cache_in_force  # diffusers, which a worker imports with its model only

        found = {name: cache_in_force(component) for name, component in list(self.components.items())}
        return {name: words for name, words in found.items() if words}

    def _set_threads(self) -> None:
        if self.spec.threads is not None and torch.get_num_threads() != self.spec.threads:
            # OpenMP keeps this number per thread, so it is set where the stage runs.
            torch.set_num_threads(self.spec.threads)

    def receive(self, stage: Stage, payload: Payload) -> Payload:
        """Check a payload on arrival and bring its `on_device` fields to the device; the copies are complete.

        torch waits for the stream when it copies from pageable memory, so nothing else has to. Raises WireError.
        """
        spec = self.model.payload_spec(stage, payload.header.workflow, self.geometry)
        spec.check(payload, geometry=self.geometry.fingerprint)
        return spec.place(payload, self.spec.device)

    def run(self, stage: Stage, payload: Payload, control: StageControl) -> Payload:
        """Run one stage on a payload that `receive` gave. Raises WireError, RequestCancelled or the stage's own error."""
        workflow = payload.header.workflow
        program = self._programs.get((workflow, stage))
        if program is None:
            raise RuntimeError(f"role {self.spec.role} has no {stage} for {workflow}")
        self._set_threads()
        control.check()
        with self.adapters.busy:
            if stage is Stage.DENOISE:
                self._adapt(payload, control)
            with torch.inference_mode():
                result = self._kept_or_made(stage, program, payload, control)
        self._count_resident()
        following = stage.following
        if following is not None:
            result_spec = self.model.payload_spec(following, workflow, self.geometry)
            result_spec.check(result, geometry=self.geometry.fingerprint)
        return result

    def _kept_or_made(self, stage: Stage, program: StageProgram, payload: Payload, control: StageControl) -> Payload:
        passing = self.model.passing_values(stage)
        if passing is None or not self._results.max_bytes:
            return program(payload, control)
        with control.span("cache") as attributes:
            key = result_key(payload, passing)
            kept = self._results.get(key, payload, passing)
            attributes["cache"] = "miss" if kept is None else "hit"
        if kept is not None:
            return kept
        return self._results.put(key, program(payload, control))

    def _count_resident(self) -> None:
        """Bytes by component; a stage may leave more than it found (AdaLN tables, adapters), but never other weights."""
        for name, component in list(self.components.items()):
            self.resident[name] = self._weights[name] + beside_bytes(component)
        if self.adapters.num_bytes:
            self.resident["adapters"] = self.adapters.num_bytes
        else:
            self.resident.pop("adapters", None)

    def _adapt(self, payload: Payload, control: StageControl) -> None:
        """Let exactly the adapters act that the request was admitted with."""
        uses = [(str(adapter), float(scale)) for adapter, scale in payload.header.values.get("lora", ())]
        component = self.model.adapted_component(payload.header.workflow)
        if self.adapters.would_change(component, uses):
            with control.span("lora"):
                self.adapters.apply(component, uses)

    def unload(self) -> None:
        """Forget the components and give device memory back."""
        self._programs.clear()
        self._results.clear()
        self.components.clear()
        self.adapters = AdapterRack({})
        self.resident.clear()
        self._weights.clear()
        self.attention.clear()
        self.compiled.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _check_device(device: str) -> None:
    kind = torch.device(device).type
    if kind == "cuda" and not torch.cuda.is_available():
        raise MissingComponent(
            f"device: expected {device}, found no CUDA device (torch {torch.__version__}). Set device: cpu or run where "
            "a GPU is.",
            component="device",
            file="",
        )


def resident_bytes(component: Any) -> int:
    """Bytes that a component holds: its weights, and what it says it holds beside them."""
    return weight_bytes(component) + beside_bytes(component)


def weight_bytes(component: Any) -> int:
    """Bytes of parameters and buffers, 0 without any. It walks all modules (10 ms for a text encoder), so not per stage."""
    if not isinstance(component, torch.nn.Module):
        return 0
    seen: dict[int, int] = {}
    for parameter in (*component.parameters(), *component.buffers()):
        for tensor in held_tensors(parameter):
            storage = tensor.untyped_storage()
            seen[storage.data_ptr() or id(tensor)] = storage.nbytes()
    return sum(seen.values())


def beside_bytes(component: Any) -> int:
    """Bytes that a component says it holds beside its weights."""
    held_beside = getattr(component, "held_beside", None)
    return held_beside() if held_beside is not None else 0
