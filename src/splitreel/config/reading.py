"""Reading a config: YAML, overrides, and an error for every wrong setting by its path."""

from __future__ import annotations

import difflib
import os
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from splitreel.config.schema import Config
from splitreel.config.yaml_text import read_yaml
from splitreel.errors import ConfigError
from splitreel.words import kind_of, plainly


def load_config(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), options: Mapping[str, str] = MappingProxyType({})
) -> Config:
    """Read a YAML file and apply `a.b=c` overrides. Raises ConfigError that names every wrong setting by its path.

    `options`: further overrides, after the others, and the option of the command line that each was given as.
    """
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise OSError("a folder, pipe or device")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: expected a readable YAML file, found {plainly(error, file)}. Name a config "
            "(splitreel config init writes one)."
        ) from error
    try:
        content = read_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: expected YAML, found {plainly(error)}. Correct it there.") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{file}: expected a mapping with model, cluster, roles, engine, trace and serve, found "
            f"{kind_of(content)}. Name a config (splitreel config init writes one)."
        )
    return parse_config(content, overrides, options, origin=str(file))


def parse_config(
    content: Mapping[str, Any],
    overrides: Sequence[str] = (),
    options: Mapping[str, str] = MappingProxyType({}),
    *,
    origin: str = "config",
) -> Config:
    """Check plain data against the schema; overrides and options as of `load_config`. Raises ConfigError."""
    merged = dict(content)
    named = [(override, f"--set {override}") for override in overrides] + list(options.items())
    for override, _ in named:
        merged = apply_override(merged, override)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, named, origin))) from None


def apply_override(content: Mapping[str, Any], override: str) -> dict[str, Any]:
    """A copy with one `a.b=c` applied; the value is read as YAML."""
    key, separator, text = override.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(f"--set {override}: expected SECTION.NAME=VALUE, for example engine.max_in_flight=2.")
    try:
        value = read_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--set {override}: expected a YAML value after the equals sign, found {plainly(error)}. Put quotes around it."
        ) from error
    copy = dict(content)
    target = copy
    for part in parts[:-1]:
        inner = target.get(part)
        if inner is not None and not isinstance(inner, Mapping):
            raise ConfigError(f"--set {override}: {part} is no section of the config.")
        target[part] = dict(inner or {})
        target = target[part]
    target[parts[-1]] = value
    return copy


# What pydantic says of a value of the wrong kind, in words for whoever wrote it.
_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a section with settings of its own",
    "model_type": "a section with settings of its own",
}


def _explain(error: ValidationError, named: Sequence[tuple[str, str]], origin: str) -> list[str]:
    """A line for each wrong setting, with the name of the override that its value came from, or of the file."""
    return list(dict.fromkeys(_placed(path, line, named, origin) for path, line in _wrong(error)))


def _placed(path: str, line: str, named: Sequence[tuple[str, str]], origin: str) -> str:
    for override, name in reversed(named):
        key = override.partition("=")[0].strip()
        if f"{path}.".startswith(f"{key}."):
            inner = path[len(key) + 1 :]
            return f"{name}: {f'{inner}: ' if inner else ''}{line}"
    return f"{origin}: {f'{path}: ' if path else ''}{line}"


def _wrong(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Path of each wrong setting, and what is wrong with it."""
    for item in error.errors(include_url=False):
        path = ".".join(str(part) for part in item["loc"] if not _is_union_tag(part))
        found = item["input"]
        if item["type"] == "extra_forbidden":
            yield path, f"unknown setting. {_closest(item['loc'])}"
        elif item["type"] == "missing":
            yield path, "expected a value, found none."
        elif item["type"] == "value_error":
            message = str(item["ctx"]["error"])
            yield path, message if message.endswith((".", "?")) else f"{message}."
        else:
            is_date = isinstance(found, date)
            shown = f"{found}, a date to YAML. Put it in quotes" if is_date else reprlib.repr(found)
            expected = _EXPECTED.get(item["type"])
            says = f"expected {expected}" if expected else f"{item['msg'][0].lower()}{item['msg'][1:]}"
            yield path, f"{says}, found {shown}."


def _is_union_tag(part: int | str) -> bool:
    return isinstance(part, str) and (part.startswith(("literal[", "list[", "dict[")) or part == "[key]")


def _closest(location: tuple[int | str, ...]) -> str:
    section: type[BaseModel] = Config
    for part in location[:-1]:
        # A part that is no setting is a key of a mapping, such as a role's name.
        setting = section.model_fields.get(str(part))
        section = (_section_in(setting.annotation) if setting is not None else None) or section
    names = list(section.model_fields)
    near = difflib.get_close_matches(str(location[-1]), names, n=1)
    return f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(names)}."


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a setting's type names, also within a mapping or an alternative to None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := _section_in(item)) is not None), None)
