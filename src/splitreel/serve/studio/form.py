"""The form's values as a request, and a job's request as the form's values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from splitreel.errors import InvalidRequest
from splitreel.request import AudioReference, GenerateRequest, ImageReference, Reference, VideoReference
from splitreel.serve.jobs.folder import JobFolder
from splitreel.serve.jobs.view import JobView
from splitreel.serve.studio.uploads import Uploads

AUTOMATIC = "automatic"
NO_ADAPTERS = (
    ""  # among the chosen adapters: none at all, also not those of the server's config. No adapter has this name
)
SIZES = (AUTOMATIC, "832x480", "480x832", "640x640", "1344x768", "768x1344")
_MAX_PROMPT = 32_000  # as the API has it
_KINDS: dict[str, type[Reference]] = {"image": ImageReference, "video": VideoReference, "audio": AudioReference}


@dataclass(frozen=True)
class Form:
    """What the page sends, as it sends it: nothing in here has been checked. Media are Gradio's file objects.

    The order of the fields is that of the page's inputs.
    """

    prompt: Any = ""
    first: Any = None
    last: Any = None
    references: Any = ()
    size: Any = AUTOMATIC
    seconds: Any = ""
    steps: Any = ""
    seed: Any = ""
    priority: Any = 0
    lora: Any = ()
    lora_scale: Any = 1.0

    @classmethod
    def names(cls) -> list[str]:
        """Of the fields."""
        return [item.name for item in fields(cls)]


def request_of(form: Form, uploads: Uploads) -> GenerateRequest:
    """The request. Raises InvalidRequest naming the field."""
    prompt = form.prompt if isinstance(form.prompt, str) else ""
    if len(prompt) > _MAX_PROMPT:
        raise InvalidRequest(
            f"prompt: expected at most {_MAX_PROMPT} characters, found {len(prompt)}. Shorten it.", field="prompt"
        )
    width, height = _size(form.size)
    values: dict[str, Any] = {
        "prompt": prompt,
        "image": _medium(form.first, uploads),
        "last_image": _medium(form.last, uploads),
        "references": [_reference(entry, uploads) for entry in _entries(form.references, "references")],
        "width": width,
        "height": height,
        "seconds": None if form.seconds in (None, "") else _number(form.seconds, "length"),
        "steps": None if form.steps in (None, "") else _whole(form.steps, "steps"),
        "seed": None if form.seed in (None, "") else _whole(form.seed, "seed"),
        "priority": _whole(form.priority or 0, "priority"),
    }
    adapters = _entries(form.lora, "lora")
    if NO_ADAPTERS in adapters:
        if len(adapters) > 1:
            others = ", ".join(str(name) for name in adapters if name != NO_ADAPTERS)
            raise InvalidRequest(
                f"lora: expected none or adapters, found none and {others[:80]}. Take one out.", field="lora"
            )
        values["lora"] = []
    elif adapters:
        scale = _number(form.lora_scale, "lora scale")
        values["lora"] = [{"name": name, "scale": scale} for name in adapters]
    return GenerateRequest(**values)


def form_of(view: JobView, folder: JobFolder, uploads: Uploads) -> Form:
    """The settings of a job, its media copied for the form. Blocks on the disk; media that are gone are left out."""
    request, made = view.request, view.effective
    inputs = folder.inputs(view.id)

    def kept(name: str | None, stem: str) -> dict[str, Any] | None:
        try:
            return None if name is None else uploads.keep(inputs / name, stem)
        except OSError:
            return None

    references = [
        {**copy, "kind": entry["kind"], "fps": entry.get("fps")}
        for number, entry in enumerate(request.get("references", ()), 1)
        if (copy := kept(entry["file"], f"reference {number}")) is not None
    ]
    sized = request.get("width") is not None
    uses = request.get("lora")
    return Form(
        prompt=request["prompt"],
        first=kept(request.get("image"), "first"),
        last=kept(request.get("last_image"), "last"),
        references=references,
        size=f"{request['width']}x{request['height']}" if sized else AUTOMATIC,
        # Rounded down, so that what is rounded up to a whole film comes to the same one.
        seconds=f"{math.floor(made['seconds'] * 1000) / 1000:g}",
        steps=str(made["steps"]),
        seed=str(made["seed"]),
        priority=request.get("priority", 0),
        lora=[NO_ADAPTERS] if uses == [] else [use["name"] for use in uses or ()],
        lora_scale=uses[0]["scale"] if uses else 1.0,
    )


def _size(value: object) -> tuple[int | None, int | None]:
    text = str(value or AUTOMATIC).strip().lower().replace("×", "x")
    if text == AUTOMATIC:
        return None, None
    width, _, height = text.partition("x")
    if not (width.strip().isdecimal() and height.strip().isdecimal() and len(text) < 16):
        raise InvalidRequest(
            f"size: expected WIDTHxHEIGHT such as 832x480, or {AUTOMATIC}, found {text[:40]!r}.", field="size"
        )
    return int(width), int(height)


def _number(value: object, name: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequest(f"{name}: expected a number, found {str(value)[:40]!r}.", field=name)
    return number


def _whole(value: object, name: str) -> int:
    text = str(value).strip()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not (text.removeprefix("-").isdecimal() and len(text) < 25):
        raise InvalidRequest(f"{name}: expected a whole number, found {text[:40]!r}.", field=name)
    return int(text)


def _entries(value: object, name: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple | None):
        raise InvalidRequest(f"{name}: expected a list, found {type(value).__name__}.", field=name)
    return value or ()


def _medium(value: object, uploads: Uploads) -> str | None:
    return str(uploads.path_of(value)) if isinstance(value, Mapping) and value else None


def _reference(value: object, uploads: Uploads) -> Reference:
    if not isinstance(value, Mapping) or value.get("kind") not in _KINDS:
        raise InvalidRequest("references: expected files of the list, found something else.", field="references")
    path = str(uploads.path_of(value))
    if value["kind"] == "video":
        return VideoReference(path, fps=value.get("fps"))
    return ImageReference(path) if value["kind"] == "image" else AudioReference(path)
