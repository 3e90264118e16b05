"""Whether a role could load on this machine: its files, the hub behind them, and attention. Downloads nothing."""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from splitreel.config import ATTENTION_BACKENDS, RoleSpec
from splitreel.errors import CheckpointError, VersionMismatch
from splitreel.roles.checkpoint import (
    INDEX_FILE,
    METADATA_PATTERNS,
    Checkpoint,
    ComponentFiles,
    cached_checkpoint,
    local_checkpoint,
)

if TYPE_CHECKING:
    from splitreel.roles.definition import ModelDefinition

HUB_S = 5.0  # for each question to the hub
HEAD_SIZE = 128  # of the attention that backends are tried with


@dataclass(frozen=True)
class Files:
    """A role's files here. `hub`: the repository they come from, empty for a directory; `checkpoint`: None where the hub's
    cache holds nothing of it; `problems`: one for each component that is not whole.
    """

    hub: str
    checkpoint: Checkpoint | None
    components: tuple[ComponentFiles, ...]
    problems: tuple[CheckpointError, ...]

    @property
    def whole(self) -> bool:
        """Whether the role could load from here."""
        return self.checkpoint is not None and not self.problems


@dataclass(frozen=True)
class HubAnswer:
    """What the hub says to this machine. `error`: empty when it gives out the files; `refused`: it knows us not, or not
    well enough; `has_token`: whether one is set here; `to_fetch`: bytes that the cache lacks, None if it does not say.
    """

    has_token: bool
    error: str = ""
    refused: bool = False
    to_fetch: int | None = None


def look_at_files(model: ModelDefinition, spec: RoleSpec) -> Files:
    """Check every file of the role's components, and what all roles read of the others.

    `tiny` is made first, as a worker would. Raises CheckpointError for a path that is no checkpoint.
    """
    needs = model.components(spec.workflows, spec.stages)
    located = model.locate(spec.model_path)
    local = local_checkpoint(located)
    checkpoint = local if local is not None else cached_checkpoint(located, spec.revision)
    hub = "" if local is not None else located
    problems: list[CheckpointError] = []
    if checkpoint is not None:
        for need in needs:
            try:
                checkpoint.check([need])
            except CheckpointError as error:
                problems.append(error)
        try:
            model.read_geometry(checkpoint, spec.workflows)
        except CheckpointError as error:
            if not any(str(error) == str(other) for other in problems):
                problems.append(error)
    return Files(hub, checkpoint, needs, tuple(problems))


def ask_hub(files: Files, revision: str | None) -> HubAnswer:
    """Ask for the smallest file, as a download would, and for the sizes of the others. At most two times HUB_S."""
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    has_token = huggingface_hub.get_token() is not None
    url = huggingface_hub.hf_hub_url(files.hub, INDEX_FILE, revision=revision)
    try:
        huggingface_hub.get_hf_file_metadata(url, timeout=HUB_S)
    except (GatedRepoError, RepositoryNotFoundError) as error:
        # A private repository is "not found" for whoever may not see it.
        return HubAnswer(has_token, _first_line(error), refused=True)
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        return HubAnswer(has_token, _first_line(error), refused=status in (401, 403))
    except Exception as error:  # requests, httpx or the socket, as the version has it
        return HubAnswer(has_token, f"{type(error).__name__}: {_first_line(error)}")
    return HubAnswer(has_token, to_fetch=_missing_bytes(files, revision))


def _missing_bytes(files: Files, revision: str | None) -> int | None:
    import huggingface_hub

    try:
        info = huggingface_hub.HfApi().model_info(files.hub, revision=revision, files_metadata=True, timeout=HUB_S)
    except Exception:  # the question before was answered; this one is for a number only
        return None
    patterns = [*METADATA_PATTERNS, *(f"{need.name}/*" for need in files.components)]
    root = files.checkpoint.root if files.checkpoint is not None else None
    total = 0
    for file in info.siblings or ():
        if any(fnmatch.fnmatch(file.rfilename, pattern) for pattern in patterns):
            if file.size is None:
                return None
            total += 0 if root is not None and (root / file.rfilename).exists() else file.size
    return total


def cache_room() -> tuple[Path, int]:
    """Where the hub's files go, and how many bytes are free there."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return folder, shutil.disk_usage(existing).free


def is_offline() -> bool:
    """Whether this process may not ask the hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def usable_backends() -> list[str]:
    """The attention backends whose packages can be imported by this interpreter. Raises what importing diffusers raises."""
    from splitreel.roles.backends import import_backend

    found = []
    for name in ATTENTION_BACKENDS:
        try:
            import_backend(name)
        except VersionMismatch:
            raise
        except Exception:
            continue
        found.append(name)
    return found


def backend_error(name: str, spec: RoleSpec) -> tuple[str, str] | None:
    """Why a backend does not run where the role would compute, in the words of its import or kernel, and what to do.

    It is run once on small random inputs, as before weights load.
    """
    from splitreel.roles.backends import AttentionCase, remedy, try_backend

    case = AttentionCase(spec.device, spec.torch_dtype("default"), HEAD_SIZE)
    try:
        try_backend(name, case, hub_kernels=spec.attention.hub_kernels)
    except Exception as error:
        return f"{type(error).__name__}: {_first_line(error)}", remedy(name, error)
    return None


def diffusers_knows(name: str) -> bool:
    """Whether diffusers itself has a backend of exactly this name, as its environment variable needs it."""
    from diffusers.models.attention_dispatch import AttentionBackendName

    return name in {item.value for item in AttentionBackendName}


def _first_line(error: BaseException) -> str:
    lines: Sequence[str] = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
