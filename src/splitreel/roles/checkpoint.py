"""Where a model's files are, and whether they are whole. Nothing here reads weights."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitreel.errors import CheckpointError, IncompleteCheckpoint, MissingComponent

logger = logging.getLogger(__name__)

INDEX_FILE = "modular_model_index.json"
# Small files that every role reads, whatever it loads: the index and each component's configuration.
METADATA_PATTERNS = (INDEX_FILE, "*/config.json", "*/scheduler_config.json")
_WEIGHT_STEMS = ("diffusion_pytorch_model", "model")


@dataclass(frozen=True)
class Checkpoint:
    """A model's files on this machine. `root` holds the index and one folder per component."""

    root: Path
    source: str

    def read_json(self, relative: str, *, component: str) -> dict[str, Any]:
        """A small JSON file of the checkpoint. Raises MissingComponent naming component and file."""
        path = self.root / relative
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise MissingComponent(
                f"{component}: expected the file {path}, found none. Copy or download the component's folder whole.",
                component=component,
                file=str(path),
            ) from None
        except (OSError, ValueError) as error:
            raise MissingComponent(
                f"{component}: expected JSON in {path}, found {error}. Fetch the file again.",
                component=component,
                file=str(path),
            ) from error
        if not isinstance(content, dict):
            raise MissingComponent(
                f"{component}: expected a JSON object in {path}, found {type(content).__name__}. Fetch the file again.",
                component=component,
                file=str(path),
            )
        return content

    def index(self) -> dict[str, Any]:
        """The modular index."""
        return self.read_json(INDEX_FILE, component="index")

    def weight_files(self, component: str) -> list[Path]:
        """The safetensors files of a component, those its index names or the single one. May be absent on disk."""
        folder = self.root / component
        for stem in _WEIGHT_STEMS:
            index = folder / f"{stem}.safetensors.index.json"
            if index.exists():
                weight_map = self.read_json(f"{component}/{index.name}", component=component).get("weight_map")
                if not isinstance(weight_map, dict) or not weight_map:
                    raise IncompleteCheckpoint(
                        f"{component}: expected a weight_map in {index}, found none. Fetch the file again.",
                        component=component,
                        file=str(index),
                    )
                return [folder / name for name in sorted(set(weight_map.values()))]
        for stem in _WEIGHT_STEMS:
            if (folder / f"{stem}.safetensors").exists():
                return [folder / f"{stem}.safetensors"]
        return []

    def check(self, needs: Sequence[ComponentFiles]) -> None:
        """Raise unless every file of every component is here and whole. Reads headers only, never weights."""
        for need in needs:
            self._check_component(need)

    def _check_component(self, need: ComponentFiles) -> None:
        folder = self.root / need.name
        if not folder.is_dir():
            raise MissingComponent(
                f"{need.name}: expected the folder {folder}, found none. Copy or download it.",
                component=need.name,
                file=str(folder),
            )
        for alternatives in need.files:
            if not any((folder / name).is_file() for name in alternatives):
                raise IncompleteCheckpoint(
                    f"{need.name}: expected {' or '.join(alternatives)} in {folder}, found neither."
                    if len(alternatives) > 1
                    else f"{need.name}: expected the file {folder / alternatives[0]}, found none.",
                    component=need.name,
                    file=str(folder / alternatives[0]),
                )
            for name in alternatives:
                if name.endswith(".json") and (folder / name).is_file():
                    self.read_json(f"{need.name}/{name}", component=need.name)
        if need.weights:
            files = self.weight_files(need.name)
            if not files:
                shards = len(list(folder.glob("*.safetensors")))
                found = f"{shards} shards without their index (*.safetensors.index.json)" if shards else "none"
                raise IncompleteCheckpoint(
                    f"{need.name}: expected safetensors weights in {folder}, found {found}.",
                    component=need.name,
                    file=str(folder),
                )
            for path in files:
                check_safetensors(path, component=need.name)


@dataclass(frozen=True)
class ComponentFiles:
    """What a component's folder must hold: `files` lists names, any one of each tuple will do; `weights` if it has any."""

    name: str
    files: tuple[tuple[str, ...], ...]
    weights: bool


def check_safetensors(path: Path, *, component: str) -> dict[str, Any]:
    """The file's header; raises IncompleteCheckpoint unless the file is as long as the header says."""

    def refuse(expected: str, found: str) -> IncompleteCheckpoint:
        return IncompleteCheckpoint(
            f"{component}: expected {expected} in {path}, found {found}. Copy or download the file again.",
            component=component,
            file=str(path),
        )

    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise refuse("a safetensors header", f"{size} bytes")
            if prefix == b"version ":
                raise refuse("the weights", "a Git LFS pointer (run `git lfs pull`)")
            (header_length,) = struct.unpack("<Q", prefix)
            if header_length > size - 8:
                raise refuse(f"a header of {header_length} bytes", f"a file of {size} bytes")
            header = json.loads(file.read(header_length))
        data_length = max(
            (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0
        )
    except FileNotFoundError:
        raise refuse("the weights", "no such file") from None
    except OSError as error:
        raise refuse("a readable file", str(error)) from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise refuse("a safetensors header", f"something else ({error})") from error
    expected_size = 8 + header_length + data_length
    if size != expected_size:
        raise refuse(f"{expected_size} bytes", f"{size}")
    checked: dict[str, Any] = header
    return checked


def open_checkpoint(source: str, *, components: Iterable[str], revision: str | None = None) -> Checkpoint:
    """Find the files of `components` and the metadata of all others.

    A local directory is taken as it is, whatever its index says. Anything else is a hub repository id: only the
    folders named and the small metadata files are downloaded (nothing, when HF_HUB_OFFLINE is set).
    """
    local = local_checkpoint(source)
    return local if local is not None else _from_hub(source, sorted(components), revision)


def local_checkpoint(source: str) -> Checkpoint | None:
    """The checkpoint in a local directory; None for a hub id. Raises CheckpointError for what is neither."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _local(path, source)
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") != 1:
        raise CheckpointError(
            f"model.path: expected a directory, a hub id (owner/name) or tiny, found {source!r}, which is no directory "
            "on this machine. Check the path.",
            file=source,
        )
    return None


def cached_checkpoint(repo_id: str, revision: str | None = None) -> Checkpoint | None:
    """What this machine's hub cache holds of a repository, complete or not; None for nothing. Asks no network."""
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(repo_id, INDEX_FILE, revision=revision)
    return Checkpoint(root=Path(found).parent, source=repo_id) if isinstance(found, str) else None


def _local(path: Path, source: str) -> Checkpoint:
    if not (path / INDEX_FILE).is_file():
        root = next((parent for parent in path.absolute().parents if (parent / INDEX_FILE).is_file()), None)
        hint = f"Use the repository root: {root}." if root else "Use the repository root, the folder that holds it."
        original = (
            " This looks like one of the original partitions, not the diffusers layout." if _original(path) else ""
        )
        raise CheckpointError(
            f"model.path: expected {INDEX_FILE} in {path}, found none.{original} {hint}", file=str(path / INDEX_FILE)
        )
    return Checkpoint(root=path.absolute(), source=source)


def _original(path: Path) -> bool:
    """Whether a folder holds weights in the original naming (`blocks.N...`) instead of component folders."""
    for index in path.glob("*.safetensors.index.json"):
        try:
            names = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
        except (OSError, ValueError):
            continue
        if any(name.startswith("blocks.") for name in names):
            return True
    for file in sorted(path.glob("*.safetensors"))[:1]:
        with file.open("rb") as handle:
            prefix = handle.read(8)
            if len(prefix) == 8 and b'"blocks.' in handle.read(min(struct.unpack("<Q", prefix)[0], 1 << 22)):
                return True
    return False


def _from_hub(repo_id: str, components: Sequence[str], revision: str | None) -> Checkpoint:
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        # snapshot_download refuses a snapshot made with patterns when offline; what counts is checked file by file.
        cached = cached_checkpoint(repo_id, revision)
        if cached is None:
            raise CheckpointError(
                f"model.path: expected {repo_id} in the local hub cache because HF_HUB_OFFLINE is set, found nothing. "
                "Start once online, or give a local directory.",
                file=repo_id,
            )
        return cached
    patterns = [*METADATA_PATTERNS, *(f"{component}/*" for component in components)]
    logger.info("fetching %s of %s", ", ".join(components) or "metadata", repo_id)
    try:
        root = huggingface_hub.snapshot_download(repo_id, revision=revision, allow_patterns=patterns)
    except Exception as error:
        raise CheckpointError(
            f"model.path: {repo_id} could not be fetched from the hub: {type(error).__name__}: {error}. Check the id, the "
            "network and, for a gated repository, HF_TOKEN on this node.",
            file=repo_id,
        ) from error
    return Checkpoint(root=Path(root), source=repo_id)
