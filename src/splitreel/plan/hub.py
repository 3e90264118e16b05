"""Sizes of a checkpoint that is on the hub alone: its files' headers, read online. No weight is downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from splitreel.errors import CheckpointError
from splitreel.roles.checkpoint import INDEX_FILE, Checkpoint

TOTAL_S = 30.0  # for about 45 headers of the release, each two short requests
REQUEST_S = 5.0
AT_ONCE = 8
Headers = dict[str, list[tuple[str, tuple[int, ...]]]]


def read_online(
    repository: str, revision: str | None, components: Sequence[str]
) -> tuple[Headers, dict[str, dict[str, object]]]:
    """Names and shapes of each component's tensors, and its config.json. Raises CheckpointError, within TOTAL_S."""
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise _error(repository, "HF_HUB_OFFLINE is set")
    api = huggingface_hub.HfApi()
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="splitreel-headers")
    try:
        info = api.model_info(repository, revision=revision, timeout=REQUEST_S)
        names = [file.rfilename for file in info.siblings or ()]
        with tempfile.TemporaryDirectory(
            prefix="splitreel-plan-"
        ) as folder:  # not the cache: it would look half-filled
            root = huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                allow_patterns=[INDEX_FILE, "*/config.json", "*/*.safetensors.index.json"],
                cache_dir=folder,
                etag_timeout=REQUEST_S,
            )
            checkpoint = Checkpoint(Path(root), repository)
            configs = {name: checkpoint.read_json(f"{name}/config.json", component=name) for name in components}
            wanted = {name: list(_weight_files(checkpoint, name, names)) for name in components}
        asked = {
            file: pool.submit(
                api.parse_safetensors_file_metadata, repository, file, revision=info.sha or revision, timeout=REQUEST_S
            )
            for files in wanted.values()
            for file in files
        }
        if wait(asked.values(), TOTAL_S).not_done:
            raise _error(repository, f"its headers did not come within {TOTAL_S:g} s")
        headers = {
            name: [
                (tensor, tuple(facts.shape)) for file in files for tensor, facts in asked[file].result().tensors.items()
            ]
            for name, files in wanted.items()
        }
    except CheckpointError:
        raise
    except Exception as error:  # of the hub's client, of HTTP or of the socket, as the version has it
        lines = str(error).strip().splitlines()
        raise _error(repository, f"{type(error).__name__}: {lines[0] if lines else ''}") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return headers, configs


def _weight_files(checkpoint: Checkpoint, component: str, names: Sequence[str]) -> Iterator[str]:
    """The files that the component's index names, or the single one that the repository lists."""
    indexed = [f"{component}/{path.name}" for path in checkpoint.weight_files(component)]
    single = [name for name in names if name.startswith(f"{component}/") and name.endswith(".safetensors")]
    found = indexed or single
    if not found:
        raise CheckpointError(
            f"{component}: expected safetensors weights in {checkpoint.source}, found none.",
            component=component,
            file=checkpoint.source,
        )
    yield from found


def _error(repository: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"model.path: expected the hub to tell the sizes of {repository}, found {why}.", file=repository
    )
