"""Finding and reading an adapter's file. No torch: the driver and the command line use this too."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitreel.errors import AdapterError, CheckpointError
from splitreel.roles.checkpoint import check_safetensors
from splitreel.words import plainly

logger = logging.getLogger(__name__)

_HUB = "hf://"
_REPOSITORY = re.compile(r"[A-Za-z0-9_-][\w.-]*/[A-Za-z0-9_-][\w.-]*")
CONFIG_FILE = "adapter_config.json"
# What peft and diffusers call the file in a folder of its own.
_USUAL = ("adapter_model.safetensors", "pytorch_lora_weights.safetensors")


@dataclass(frozen=True, eq=False)
class AdapterContent:
    """A file's bytes as they are on disk, their digest, and the configuration that lay beside it."""

    source: str
    sha256: str
    config: Mapping[str, Any]
    content: NDArray[np.uint8]

    def names(self, components: Collection[str]) -> set[str]:
        """Those of `components` that keys of the file begin with."""
        (length,) = struct.unpack("<Q", self.content[:8].tobytes())
        return named_components(json.loads(self.content[8 : 8 + length].tobytes()), components)


def named_components(keys: Collection[str], components: Collection[str]) -> set[str]:
    """Those of `components` that some of an adapter's keys begin with, behind wrappers."""
    return {name for name in components if any(f".{name}." in f".{key}" for key in keys)}


def target_of(source: str, named: set[str], asked: str | None, served: Sequence[str]) -> str:
    """The component that a file is for: asked for, `named` by its keys, or else the first that is served."""
    target = asked or (next(iter(named)) if len(named) == 1 else served[0])
    if target not in served:
        raise AdapterError(
            f"lora {source}: expected a target that this deployment denoises with ({' or '.join(served)}), found "
            f"{target!r}. Change target, or model.workflow in the config.",
            file=source,
        )
    return target


def read_adapter(source: str) -> AdapterContent:
    """Find and read a file whole. Raises AdapterError."""
    path = find_adapter(source)
    check_adapter(path)
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise AdapterError(
            f"lora {source}: expected a readable file, found {plainly(error, path)}. Check it on that machine.",
            file=str(path),
        ) from error
    return AdapterContent(source, hashlib.sha256(content.data).hexdigest(), config_beside(path), content)


def check_adapter(path: Path) -> dict[str, Any]:
    """The header of a whole safetensors file; raises AdapterError for anything else."""
    try:
        return check_safetensors(path, component="lora")
    except CheckpointError as error:
        raise AdapterError(error.message, file=str(path)) from error


def find_adapter(source: str) -> Path:
    """The safetensors file that a path, a folder or a hub id (`owner/name`, `hf://owner/name/file.safetensors`) means.

    Raises AdapterError. A hub id is downloaded, or taken from the cache when HF_HUB_OFFLINE is set. What looks like a path is
    never asked of the hub: a typing error would fetch somebody else's file.
    """
    on_hub = hub_file(source)
    if on_hub is not None:
        return _from_hub(*on_hub, source)
    path = Path(source).expanduser()
    if path.is_dir():
        return only_file(path, source)
    if path.is_file():
        if path.suffix != ".safetensors":
            raise AdapterError(
                f"lora {source}: expected a .safetensors file, found {path.name}. Other formats can run code when they "
                "are opened; convert it.",
                file=str(path),
            )
        return path
    raise AdapterError(
        f"lora: expected a .safetensors file or a folder with one, found {source!r}, which is nothing on this machine. Check "
        "the path; what is on the hub is written owner/name or hf://owner/name/file.safetensors.",
        file=source,
    )


def hub_file(source: str) -> tuple[str, str] | None:
    """The hub's repository that `source` means, and the file in it or ""; None where it is a path, there or not.

    A repository is `owner/name` where no folder of this machine has that beginning, or anything behind `hf://`.
    """
    if source.startswith(_HUB):
        owner, _, rest = source.removeprefix(_HUB).partition("/")
        name, _, file = rest.partition("/")
        if not _REPOSITORY.fullmatch(f"{owner}/{name}"):
            raise AdapterError(
                f"lora: expected hf://owner/name or hf://owner/name/file.safetensors, found {source!r}.", file=source
            )
        return f"{owner}/{name}", file
    path = Path(source).expanduser()
    looks_like_one = _REPOSITORY.fullmatch(source) and path.suffix != ".safetensors"
    return (source, "") if looks_like_one and not path.exists() and not path.parent.is_dir() else None


def only_file(folder: Path, source: str) -> Path:
    """The adapter's file in a folder. Raises AdapterError unless there is one, or one of the usual name."""
    for name in _USUAL:
        if (folder / name).is_file():
            return folder / name
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        names = ", ".join(item.name for item in found) or "none"
        raise AdapterError(
            f"lora {source}: expected one .safetensors file there, found {names}. Name the file.", file=str(folder)
        )
    return found[0]


def _from_hub(repo_id: str, file: str, source: str) -> Path:
    import huggingface_hub

    patterns = [file, str(Path(file).parent / CONFIG_FILE)] if file else ["*.safetensors", CONFIG_FILE]
    logger.info("fetching %s", source)
    try:
        root = Path(huggingface_hub.snapshot_download(repo_id, allow_patterns=patterns))
    except Exception as error:
        raise AdapterError(
            f"lora {source}: could not be fetched from the hub: {type(error).__name__}: {error}. Check the id, the network "
            "and, for a gated repository, HF_TOKEN. A local file is named by its path.",
            file=source,
        ) from error
    if not file:
        return only_file(root, source)
    if not (root / file).is_file():
        raise AdapterError(f"lora {source}: expected {file} in {repo_id}, found no such file.", file=source)
    return root / file


def config_beside(path: Path) -> Mapping[str, Any]:
    """What peft's configuration beside a file says; empty without one. Raises AdapterError."""
    beside = path.parent / CONFIG_FILE
    if not beside.is_file():
        return {}
    try:
        config = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"lora {path}: expected JSON in {beside.name}, found {error}.", file=str(beside)) from error
    if not isinstance(config, dict):
        raise AdapterError(f"lora {path}: expected an object in {beside.name}.", file=str(beside))
    return config
