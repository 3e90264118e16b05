"""What an adapter's keys say: whose parameter, which part of its update, and what the producer put around the name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

# The spellings of one low-rank pair and its companions. PEFT puts the adapter's name between, as in
# `lora_A.default.weight`; kohya says down and up; FastVideo's extraction wrote `lora_alpha` and `lora_rank` tensors.
_PARTS = re.compile(
    r"^(?P<module>.+?)\.(?:"
    r"(?P<down>lora_A(?:\.(?P<infix_a>[^.]+))?\.weight|lora_down\.weight|lora\.down\.weight)|"
    r"(?P<up>lora_B(?:\.(?P<infix_b>[^.]+))?\.weight|lora_up\.weight|lora\.up\.weight)|"
    r"(?P<alpha>alpha|lora_alpha)|(?P<rank>lora_rank)|"
    r"(?P<diff>diff)|(?P<diff_bias>diff_b)|(?P<set_weight>set_weight))$"
)
_NAMES = ("down", "up", "alpha", "rank", "diff", "diff_bias", "set_weight")
_WRAPPERS = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "module.")


@dataclass
class Entry:
    """The parts of one module's update: their keys, by part (`down`, `up`, `alpha`, `diff`, ...)."""

    module: str
    parts: dict[str, str] = field(default_factory=dict)


@dataclass
class Keys:
    """A file's keys, sorted out. `components`: those that prefixes name. `unmatched`: keys of no known form."""

    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    wrappers: set[str] = field(default_factory=set)
    infixes: set[str] = field(default_factory=set)
    spellings: set[str] = field(default_factory=set)

    @property
    def components(self) -> set[str]:
        """The components that the keys name; empty when none does."""
        return {component for component, _ in self.entries if component}


def sort_keys(names: Collection[str], components: Collection[str]) -> Keys:
    """Sort out a file's keys. Entries are by (component or "", module), prefixes and PEFT's infix taken off."""
    keys = Keys()
    for key in sorted(names):
        found = _PARTS.match(key)
        if found is None:
            keys.unmatched.append(key)
            continue
        part = next(name for name in _NAMES if found[name] is not None)
        component, module = _without_prefixes(found["module"], components, keys)
        infix = found["infix_a"] or found["infix_b"]
        if infix:
            keys.infixes.add(infix)
        keys.spellings.add(found[part].split(".")[0] if part in ("down", "up") else part)
        entry = keys.entries.setdefault((component, module), Entry(module))
        if part in entry.parts:
            keys.twice.append(key)
        entry.parts.setdefault(part, key)
    return keys


def described(keys: Keys, naming: Collection[str], metadata: Mapping[str, str]) -> str:
    """The file's format in words, such as `diffusers names, PEFT's prefix and infix default`."""
    words = [f"{' and '.join(sorted(naming))} names"]
    if keys.wrappers:
        words.append("prefix " + ", ".join(sorted(keys.wrappers)))
    if keys.infixes:
        words.append("infix " + ", ".join(sorted(keys.infixes)))
    if keys.spellings & {"lora_down", "lora"}:
        words.append("down and up")
    whole = [f".{name}" for name in ("diff", "diff_b", "set_weight") if name.replace("_b", "_bias") in keys.spellings]
    if whole:
        words.append("whole parameters (" + ", ".join(whole) + ")")
    if "format" in metadata and metadata["format"] != "pt":
        words.append(f"calls itself {metadata['format'][:40]}")
    return ", ".join(words)


def _without_prefixes(module: str, components: Collection[str], keys: Keys) -> tuple[str, str]:
    component = ""
    while True:
        wrapper = next((item for item in _WRAPPERS if module.startswith(item)), None)
        if wrapper is None:
            wrapper = next((f"{item}." for item in components if module.startswith(f"{item}.")), None)
            if wrapper is None:
                return component, module
            component = wrapper[:-1]
        keys.wrappers.add(wrapper)
        module = module.removeprefix(wrapper)
