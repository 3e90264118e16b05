"""Getting back a parameter that was written: from the checkpoint's file, proven equal beforehand, or from a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from splitreel.errors import AdapterError
from splitreel.roles.checkpoint import Checkpoint, check_safetensors


@dataclass(frozen=True, eq=False)
class _Kept:
    """Where the original of a parameter is: in `file`, with `digest` as of its bits in memory, or in `copy`."""

    digest: int
    file: Path | None = None
    copy: Tensor | None = None


class Originals:
    """The originals of one component's written parameters. Nothing large is held: files are read again."""

    def __init__(self, checkpoint: Checkpoint, component: str) -> None:
        self._checkpoint = checkpoint
        self._component = component
        self._files: dict[str, Path] | None = None
        self._kept: dict[str, _Kept] = {}

    def keep(self, name: str, parameter: Tensor) -> None:
        """Before a parameter is written: make sure that `restore` can bring it back bit for bit."""
        if name in self._kept:
            return
        if self._files is None:
            self._files = {
                key: path
                for path in self._checkpoint.weight_files(self._component)
                for key in check_safetensors(path, component=self._component)
            }
        file = self._files.get(name)
        if file is not None and torch.equal(_read(file, name, parameter), parameter):
            self._kept[name] = _Kept(digest(parameter), file=file)
        else:
            self._kept[name] = _Kept(digest(parameter), copy=parameter.detach().cpu().clone())

    def restore(self, parameter_of: Callable[[str], nn.Parameter]) -> None:
        """Write all originals back. Raises AdapterError when a file has changed since: the weights are of no use then."""
        for name, kept in self._kept.items():
            parameter = parameter_of(name)
            original = kept.copy if kept.file is None else _read(kept.file, name, parameter)
            assert original is not None
            if digest(original) != kept.digest:
                raise AdapterError(
                    f"{self._component}: expected {name} in {kept.file} as it was loaded, found it changed since. The "
                    "weights cannot be taken back; open a new session.",
                    file=str(kept.file),
                )
            parameter.copy_(original)
        self._kept.clear()


def digest(tensor: Tensor) -> int:
    """A sum over the tensor's bits that sees their places: cheap on any device, and enough to see a file change."""
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    words = tensor.detach().contiguous().view(word).reshape(-1)
    total = 0
    for index, piece in enumerate(torch.split(words, 1 << 24)):
        places = torch.arange(1, piece.numel() + 1, device=piece.device, dtype=torch.int64)
        total = (total * 31 + int((piece.to(torch.int64) * places).sum()) + index) & (2**63 - 1)
    return total


def _read(file: Path, name: str, like: Tensor) -> Tensor:
    with safe_open(file, framework="pt", device="cpu") as opened:
        tensor: Tensor = opened.get_tensor(name)
    return tensor.to(like.dtype).to(like.device)
