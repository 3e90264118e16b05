"""From options and prompt files to checked requests, without starting or importing anything heavy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from splitreel.config import Config, load_config, read_yaml
from splitreel.errors import InvalidRequest
from splitreel.media import check_encoders, check_output, probe_video, read_image, read_sound
from splitreel.request import AudioReference, GenerateRequest, ImageReference, Reference, VideoReference
from splitreel.serve.cli.failures import Refused
from splitreel.words import kind_of, plainly

DEFAULT_CONFIG = "splitreel.yaml"
_MINIMAL = """\
    model: {path: tiny}
    cluster: {address: local}
    roles:
      all: {device: cpu, dtype: float32}"""

# Fields of a JSONL line and of a request file. `output` is missing on purpose: the command line writes mp4 files, named
# by --output.
_LINE_FIELDS = tuple(name for name in GenerateRequest.__dataclass_fields__ if name != "output")


@dataclass(frozen=True)
class Order:
    """One film to make: its request, the file to write, and where the request came from ("" or "prompts.txt line 3")."""

    request: GenerateRequest
    target: Path
    origin: str = ""

    def locate(self, message: str) -> str:
        """A message that says which line of the prompts file it speaks of."""
        return f"{self.origin}: {message}" if self.origin else message


def read_config(path: Path | None, overrides: list[str], options: Mapping[str, str] = MappingProxyType({})) -> Config:
    """The config that was named, or splitreel.yaml of this directory, with overrides. Raises ConfigError or Refused."""
    return load_config(find_config(path), overrides, options)


def find_config(path: Path | None) -> Path:
    """The file that was named, or splitreel.yaml of this directory. Raises Refused."""
    if path is not None:
        return path
    if Path(DEFAULT_CONFIG).is_file():
        return Path(DEFAULT_CONFIG)
    raise Refused(
        f"--config: expected a config file, found no option and no {DEFAULT_CONFIG} in this directory. Give --config FILE, "
        f"or write {DEFAULT_CONFIG} (splitreel config init); this one makes noise with random weights, to try it out:\n"
        f"{_MINIMAL}"
    )


def parse_reference(text: str) -> Reference:
    """`image:PATH`, `video:PATH` or `audio:PATH`. Raises Refused."""
    kind, separator, path = text.partition(":")
    if not separator or not path or kind not in ("image", "video", "audio"):
        raise Refused(f"--reference: expected image:PATH, video:PATH or audio:PATH, found {text!r}.")
    return _reference(kind, path)


def _reference(kind: str, path: str) -> Reference:
    match kind:
        case "image":
            return ImageReference(path)
        case "video":
            return VideoReference(path)
        case _:
            return AudioReference(path)


def place_orders(
    flags: Mapping[str, Any], *, prompts: Path | None, output: Path | None, overwrite: bool
) -> list[Order]:
    """Check what can be checked without the model: outputs, encoders, request fields, media files.

    `flags`: request fields, those given. Raises Refused, ConfigError or InvalidRequest; leaves no file behind.
    """
    target = output or Path(f"outputs/film-{datetime.now():%Y%m%d-%H%M%S}.mp4")
    check_output(target)
    check_encoders()
    orders = (
        _orders_of_file(prompts, flags, target)
        if prompts is not None
        else [Order(GenerateRequest(**flags).with_seed(), target)]
    )
    if not overwrite:
        existing = [order.target for order in orders if os.path.lexists(order.target)]
        if existing:
            more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
            raise Refused(
                f"--output: expected a free name, found {existing[0]}{more}. Choose another one, or give --overwrite to "
                "replace it."
            )
    for order in orders:
        check_output(order.target)
        for _, _, source in _media(order.request):
            if os.path.exists(order.target) and os.path.exists(source) and os.path.samefile(order.target, source):
                raise Refused(f"--output: {order.target} is an input of its own film. Choose another name.")
    refuse_bad({order.request.request_id: error for order in orders if (error := _media_error(order))}, orders)
    return orders


def refuse_bad(errors: Mapping[str, InvalidRequest], orders: list[Order]) -> None:
    """Raise one Refused that names all bad requests (by request id), if there are any."""
    if errors:
        raise Refused(
            "\n".join(
                order.locate(errors[order.request.request_id].message)
                for order in orders
                if order.request.request_id in errors
            )
        )


def _orders_of_file(prompts: Path, flags: Mapping[str, Any], target: Path) -> list[Order]:
    try:
        text = prompts.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(
            f"--prompts: {prompts}: expected a text file, found {plainly(error, prompts)}. Check the path."
        ) from error
    lines = [
        (number, line.strip())
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise Refused(f"--prompts: expected a prompt per line in {prompts}, found none.")
    is_json = prompts.suffix.lower() == ".jsonl" or lines[0][1].startswith("{")
    orders: list[Order] = []
    bad: list[str] = []
    first_seed = flags.get("seed")
    for index, (number, line) in enumerate(lines):
        origin = f"{prompts} line {number}"
        own: dict[str, Any] = {"prompt": line}
        try:
            if is_json:
                own = _read_line(line)
            seed = {} if first_seed is None else {"seed": first_seed + index}
            request = GenerateRequest(**{**without_rivals(flags, own), **seed, **own}).with_seed()
        except (InvalidRequest, Refused) as error:
            bad.append(f"{origin}: {error.message}")
            continue
        numbered = target.with_name(f"{target.stem}-{index + 1:04d}{target.suffix}")
        orders.append(Order(request, numbered, origin))
    ids = [order.request.request_id for order in orders]
    bad += [
        order.locate("request_id: expected a new one, found it twice.")
        for order in orders
        if ids.count(order.request.request_id) > 1
    ]
    if bad:
        raise Refused("\n".join(bad))
    return orders


def without_rivals(flags: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that hold for a line: its own length replaces the length of the flags, in whichever unit."""
    dropped = {"num_frames", "seconds"} if {"num_frames", "seconds"} & set(own) else set()
    return {name: value for name, value in flags.items() if name not in dropped}


def read_request(path: Path) -> dict[str, Any]:
    """The fields of a request file, YAML or JSON. Raises Refused."""
    try:
        content = read_yaml(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise Refused(
            f"--request: {path}: expected a YAML or JSON file, found {plainly(error, path)}. Check it."
        ) from error
    if not isinstance(content, dict):
        raise Refused(
            f"--request: {path}: expected the fields of one request, found {kind_of(content)}. Write prompt: TEXT, and on."
        )
    try:
        return _checked_fields(content)
    except Refused as error:
        raise Refused(f"--request: {path}: {error.message}") from error


def _read_line(line: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise Refused(f"expected a JSON object, found {plainly(error)}. Correct the line.") from error
    if not isinstance(content, dict):
        raise Refused(f"expected a JSON object, found {kind_of(content)}. Put the fields in {{ }}.")
    checked = _checked_fields(content)
    if "prompt" not in content:
        raise Refused("prompt: expected a text, found none. Add it to the line.")
    return checked


def _checked_fields(content: dict[str, Any]) -> dict[str, Any]:
    unknown = [name for name in content if name not in _LINE_FIELDS]
    if unknown:
        raise Refused(f"{unknown[0]}: not a field of a request. Accepted: {', '.join(_LINE_FIELDS)}.")
    for name in ("image", "last_image"):
        if content.get(name) is not None and not isinstance(content[name], str):
            raise Refused(f"{name}: expected a path, found {content[name]!r}.")
    if "references" in content:
        content["references"] = _read_references(content["references"])
    return content


def _read_references(entries: Any) -> list[Reference]:
    if not isinstance(entries, list):
        raise Refused(f"references: expected a list, found {entries!r}.")
    found: list[Reference] = []
    for index, entry in enumerate(entries):
        match entry:
            case str():
                found.append(parse_reference(entry))
            case {"kind": "image" | "audio" as kind, "source": str(source), **rest} if not rest:
                found.append(_reference(kind, source))
            case {"kind": "video", "source": str(source), "fps": int() | float() as fps, **rest} if not rest:
                found.append(VideoReference(source, fps=fps))
            case {"kind": "video", "source": str(source), **rest} if not rest:
                found.append(VideoReference(source))
            case _:
                raise Refused(
                    f'references[{index}]: expected "image:PATH" or {{"kind": "image", "source": "PATH"}}, found {entry!r}.'
                )
    return found


def _media_error(order: Order) -> InvalidRequest | None:
    try:
        for where, kind, source in _media(order.request):
            match kind:
                case "image":
                    read_image(source, where)
                case "video":
                    probe_video(source, where)
                case _:
                    read_sound(source, where, max_seconds=1.0)
    except InvalidRequest as error:
        return error
    return None


def _media(request: GenerateRequest) -> Iterator[tuple[str, str, Any]]:
    for name in ("image", "last_image"):
        if getattr(request, name) is not None:
            yield name, "image", getattr(request, name)
    for index, reference in enumerate(request.references):
        yield f"references[{index}]", reference.kind, reference.source
