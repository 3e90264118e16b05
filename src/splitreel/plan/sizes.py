"""How large a checkpoint's components are: from its files' headers, or from the shipped table of the release."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from splitreel.config import MemorySpec
from splitreel.errors import CheckpointError
from splitreel.h3.released import RELEASED, REPOSITORY, STAGE_COMPONENTS, Dims, FilmSize, Values, table_bytes
from splitreel.h3.residency import form, is_adaln, is_gate
from splitreel.request import GenerateRequest, Stage
from splitreel.roles.checkpoint import INDEX_FILE, Checkpoint, cached_checkpoint, check_safetensors

RELEASE = REPOSITORY
ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class AdapterSize:
    """An adapter that workers with `target` hold beside it, and its bytes."""

    name: str
    target: str
    num_bytes: int


@dataclass(frozen=True)
class Sizes:
    """Components by name, the dimensions of the model, and where both were read.

    `gates`: whether gates for sparse attention are loaded, where the files hold any. `adapters`: loaded by every session.
    """

    values: dict[str, Values]
    dims: Dims
    source: str
    gates: bool = False
    adapters: tuple[AdapterSize, ...] = ()

    def bytes_of(
        self, component: str, dtype: str, memory: MemorySpec | None = None, workflows: Sequence[str] = ()
    ) -> int:
        """Bytes of a component once loaded in a dtype, with a role's memory settings and for its workflows."""
        memory, item_size = memory or MemorySpec(), ITEM_SIZES[dtype]
        tables = table_bytes(component, workflows, memory, self.dims, item_size)
        values = self.values[component] if self.gates else self.values[component].without_gates()
        return values.bytes_in(item_size, memory, dict(memory.quantization).get(component)) + tables


def film_size(
    request: GenerateRequest, text_rows: int, workflows: Sequence[str], dims: Dims
) -> tuple[FilmSize, tuple[str, ...]]:
    """The film of a request's size, and what was rounded; the shortest at the release's canvas where it says none.

    With `fl2va` it has two keyframes of its canvas. Raises InvalidRequest, in the words that refuse a request.
    """
    limits, default = dims.limits, FilmSize()
    if request.height is None or request.width is None:
        height, width = (
            side // limits.canvas_multiple * limits.canvas_multiple for side in (default.height, default.width)
        )
    else:
        height, width = request.height, request.width
    limits.check_canvas(height, width)
    frames, notes = limits.legal_num_frames()[0], tuple[str, ...]()
    if request.num_frames is not None:
        frames, notes = limits.settle_num_frames(request.num_frames, "num_frames", str(request.num_frames))
    keyframes = 2 * (height // limits.canvas_multiple) * (width // limits.canvas_multiple)
    conditions = keyframes if "fl2va" in workflows else 0
    return FilmSize(height, width, frames, text_rows, conditions, "ref2va" in workflows), notes


def components_of(stages: Sequence[Stage], workflows: Sequence[str]) -> tuple[str, ...]:
    """The components with weights that a worker holds, in loading order."""
    needed = {name for workflow in workflows for stage in stages for name in STAGE_COMPONENTS[workflow][stage]}
    order = ("audio_vae", "vae", "text_encoder", "transformer", "transformer_ref")
    return tuple(name for name in order if name in needed)


def sizes_of(path: str, workflows: Sequence[str], *, revision: str | None = None, online: bool = False) -> Sizes:
    """Sizes of a local directory, of what the hub's cache holds, with `online` of what the hub says, or of the release.

    Reads headers only. `Sizes.source` says which it was, and why it was not the one before. Raises CheckpointError where
    a file is absent, cut off, or the model is neither here nor known.
    """
    folder = Path(path).expanduser()
    if path.partition(":")[0] == "tiny":
        from splitreel.h3.model import MiniMaxH3  # makes the checkpoint, for which it needs torch

        folder = Path(MiniMaxH3().locate(path))
    if folder.is_dir():
        return read_sizes(folder, workflows)
    is_id = path.count("/") == 1 and not path.startswith((".", "/", "~"))
    problem: CheckpointError | None = None
    cached = cached_checkpoint(path, revision) if is_id else None
    if cached is not None:
        try:
            return read_sizes(cached.root, workflows)
        except CheckpointError as error:  # half of it: the hub or the table may know
            problem = error
    if is_id and online:
        try:
            return _online_sizes(path, revision, workflows)
        except CheckpointError as error:
            problem = error
    if path == REPOSITORY:
        why = f" ({problem.message.rpartition('found ')[2].rstrip('.')})" if problem is not None else ""
        return Sizes(RELEASED, Dims(), f"the shipped table of the released checkpoint{why}")
    if problem is not None:
        raise problem
    raise CheckpointError(
        f"model.path: expected a directory, a repository in the hub's cache, or {REPOSITORY}, found {path!r}. "
        "Download it first, or plan with the released sizes (--model).",
        file=path,
    )


def _online_sizes(repository: str, revision: str | None, workflows: Sequence[str]) -> Sizes:
    from splitreel.plan.hub import read_online

    headers, configs = read_online(repository, revision, components_of(tuple(Stage), workflows))
    values = {name: _values(name, tensors) for name, tensors in headers.items()}
    return Sizes(values, Dims.of_configs(configs), f"file headers of {repository}, read from the hub")


def read_sizes(folder: Path, workflows: Sequence[str]) -> Sizes:
    """Count the numbers in the safetensors headers of a local checkpoint. Raises CheckpointError."""
    checkpoint = Checkpoint(folder, str(folder))
    if not (folder / INDEX_FILE).is_file():
        raise CheckpointError(
            f"model.path: expected {INDEX_FILE} in {folder}, found none. Use the folder that holds it.",
            file=str(folder / INDEX_FILE),
        )
    names = components_of(tuple(Stage), workflows)
    values = {name: _count(checkpoint, name) for name in names}
    configs = {name: checkpoint.read_json(f"{name}/config.json", component=name) for name in names}
    return Sizes(values, Dims.of_configs(configs), f"file headers in {folder}")


def _count(checkpoint: Checkpoint, component: str) -> Values:
    files = checkpoint.weight_files(component)
    if not files:
        raise CheckpointError(
            f"{component}: expected safetensors weights in {checkpoint.root / component}, found none. Download the folder.",
            component=component,
            file=str(checkpoint.root / component),
        )
    return _values(
        component,
        (
            (name, entry["shape"])
            for path in files
            for name, entry in check_safetensors(path, component=component).items()
            if name != "__metadata__"
        ),
    )


def _values(component: str, tensors: Iterable[tuple[str, Sequence[int]]]) -> Values:
    """Count the numbers in tensors of these names and shapes."""
    plain = pinned = unread = adaln = matrices = rows = gates = gate_rows = 0
    for name, shape in tensors:
        count = math.prod(shape)
        held = form(component, name, MemorySpec())
        plain += 0 if held.pinned else count
        pinned += count if held.pinned else 0
        unread += 0 if held.resident else count
        projection = component.startswith("transformer") and is_adaln(name)
        adaln += count if projection else 0
        if held.matrix and held.resident and not projection:
            matrices += count
            rows += shape[0]
        if component.startswith("transformer") and is_gate(name):
            gates += count
            gate_rows += shape[0]
    return Values(plain, pinned, unread, adaln, matrices, rows, gates, gate_rows)
