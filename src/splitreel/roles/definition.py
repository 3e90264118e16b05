"""What a model brings so that roles can load and run it. `h3` is the first to do so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from splitreel.config import CacheSpec, RoleSpec
from splitreel.request import Stage
from splitreel.roles.adapters.bind import Resolve
from splitreel.roles.checkpoint import Checkpoint, ComponentFiles
from splitreel.roles.control import StageControl
from splitreel.roles.loading import Recipe
from splitreel.wire import Payload, PayloadSpec


class GeometryFacts(Protocol):
    """The facts of a checkpoint that every role must agree on."""

    @property
    def fingerprint(self) -> str:
        """A short digest; equal exactly when all facts are equal."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain data, to show where two checkpoints differ."""
        ...


@dataclass(frozen=True)
class AttentionPart:
    """Attention layers that one setting chooses the backend of.

    `name` is shown to people; `setting` is the field of `AttentionSpec`; the layers lie under `path` in `component`.
    """

    name: str
    setting: str
    component: str
    path: str
    head_size: int


class StageProgram(Protocol):
    """One stage of one workflow, ready to run on the components it was built with."""

    def __call__(self, payload: Payload, control: StageControl) -> Payload:
        """Turn the stage's input payload into its output payload."""
        ...


class ModelDefinition(Protocol):
    """A model: its workflows, its cut, its payloads and the programs of its stages. Must pickle."""

    @property
    def name(self) -> str:
        """Shown to people."""
        ...

    @property
    def schema(self) -> tuple[int, int]:
        """Version of its payloads, (major, minor)."""
        ...

    @property
    def workflows(self) -> tuple[str, ...]:
        """Every workflow it has."""
        ...

    def locate(self, path: str) -> str:
        """The directory or hub id that `model.path` stands for on this machine; makes a built-in checkpoint if asked."""
        ...

    def components(self, workflows: Sequence[str], stages: Sequence[Stage]) -> tuple[ComponentFiles, ...]:
        """The components that these stages of these workflows need, and the files each must have."""
        ...

    def read_geometry(self, checkpoint: Checkpoint, workflows: Sequence[str]) -> GeometryFacts:
        """Read the facts from the components' configurations. Raises CheckpointError."""
        ...

    def attention_parts(
        self, checkpoint: Checkpoint, workflows: Sequence[str], stages: Sequence[Stage]
    ) -> tuple[AttentionPart, ...]:
        """Which layers of these stages each attention setting is for. Reads configurations only."""
        ...

    def repeated_blocks(self, name: str, component: Any) -> list[Any]:
        """The modules of a loaded component that run one after the other and hold most of its weights."""
        ...

    def warm_up(self, name: str, component: Any, device: str) -> None:
        """Run a component on `device`, once, on a small made-up input, through all its repeated blocks."""
        ...

    def enable_cache(self, name: str, component: Any, cache: CacheSpec) -> bool:
        """Hook a step cache into a loaded component; False when it is none that takes steps."""
        ...

    def component_class(self, name: str) -> type:
        """The class that a component is loaded with."""
        ...

    def recipe(self, name: str, checkpoint: Checkpoint, spec: RoleSpec) -> Recipe:
        """How a component with weights is built and filled in a role."""
        ...

    def adapted(self, name: str, component: Any, checkpoint: Checkpoint, spec: RoleSpec) -> Any:
        """What is used in place of a component without weights that was just loaded. Raises CheckpointError."""
        ...

    def payload_spec(self, stage: Stage, workflow: str, geometry: Any) -> PayloadSpec:
        """What `stage` takes in."""
        ...

    def passing_values(self, stage: Stage) -> Set[str] | None:
        """The request values that `stage` hands on and that decide nothing of its result; None: keep no results of it."""
        ...

    def adapted_component(self, workflow: str) -> str:
        """The component that adapters change for requests of a workflow; "" when the model takes none."""
        ...

    def adapter_surface(self, name: str, component: Any) -> tuple[Resolve, Mapping[str, str]]:
        """How adapters' files name the component's modules, and why some of these cannot be changed (module: why)."""
        ...

    def build_stage(
        self, stage: Stage, workflow: str, components: Mapping[str, Any], checkpoint: Checkpoint, geometry: Any
    ) -> StageProgram:
        """Make the program of one stage from loaded components."""
        ...
