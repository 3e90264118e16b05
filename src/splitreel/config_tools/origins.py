"""The config in force, setting by setting, and where each value came from; and the schema for editors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from splitreel.config import Config, load_config
from splitreel.config.yaml_text import MERGE

FILE, SET, DEFAULT, DERIVED = "file", "--set", "default", "derived"


@dataclass(frozen=True)
class Setting:
    """One value in force. `origin`: file, --set, default, or derived from other settings; `detail` says more."""

    path: tuple[str, ...]
    value: Any
    origin: str
    detail: str = ""

    @property
    def name(self) -> str:
        """For example roles.dit.device."""
        return ".".join(self.path)


def settings_in_force(
    path: Path, overrides: Sequence[str] = (), *, mask: Callable[[Mapping[str, str]], dict[str, str]] = dict
) -> list[Setting]:
    """Every setting with its origin, in the schema's order. `mask` hides secrets in `env`; passwords in addresses are always
    hidden. Raises ConfigError.
    """
    config = load_config(path, overrides)
    lines = _lines_of(path)
    changed = [_path_of(override) for override in overrides]
    derived = _derived(config)
    found = []
    for key, value in _leaves(config.model_dump(mode="json")):
        if len(key) > 3 and key[2] == "env":
            value = mask({key[3]: value})[key[3]]
        if isinstance(value, str):
            value = _without_password(value)
        if any(key[: len(prefix)] == prefix for prefix in changed):
            found.append(Setting(key, value, SET))
        elif key in lines:
            found.append(Setting(key, value, FILE, f"{path}:{lines[key]}"))
        elif key in derived:
            found.append(Setting(key, derived[key][0], DERIVED, derived[key][1]))
        else:
            found.append(Setting(key, value, DEFAULT))
    return found


def as_yaml(settings: Sequence[Setting]) -> str:
    """The settings as a config file that says behind each value where it came from."""
    rows: list[tuple[str, str]] = []
    open_sections: tuple[str, ...] = ()
    for setting in settings:
        sections = setting.path[:-1]
        shared = 0
        while shared < min(len(sections), len(open_sections)) and sections[shared] == open_sections[shared]:
            shared += 1
        rows.extend(("  " * depth + f"{sections[depth]}:", "") for depth in range(shared, len(sections)))
        open_sections = sections
        indent = "  " * len(sections)
        note = f"{setting.origin}{f' ({setting.detail})' if setting.detail else ''}"
        rows.append((f"{indent}{setting.path[-1]}: {_flow(setting.value)}", note))
    width = min(60, max(len(row) for row, _ in rows))
    return "\n".join(f"{row:<{width}}  # {note}" if note else row for row, note in rows)


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of the config file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Config.model_json_schema(),
        "title": "splitreel config",
    }


def _derived(config: Config) -> dict[tuple[str, ...], tuple[Any, str]]:
    found: dict[tuple[str, ...], tuple[Any, str]] = {
        ("engine", "max_in_flight"): (config.max_in_flight, "look_ahead + 1 for each DiT worker, and 1")
    }
    for name, role in config.roles.items():
        found["roles", name, "stages"] = ([str(stage) for stage in config.stages_of(name)], "the role's name")
        found["roles", name, "num_gpus"] = (role.gpus, f"device is {role.device}")
        found["roles", name, "workflows"] = (list(config.model.workflows), "model.workflow")
        found["roles", name, "model_path"] = (config.model.path, "model.path")
    return found


def _leaves(content: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*at, name))
        else:
            yield (*at, name), value


def _without_password(text: str) -> str:
    """An address (`scheme://user:password@host?password=...`) with its passwords masked; any other text as it is."""
    if "://" not in text:
        return text
    text = re.sub(r"(://[^:@/]*):.*@", r"\1:***@", text)
    return re.sub(r"(?i)([?&][^=&]*(?:pass|pwd|secret|token|key)[^=&]*)=[^&]*", r"\1=***", text)


def _path_of(override: str) -> tuple[str, ...]:
    return tuple(override.partition("=")[0].strip().split("."))


def _lines_of(path: Path) -> dict[tuple[str, ...], int]:
    """The line of each setting in the file, an alias or a merge (`<<`) resolved to where the value is written."""
    found: dict[tuple[str, ...], int] = {}

    def walk(node: yaml.Node | None, at: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for merged in [value for key, value in node.value if key.tag == MERGE]:
                # Of several the first holds, and what the section says itself holds before all.
                for each in reversed(merged.value) if isinstance(merged, yaml.SequenceNode) else (merged,):
                    walk(each, at)
            for key, value in node.value:
                if key.tag == MERGE:
                    continue
                name = (*at, str(key.value))
                found[name] = key.start_mark.line + 1
                walk(value, name)

    walk(yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader), ())
    return found


def _flow(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).removesuffix("\n...\n").strip()
    )
