"""What a config's adapters take on each worker that denoises, from their files' headers. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from splitreel.config import Config, LoraConfig
from splitreel.errors import AdapterError
from splitreel.h3.released import STAGE_COMPONENTS
from splitreel.lora import InstallAdapter
from splitreel.observe.logs import get_logger
from splitreel.plan.sizes import AdapterSize, Sizes
from splitreel.request import Stage
from splitreel.roles.adapters.files import find_adapter, hub_file, only_file
from splitreel.roles.adapters.outlines import read_outline

logger = get_logger(__name__)

_REQUEST_S = 5.0


def with_settings(sizes: Sizes, config: Config, workflows: Sequence[str], *, online: bool) -> Sizes:
    """The sizes with what a config loads beside the checkpoint's plain components: adapters, and gates where VSA is on.

    What is on the hub alone counts by its file's size, asked for when `online`; else `Sizes.source` says that it is left out.
    Raises AdapterError for a local file that is no adapter.
    """
    served = list(dict.fromkeys(name for flow in workflows for name in STAGE_COMPONENTS[flow][Stage.DENOISE]))
    adapters, notes = _sizes_of(config.lora, served, online=online)
    gates = any(config.role_spec(role).attention.vsa is not None for role in config.roles)
    return replace(sizes, gates=gates, adapters=adapters, source="; ".join([sizes.source, *notes]))


def _sizes_of(
    adapters: Mapping[str, LoraConfig], served: Sequence[str], *, online: bool
) -> tuple[tuple[AdapterSize, ...], list[str]]:
    found: list[AdapterSize] = []
    notes: list[str] = []
    for name, adapter in adapters.items():
        on_hub = hub_file(adapter.path)
        path = find_adapter(adapter.path) if on_hub is None else _cached(*on_hub, adapter.path)
        if path is not None:
            order = InstallAdapter("", name, adapter.path, "", adapter.target or "", alpha=adapter.alpha)
            outline = read_outline(path, order, served)
            found.append(AdapterSize(name, outline.order.target, outline.num_bytes))
            continue
        assert on_hub is not None
        num_bytes = _size_on_hub(*on_hub) if online else None
        if num_bytes is None:
            notes.append(f"lora {name} is not counted: {adapter.path} is not in the hub's cache here")
        else:
            found.append(AdapterSize(name, adapter.target or served[0], num_bytes))
    return tuple(found), notes


def _cached(repository: str, file: str, source: str) -> Path | None:
    import huggingface_hub

    try:
        root = Path(huggingface_hub.snapshot_download(repository, local_files_only=True))
        path = root / file if file else only_file(root, source)
    except (OSError, ValueError, AdapterError):  # LocalEntryNotFoundError is both of the first
        return None
    return path if path.is_file() else None


def _size_on_hub(repository: str, file: str) -> int | None:
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        info = huggingface_hub.HfApi().model_info(repository, files_metadata=True, timeout=_REQUEST_S)
    except Exception as error:  # of the hub's client, of HTTP or of the socket; the plan says that it is not counted
        logger.info("the hub does not tell the size of the adapter %s: %s", repository, error)
        return None
    named = [each for each in info.siblings or () if each.rfilename == file or not file]
    sizes = [each.size for each in named if each.rfilename.endswith(".safetensors")]
    return sizes[0] if len(sizes) == 1 else None
