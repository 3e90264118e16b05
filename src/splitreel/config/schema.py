"""The config file's sections and what each setting means."""

from __future__ import annotations

import difflib
import re
import reprlib
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from splitreel.config.adapters import LoraConfig
from splitreel.config.attention import AttentionConfig
from splitreel.config.memory import MemoryConfig
from splitreel.config.presets import DEFAULT_STEPS, PRESETS, Preset
from splitreel.config.section import Section
from splitreel.config.serving import ServeConfig
from splitreel.config.slices import RoleSpec
from splitreel.config.speed import CacheConfig, CompileConfig
from splitreel.request import Stage

DTYPES = ("bfloat16", "float32", "float16")
Workflow = Literal["t2va", "fl2va", "ref2va"]
DtypeName = Literal["bfloat16", "float32", "float16"]

# The names that a role may have without saying which stages it holds.
STAGES_OF_ROLE: dict[str, tuple[Stage, ...]] = {
    "encoder_decoder": (Stage.ENCODE, Stage.DECODE),
    "encoder_dit": (Stage.ENCODE, Stage.DENOISE),
    "dit_decoder": (Stage.DENOISE, Stage.DECODE),
    "encoder": (Stage.ENCODE,),
    "dit": (Stage.DENOISE,),
    "dit_ref": (Stage.DENOISE,),
    "decoder": (Stage.DECODE,),
    "all": (Stage.ENCODE, Stage.DENOISE, Stage.DECODE),
}


def _known_workflows(value: Any) -> Any:
    """One message about a wrong workflow, where a union would give one for each of its halves."""
    names = value if isinstance(value, list) else [value]
    known = get_args(Workflow)
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise ValueError(f"expected {', '.join(known)} or a list of them, found {reprlib.repr(value)}")
    return value


def _known_preset(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value in PRESETS):
        return value
    near = difflib.get_close_matches(str(value), PRESETS, n=1)
    hint = f". Did you mean {near[0]}" if near else ""
    raise ValueError(f"expected one of {', '.join(PRESETS)}, found {reprlib.repr(value)}{hint}")


def _known_dtypes(value: Any) -> Any:
    """Likewise for a dtype, or a mapping of components to dtypes."""
    names = list(value.values()) if isinstance(value, dict) else [value]
    wrong = [name for name in names if name not in DTYPES]
    if wrong or not names:
        raise ValueError(f"expected one of {', '.join(DTYPES)}, found {reprlib.repr(wrong[0] if wrong else value)}")
    if isinstance(value, dict) and "default" not in value:
        raise ValueError("expected a `default` among the components, e.g. {default: bfloat16, vae: float32}")
    return value


class ModelConfig(Section):
    """Which model, and what it is asked to make."""

    path: str = Field(description="A local directory, a hub id such as MiniMaxAI/MiniMax-H3, or tiny.", min_length=1)
    workflow: Annotated[Workflow | list[Workflow], BeforeValidator(_known_workflows)] = Field(
        default="t2va", description="t2va (text), fl2va (first/last keyframe), ref2va (references), or a list."
    )
    revision: str | None = Field(default=None, description="A hub branch, tag or commit.")
    preset: Annotated[str, BeforeValidator(_known_preset)] | None = Field(
        default=None,
        description="h3, fasth3-4step or fasth3-8step-v2: steps and sparse attention that the checkpoint was made for, where "
        "nothing else is said; its schedulers' shifts are checked.",
    )

    @property
    def workflows(self) -> tuple[str, ...]:
        """The workflows served, as a tuple."""
        return (self.workflow,) if isinstance(self.workflow, str) else tuple(dict.fromkeys(self.workflow))

    @property
    def default_steps(self) -> int:
        """Steps of a request that names none."""
        return PRESETS[self.preset].steps if self.preset is not None else DEFAULT_STEPS


def is_head_address(text: str) -> bool:
    """Whether it has the form HOST:PORT."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536


_DEVICE = re.compile(r"^(cpu|cuda(:\d+)?)$")


class ClusterConfig(Section):
    """Where the roles run."""

    address: str = Field(
        default="auto",
        description="HOST:PORT of a Ray head, auto (a running Ray on this machine or RAY_ADDRESS), embedded (start two "
        "nodes on this machine for this session), or local (no Ray: everything in this process).",
        min_length=1,
    )

    @field_validator("address")
    @classmethod
    def _address_form(cls, value: str) -> str:
        words = ("auto", "embedded", "local")
        if value in words or is_head_address(value):
            return value
        near = difflib.get_close_matches(value, words, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"expected HOST:PORT, auto, embedded or local, found {value!r}.{hint}")

    transport: Literal["object_store", "nixl"] = Field(
        default="object_store",
        description="How payloads go from worker to worker: through Ray's object store, or nixl: read from the producer's "
        "memory, by RDMA where there is some (extra nixl, on every node; alpha in Ray).",
    )
    nodes: int = Field(default=2, ge=1, le=16, description="embedded only: how many nodes to start.")

    @model_validator(mode="after")
    def _transport_has_a_way(self) -> ClusterConfig:
        if self.address == "local" and self.transport != "object_store":
            raise ValueError(
                f"transport: expected none with address local, where all is in one process, found {self.transport}"
            )
        return self


class RoleConfig(Section):
    """One role: its stages, where its workers run, and how they compute."""

    stages: list[Stage] | None = Field(default=None, description="Needed only when the role's name does not say it.")
    workflows: list[Workflow] | None = Field(default=None, description="Fewer workflows than the model section names.")
    node: str | None = Field(default=None, description="Address, host name, node id or label (key=value) of the node.")
    nodes: list[str] | None = Field(default=None, description="Several nodes: one worker on each.")
    device: str = Field(
        default="cpu", description="cpu, cuda or cuda:NUMBER.", json_schema_extra={"pattern": _DEVICE.pattern}
    )
    num_gpus: float | None = Field(default=None, ge=0, description="Default: 1 for cuda, 0 for cpu.")
    dtype: Annotated[DtypeName | dict[str, DtypeName], BeforeValidator(_known_dtypes)] = Field(
        default="bfloat16", description="One for all components, or per component with a `default`."
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="CPU threads of the stage. Results may differ in the last bit between counts.",
    )
    prompt_cache_bytes: int = Field(
        default=1 << 28,
        ge=0,
        description="Where encode runs: bytes of prompt states and condition latents kept (5 MB for 512 text rows), so "
        "that the same prompt with another seed skips the encoder. 0 keeps none.",
    )
    model_path: str | None = Field(default=None, description="Where this role's node keeps the model, if elsewhere.")
    attention: AttentionConfig = Field(default=AttentionConfig(), description="Attention backends.")
    memory: MemoryConfig = Field(default=MemoryConfig(), description="What stays in memory.")
    cache: CacheConfig | None = Field(default=None, description="Steps that reuse earlier work. Changes the film.")
    compile: CompileConfig = Field(default=CompileConfig(), description="torch.compile. Changes last bits.")
    env: dict[str, str | None] = Field(
        default_factory=dict,
        description="Environment variables of the worker; null: the driver's value is not forwarded.",
    )

    @field_validator("device")
    @classmethod
    def _device_form(cls, value: str) -> str:
        if _DEVICE.fullmatch(value):
            return value
        hint = " Did you mean cuda?" if value in ("gpu", "nvidia") else ""
        raise ValueError(f"expected cpu, cuda or cuda:NUMBER, found {value!r}.{hint}")

    @field_validator("stages", mode="before")
    @classmethod
    def _stage_names(cls, value: Any) -> Any:
        if isinstance(value, list):
            for item in value:
                if item not in list(Stage):
                    raise ValueError(f"expected stages out of {', '.join(Stage)}, found {item!r}")
            return [Stage(item) for item in value]
        return value

    @property
    def placements(self) -> tuple[str | None, ...]:
        """One entry per worker: the node asked for, None for any."""
        return tuple(self.nodes) if self.nodes is not None else (self.node,)

    @property
    def gpus(self) -> float:
        """GPUs that each worker takes."""
        return self.num_gpus if self.num_gpus is not None else float(self.device.startswith("cuda"))


class EngineConfig(Section):
    """Bounds and deadlines. Times in seconds."""

    max_in_flight: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Requests between encode's start and decode's end. Default: look_ahead + 1 for each DiT worker, and 1.",
    )
    # On the virtual clock, stage times 42 : 92 : 94 (a Spark at 480p) on two workers: 84 % of the bound with 1, 98 % with
    # 2, all of it with 3; over 150 random triples 98.3, 99.5 and 99.9 %. An encoded request holds some 10 MB.
    look_ahead: int = Field(
        default=3, ge=1, le=64, description="Requests that may be encoded ahead for each DiT worker while it is busy."
    )
    parallel_decode: int = Field(
        default=1,
        ge=1,
        le=64,
        description="At most so many workers of one role decode a film together, those that are idle when its decode "
        "starts: each some of its chunks, bit for bit as one alone.",
    )
    max_waiting: int = Field(
        default=64, ge=0, description="Admitted requests that have not started; one more is refused."
    )
    retries: int = Field(default=1, ge=0, le=10, description="How often a stage runs again after its worker was lost.")
    start_timeout: float = Field(default=1800.0, gt=0, description="Until every role is resident.")
    request_timeout: float = Field(default=7200.0, gt=0, description="From the start of encode to the film.")
    stage_timeout: float = Field(default=3600.0, gt=0, description="For one stage.")
    # Looked at between a transformer's blocks: 0.5 s each for 5 s at 832x480 on a Spark, some 10 s for the longest film at
    # 1344x768. To load 66 GB again takes minutes.
    stop_timeout: float = Field(
        default=120.0, gt=0, description="For a stage that was told to stop; then its worker is replaced."
    )
    worker_timeout: float = Field(
        default=300.0, gt=0, description="Until a worker's process has started, imported torch and checked its files."
    )
    hop_timeout: float = Field(default=120.0, gt=0, description="Until a payload has arrived in the next worker.")
    probe_timeout: float = Field(default=20.0, gt=0, description="For the test object between two roles at start.")
    heartbeat: float = Field(default=5.0, gt=0, description="How often a worker must answer.")
    lost_after: float = Field(
        default=30.0, gt=0, description="Silence, while a stage runs, after which its worker counts as lost."
    )
    restarts: int = Field(default=3, ge=0, le=100, description="Tries to restart a lost worker before giving it up.")
    restart_pause: float = Field(
        default=1.0, ge=0, description="Before the first try; doubled for each further one, up to 60."
    )


class TraceConfig(Section):
    """Where spans go, and what else is done to get them. Whatever is set here, the same stages and hops run."""

    file: str | None = Field(
        default=None, min_length=1, description="A JSONL file, begun anew by each session; for `splitreel trace`."
    )
    otlp_endpoint: str | None = Field(
        default=None, pattern=r"^https?://", description="Where to send spans, such as http://localhost:4318/v1/traces."
    )
    sync: bool = Field(
        default=False, description="Wait for the CUDA device at both ends of each span: exact steps, somewhat slower."
    )
    nvtx: bool = Field(default=False, description="Mark the spans as NVTX ranges where a CUDA device is.")
    record: bool = Field(default=True, description="false: no spans at all, to measure what they cost.")


class Config(Section):
    """The whole file."""

    model: ModelConfig
    cluster: ClusterConfig = ClusterConfig()
    roles: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], RoleConfig] = Field(min_length=1)
    engine: EngineConfig = EngineConfig()
    trace: TraceConfig = TraceConfig()
    serve: ServeConfig = ServeConfig()
    lora: dict[Annotated[str, Field(min_length=1)], LoraConfig] = Field(default={}, description="Adapters, by name.")

    @model_validator(mode="after")
    def _whole(self) -> Config:
        for name, role in self.roles.items():
            stages = self.stages_of(name)
            if len(set(stages)) != len(stages) or not stages:
                raise ValueError(f"roles.{name}.stages: expected each stage once, found {list(stages)}")
            if role.node is not None and role.nodes is not None:
                raise ValueError(f"roles.{name}: expected node or nodes, found both")
            if role.nodes is not None and not role.nodes:
                raise ValueError(f"roles.{name}.nodes: expected at least one node, found an empty list")
            self._parts_are_there(name, role, stages)
            extra = set(role.workflows or ()) - set(self.model.workflows)
            if extra:
                raise ValueError(
                    f"roles.{name}.workflows: expected some of model.workflow ({', '.join(self.model.workflows)}), found "
                    f"{', '.join(sorted(extra))}"
                )
        for workflow in self.model.workflows:
            for stage in Stage:
                if not any(
                    stage in self.stages_of(name) and workflow in (role.workflows or self.model.workflows)
                    for name, role in self.roles.items()
                ):
                    raise ValueError(
                        f"roles: expected one that holds {stage} for {workflow}, found none among {', '.join(self.roles)}"
                    )
        return self

    @staticmethod
    def _parts_are_there(name: str, role: RoleConfig, stages: tuple[Stage, ...]) -> None:
        """What is asked for of a part that the role does not have is a mistake, not something to ignore."""
        plain = (None, "native", "auto")
        attention, memory = role.attention, role.memory
        for setting, found, asked, stage in (
            ("attention.backend", attention.backend, attention.backend not in plain, Stage.DENOISE),
            ("attention.refiner", attention.refiner, attention.refiner not in plain, Stage.DENOISE),
            ("attention.vae", attention.vae, attention.vae not in plain, Stage.DECODE),
            ("attention.vsa", "it", attention.vsa is not None, Stage.DENOISE),
            ("cache", role.cache and role.cache.kind, role.cache is not None, Stage.DENOISE),
            ("compile.transformer", True, role.compile.transformer, Stage.DENOISE),
            ("compile.text_encoder", True, role.compile.text_encoder, Stage.ENCODE),
            ("compile.vae", True, role.compile.vae, Stage.DECODE),
            ("memory.text_encoder", memory.text_encoder, memory.text_encoder != "used", Stage.ENCODE),
            ("memory.adaln", memory.adaln, memory.adaln != "projections", Stage.DENOISE),
            *(
                (f"memory.quantization.{part}", kind, True, Stage.ENCODE if part == "text_encoder" else Stage.DENOISE)
                for part, kind in memory.quantization.items()
            ),
        ):
            if asked and stage not in stages:
                raise ValueError(
                    f"roles.{name}.{setting}: expected on a role that holds {stage}, found {found} on one that "
                    f"holds {', '.join(stages)}"
                )

    @property
    def max_in_flight(self) -> int:
        """The bound in force: for each DiT worker one that denoises and those that look ahead, and one that decodes."""
        if self.engine.max_in_flight is not None:
            return self.engine.max_in_flight
        dits = sum(len(role.placements) for name, role in self.roles.items() if Stage.DENOISE in self.stages_of(name))
        return (self.engine.look_ahead + 1) * dits + 1

    def stages_of(self, role: str) -> tuple[Stage, ...]:
        """The stages that a role holds."""
        stages = self.roles[role].stages
        if stages is not None:
            return tuple(stages)
        if role not in STAGES_OF_ROLE:
            raise ValueError(
                f"roles.{role}.stages: expected the stages of this role, e.g. [encode, decode]. Only these names imply "
                f"them: {', '.join(STAGES_OF_ROLE)}"
            )
        return STAGES_OF_ROLE[role]

    def role_spec(self, role: str) -> RoleSpec:
        """The slice that a worker of `role` gets."""
        settings = self.roles[role]
        preset: Preset | None = None
        if self.model.preset is not None and Stage.DENOISE in self.stages_of(role):
            preset = PRESETS[self.model.preset]
        dtypes = {"default": settings.dtype} if isinstance(settings.dtype, str) else dict(settings.dtype)
        return RoleSpec(
            role=role,
            stages=self.stages_of(role),
            workflows=tuple(settings.workflows or self.model.workflows),
            model_path=settings.model_path or self.model.path,
            revision=self.model.revision,
            device=settings.device,
            dtypes=tuple(sorted(dtypes.items())),
            threads=settings.threads,
            prompt_cache_bytes=settings.prompt_cache_bytes,
            attention=settings.attention.spec(preset.vsa if preset else None),
            schedule=preset.schedule if preset else None,
            transport=self.cluster.transport,
            memory=settings.memory.spec(),
            cache=settings.cache.spec() if settings.cache is not None else None,
            compile=settings.compile.components(),
            trace_record=self.trace.record,
            trace_sync=self.trace.sync,
            trace_nvtx=self.trace.nvtx,
        )
