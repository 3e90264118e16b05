"""What each worker needs against what its node has: verdict, the named shortfall, and ways out that were tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from splitreel.config import STAGES_OF_ROLE, Config, MemorySpec, RoleConfig
from splitreel.errors import ConfigError
from splitreel.h3.released import FilmSize
from splitreel.plan.sizes import Sizes, components_of
from splitreel.request import Stage

GB = 1_000_000_000
# One process's CUDA context, kernels and allocator slack on a device of its own memory.
CONTEXT_BYTES = 1 * GB
# Unified memory: the system and its desktop, Ray's object store as `cluster commands` sizes it, and the host side of one
# worker's process (torch, CUDA, Ray). A DGX Spark sold with 128 GB has about 115 left for models.
SYSTEM_BYTES, STORE_BYTES, PROCESS_BYTES = 9 * GB, 2 * 1024**3, 2 * GB
TIGHT = 0.05  # of the node's memory: less room than this is a warning
PROMPT_CACHE_BYTES: int = RoleConfig().prompt_cache_bytes


@dataclass(frozen=True)
class Machine:
    """One GPU, or one node whose CPU and GPU share memory (`unified`), and its bytes."""

    name: str
    bytes: int
    unified: bool = False

    def usable(self, workers: int) -> int:
        """What weights and activations of so many worker processes may take together."""
        taken = SYSTEM_BYTES + STORE_BYTES + workers * PROCESS_BYTES if self.unified else workers * CONTEXT_BYTES
        return max(0, self.bytes - taken)

    def prompt_cache(self, stages: Sequence[Stage], num_bytes: int = PROMPT_CACHE_BYTES) -> int:
        """What of a worker's kept prompts is in this memory: they are on the CPU, so nothing of them on a GPU of its own."""
        return num_bytes if self.unified and Stage.ENCODE in stages else 0


@dataclass(frozen=True)
class WorkerPlan:
    """A worker: its role, stages, workflows, dtype per component (with a default), memory settings, and its machine.

    `prompt_cache`: bytes of results that it may keep in the memory that is counted.
    """

    role: str
    stages: tuple[Stage, ...]
    workflows: tuple[str, ...]
    machine: str
    dtypes: tuple[tuple[str, str], ...] = (("default", "bfloat16"),)
    memory: MemorySpec = field(default_factory=MemorySpec)
    prompt_cache: int = 0

    def components(self, sizes: Sizes) -> dict[str, int]:
        """Bytes of each component that it holds, of the adapters on them, and of the results that it keeps."""
        dtypes = dict(self.dtypes)
        names = components_of(self.stages, self.workflows)
        held = {
            name: sizes.bytes_of(name, dtypes.get(name, dtypes["default"]), self.memory, self.workflows)
            for name in names
        }
        adapters = {f"lora {item.name}": item.num_bytes for item in sizes.adapters if item.target in names}
        return held | adapters | ({"prompt_cache": self.prompt_cache} if self.prompt_cache else {})


@dataclass(frozen=True)
class Need:
    """A worker's bytes: weights by component, and the most that any of its stages takes beside them."""

    worker: WorkerPlan
    weights: dict[str, int]
    activations: dict[str, int]

    @property
    def total(self) -> int:
        """Weights and the largest stage: a worker runs one stage at a time."""
        return sum(self.weights.values()) + max(self.activations.values())


@dataclass(frozen=True)
class Load:
    """One machine with its workers."""

    machine: Machine
    needs: tuple[Need, ...]

    @property
    def needed(self) -> int:
        """Bytes of all its workers."""
        return sum(need.total for need in self.needs)

    @property
    def usable(self) -> int:
        """Bytes that its workers may take."""
        return self.machine.usable(len(self.needs))

    @property
    def room(self) -> int:
        """What is left; negative is the shortfall."""
        return self.usable - self.needed

    @property
    def verdict(self) -> str:
        """fits, tight or short."""
        if self.room < 0:
            return "short"
        return "tight" if self.room < TIGHT * self.machine.bytes and self.needs else "fits"


@dataclass(frozen=True)
class Forecast:
    """All machines, for films of one size. `ways_out`: each was computed, and fits."""

    loads: tuple[Load, ...]
    film: FilmSize
    sizes: Sizes
    ways_out: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether no machine is short."""
        return all(load.room >= 0 for load in self.loads)


def parse_machine(text: str) -> Machine:
    """`NAME=GB[:unified]`, for example 192.168.23.1=128:unified or gpu0=80GiB. Raises ConfigError."""
    matched = re.fullmatch(r"(.+)=([0-9]+(?:\.[0-9]+)?)(GB|GiB)?(:unified)?", text.strip())
    if matched is None or not 0 < float(matched[2]) <= 1e6:
        raise ConfigError(
            f"--node: expected NAME=GB or NAME=GB:unified, found {text[:80]!r}. For example --node a=128:unified --node b=80GiB."
        )
    name, amount, unit, unified = matched.groups()
    return Machine(name, round(float(amount) * (1024**3 if unit == "GiB" else GB)), unified is not None)


def workers_of(config: Config, machines: Sequence[Machine], seats: Sequence[str] | None = None) -> list[WorkerPlan]:
    """The config's workers on the machines they name; those that name none take the others in order.

    `seats`: the machine of each worker in the config's order, where a cluster has said it. Raises ConfigError for a node
    that no machine is given for.
    """
    wishes = [(name, node) for name, role in config.roles.items() for node in role.placements]
    named = {node for _, node in wishes if node is not None}
    spare = [machine.name for machine in machines if machine.name not in named]
    found = []
    for index, (role, node) in enumerate(wishes):
        if seats is not None:
            where = seats[index]
        elif node is None:
            where = spare.pop(0) if spare else machines[-1].name
        elif node in {machine.name for machine in machines}:
            where = node
        else:
            known = ", ".join(machine.name for machine in machines)
            raise ConfigError(
                f"roles.{role}: expected the memory of node {node}, found only that of {known}. Add --node {node}=GB."
            )
        spec = config.role_spec(role)
        machine = next((each for each in machines if each.name == where), None)
        if spec.device == "cpu" and machine is not None:
            machine = replace(machine, unified=True)
        cache = machine.prompt_cache(spec.stages, spec.prompt_cache_bytes) if machine is not None else 0
        found.append(WorkerPlan(role, spec.stages, spec.workflows, where, spec.dtypes, spec.memory, cache))
    return found


def forecast(
    workers: Sequence[WorkerPlan], machines: Sequence[Machine], sizes: Sizes, film: FilmSize, *, search: bool = True
) -> Forecast:
    """Set needs against memory; with `search`, look for ways out where something is short."""
    loads = tuple(
        Load(machine, tuple(need_of(worker, sizes, film) for worker in workers if worker.machine == machine.name))
        for machine in machines
    )
    plain = Forecast(loads, film, sizes)
    if plain.fits or not search:
        return plain
    from splitreel.plan.ways_out import ways_out  # which makes forecasts itself

    return replace(plain, ways_out=tuple(ways_out(workers, machines, sizes, film)))


def best_layout(
    machines: Sequence[Machine], sizes: Sizes, film: FilmSize, workflows: Sequence[str], dtype: str = "bfloat16"
) -> Forecast:
    """The layout to take on these machines: the first that fits of those below, with a DiT on each further machine.

    encoder_decoder and dit; encoder and dit_decoder; three roles; encoder_dit and decoder; everything on one machine.
    Where none fits, the first that the number of machines allows, with its shortfalls.
    """
    fitting = next(fitting_layouts(machines, sizes, film, workflows, dtype), None)
    if fitting is not None:
        return fitting
    roles = ("encoder_decoder", "dit") if len(machines) > 1 else ("all",)
    rest = ["dit"] * (len(machines) - len(roles)) if len(machines) > 1 else []
    workers = [
        plain_worker(role, workflows, machine, dtype) for role, machine in zip([*roles, *rest], machines, strict=True)
    ]
    return forecast(workers, machines, sizes, film)


PARTITIONS = (
    ("encoder_decoder", "dit"),
    ("encoder", "dit_decoder"),
    ("encoder", "dit", "decoder"),
    ("encoder_dit", "decoder"),
    ("all",),
)


def cuts(workflows: Sequence[str]) -> Iterator[tuple[tuple[str, tuple[str, ...]], ...]]:
    """Partitions into roles with their workflows. Where both transformers are needed, each may have a worker of its own."""
    plain = tuple(name for name in workflows if name != "ref2va")
    for roles in PARTITIONS:
        yield tuple((role, tuple(workflows)) for role in roles)
        if plain and len(plain) < len(workflows) and "dit" in roles:
            others = tuple((role, tuple(workflows)) for role in roles if role != "dit")
            yield (*others, ("dit", plain), ("dit_ref", ("ref2va",)))


def fitting_layouts(
    machines: Sequence[Machine],
    sizes: Sizes,
    film: FilmSize,
    workflows: Sequence[str],
    dtype: str = "bfloat16",
    change: Callable[[WorkerPlan], WorkerPlan] = lambda worker: worker,
) -> Iterator[Forecast]:
    """Layouts that fit, with every worker as `change` makes it. Each role goes to the smallest machine that holds it,
    which leaves the larger ones.
    """

    def planned(role: str, served: Sequence[str], machine: Machine | None) -> WorkerPlan:
        return change(plain_worker(role, served, machine, dtype))

    def total(role: str, served: Sequence[str], machine: Machine | None = None) -> int:
        return need_of(planned(role, served, machine), sizes, film).total

    for cut in cuts(workflows):
        if len(cut) > len(machines):
            continue
        free = sorted(machines, key=lambda machine: machine.usable(1))
        workers = []
        for role, served in sorted(cut, key=lambda item: -total(*item)):
            fitting = next((machine for machine in free if machine.usable(1) >= total(role, served, machine)), None)
            if fitting is None:
                break
            free.remove(fitting)
            workers.append(planned(role, served, fitting))
        else:
            role, served = next(item for item in cut if Stage.DENOISE in STAGES_OF_ROLE[item[0]])
            workers += [
                planned(role, served, machine) for machine in free if machine.usable(1) >= total(role, served, machine)
            ]
            yield forecast(workers, machines, sizes, film, search=False)


def plain_worker(
    role: str, workflows: Sequence[str], machine: Machine | None = None, dtype: str = "bfloat16"
) -> WorkerPlan:
    """A worker with the default settings; without a machine, one that keeps no prompts."""
    stages = STAGES_OF_ROLE[role]
    name, cache = (machine.name, machine.prompt_cache(stages)) if machine is not None else ("", 0)
    return WorkerPlan(role, stages, tuple(workflows), name, (("default", dtype),), prompt_cache=cache)


def need_of(worker: WorkerPlan, sizes: Sizes, film: FilmSize) -> Need:
    """Its bytes for films of this size."""
    activations = {str(stage): film.activation_bytes(stage, sizes.dims) for stage in worker.stages}
    return Need(worker, worker.components(sizes), activations)


def describe_layout(found: Forecast) -> str:
    """For example `encoder on a, dit_decoder on b`."""
    return ", ".join(f"{need.worker.role} on {load.machine.name}" for load in found.loads for need in load.needs)


def shown(num_bytes: float) -> str:
    """66.3 GB; small amounts in MB."""
    return f"{num_bytes / GB:.1f} GB" if abs(num_bytes) >= 0.1 * GB else f"{num_bytes / 1e6:.1f} MB"
