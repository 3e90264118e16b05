"""The words of adapters: which ones a request uses, what workers are told, what is learned of a file. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from splitreel.errors import InvalidRequest
from splitreel.words import counted

# As a worker gets it: the id that this loading of the file was given, and the scale.
Applied = tuple[str, float]


@dataclass(frozen=True)
class LoraUse:
    """One adapter of a request: the name it was loaded under, and how strongly it acts. 0 is not at all."""

    name: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"lora: expected the name of an adapter, found {name!r}.", field="lora")
        object.__setattr__(self, "scale", checked_scale(self.scale, f"lora {name}"))

    @classmethod
    def of(cls, entry: object) -> LoraUse:
        """From `LoraUse`, `"name"`, or `{"name": ..., "scale": ...}`. Raises InvalidRequest."""
        match entry:
            case LoraUse():
                return entry
            case str():
                return cls(entry)
            case {"name": str(name), **rest} if not set(rest) - {"scale"}:
                return cls(name, checked_scale(rest.get("scale", 1.0), f"lora {name}"))
            case _:
                raise InvalidRequest(
                    f'lora: expected an adapter\'s name or {{"name": "turbo", "scale": 0.8}}, found {entry!r}.',
                    field="lora",
                )


def checked_scale(scale: object, where: str) -> float:
    """A finite number as it is. Raises InvalidRequest for anything else, NaN and infinity included."""
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise InvalidRequest(f"{where}: expected a finite number as scale, found {scale!r}.", field="lora")
    return float(scale)


def checked_alpha(alpha: object, where: str) -> float:
    """A finite number other than 0. Raises InvalidRequest: with alpha 0 an adapter would change nothing."""
    number = checked_scale(alpha, where)
    if number == 0.0:
        raise InvalidRequest(
            f"{where}: expected a number other than 0, found 0, with which the adapter changes nothing. Give the alpha that it "
            "was trained with; to use it for some requests only, set its scale.",
            field="lora",
        )
    return number


def as_uses(entries: object) -> tuple[LoraUse, ...]:
    """A request's `lora` in its one form: each name once, sorted, so that one set is one sum to the last bit."""
    if isinstance(entries, str | LoraUse | Mapping) or not isinstance(entries, Sequence):
        raise InvalidRequest(f"lora: expected a list of adapters, found {entries!r}. Put it in [ ].", field="lora")
    uses = [LoraUse.of(entry) for entry in entries]
    names = [use.name for use in uses]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"lora: expected each adapter once, found {twice!r} twice. Add its scales.", field="lora")
    return tuple(sorted(uses, key=lambda use: use.name))


class LoadOptions(TypedDict, total=False):
    """What else can be said when a file is loaded.

    `target`: `transformer` (t2va, fl2va) or `transformer_ref` (ref2va), by default the one that the file names, else the
    first that is served. `alpha`: instead of what the file states. `allow_unmatched`: ignore keys that fit nothing, which
    the receipt lists. `active`: False when requests that name no adapters shall not use it.
    """

    target: str | None
    alpha: float | None
    allow_unmatched: bool
    active: bool


@dataclass(frozen=True)
class InstallAdapter:
    """Bind a file to the target's weights under an id. Nothing uses it until a request names the id.

    `source` and `sha256` name the file, whose bytes come beside this. `config`: the `adapter_config.json` beside the
    file, if any. `target`: the component, or None for the one that the file or the deployment names.
    `alpha`: instead of what the file states.
    """

    id: str
    name: str
    source: str
    sha256: str
    target: str
    config: Mapping[str, Any] = field(default_factory=dict)
    alpha: float | None = None
    allow_unmatched: bool = False


@dataclass(frozen=True)
class AdapterOutline:
    """An adapter's file without its weights: enough to say whether it fits.

    `tensors`: dtype (as safetensors writes it) and shape by key; `numbers`: values of those with one element, such as
    alphas; `num_bytes`: what it will take on each worker.
    """

    order: InstallAdapter
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    numbers: Mapping[str, float]
    metadata: Mapping[str, str]
    num_bytes: int


@dataclass(frozen=True)
class DropAdapter:
    """Forget an adapter that no request uses any more."""

    id: str


@dataclass(frozen=True)
class FuseAdapters:
    """Put these adapters, and no others, into the weights themselves; none of them takes the weights back as loaded."""

    uses: tuple[Applied, ...]


AdapterOrder = InstallAdapter | DropAdapter | FuseAdapters


@dataclass(frozen=True)
class LoraReceipt:
    """What was bound when a file was loaded; the same on every worker that holds the target.

    `format`: whose names and layout the file has. `modules`: modules of the target that it changes. `ranks`, `alphas`:
    the different ones in it, ascending; no alphas when it has no low-rank part. `alpha_source`: where alpha was found.
    `replaced`: parameters that the file sets instead of adding to. `unmatched`: keys that fit nothing, ignored because
    that was allowed. `num_bytes`: what it takes on each worker. `workers`: those that hold it.
    """

    name: str
    source: str
    sha256: str
    target: str
    format: str
    modules: int
    ranks: tuple[int, ...]
    alphas: tuple[float, ...]
    alpha_source: str
    replaced: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    num_bytes: int = 0
    workers: tuple[str, ...] = ()

    def __str__(self) -> str:
        ranks = f", rank {_listed(self.ranks)}" if self.ranks else ""
        alphas = f", alpha {_listed(self.alphas)} ({self.alpha_source})" if self.ranks else ""
        replaced = f", {counted(len(self.replaced), 'parameter')} replaced" if self.replaced else ""
        unmatched = f"; ignored as asked: {', '.join(self.unmatched)}" if self.unmatched else ""
        return (
            f"lora {self.name}: {self.source} (sha256 {self.sha256[:12]}), {self.format}, bound to "
            f"{counted(self.modules, 'module')} of {self.target}{ranks}{alphas}{replaced}, "
            f"{self.num_bytes / 1e6:.1f} MB on {', '.join(self.workers)}{unmatched}"
        )


@dataclass(frozen=True)
class LoraInfo:
    """A loaded adapter. `scale`: what requests that say nothing of adapters use, None when they do not use it."""

    name: str
    scale: float | None
    fused: bool
    receipt: LoraReceipt


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
