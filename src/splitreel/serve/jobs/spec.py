"""A request as plain data beside its media files, and back: what a job needs to be run by any server, any number of times."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from splitreel.errors import InvalidRequest
from splitreel.lora import as_uses
from splitreel.media import probe_image, probe_video, read_sound
from splitreel.request import AudioReference, GenerateRequest, ImageReference, Reference, VideoReference

_MEDIA = ("image", "last_image", "references")
_OURS = ("request_id", "output")  # a job has its own id, and its film is an mp4
_KINDS: dict[str, type[Reference]] = {"image": ImageReference, "video": VideoReference, "audio": AudioReference}


@dataclass(frozen=True)
class MediaLimits:
    """Bounds on what is decoded: pixels of a picture or frame, seconds of a clip or sound."""

    max_pixels: int
    max_seconds: float


def store_request(request: GenerateRequest, folder: Path) -> tuple[dict[str, Any], int]:
    """The request as plain data, its media copied into `folder` under names of ours; and their bytes.

    Media are paths, or pictures in memory. Raises InvalidRequest for a source of another kind.
    """
    plain: dict[str, Any] = {
        item.name: getattr(request, item.name) for item in fields(request) if item.name not in (*_MEDIA, *_OURS)
    }
    if request.lora is not None:
        plain["lora"] = [asdict(use) for use in as_uses(request.lora)]
    for where, slot, source in _sources(request):
        _copy(source, folder / slot, where)
    for name in ("image", "last_image"):
        plain[name] = name if getattr(request, name) is not None else None
    plain["references"] = [
        {"kind": reference.kind, "file": f"reference-{index}"}
        | ({"fps": reference.fps} if isinstance(reference, VideoReference) else {})
        for index, reference in enumerate(request.references)
    ]
    return plain, sum(file.stat().st_size for file in folder.iterdir())


def restore_request(plain: dict[str, Any], folder: Path, request_id: str) -> GenerateRequest:
    """What `store_request` took apart, its media in `folder`."""
    values = dict(plain)
    for name in ("image", "last_image"):
        values[name] = str(folder / values[name]) if values.get(name) else None
    values["references"] = tuple(_reference(entry, folder) for entry in values.get("references", ()))
    return GenerateRequest(**values, request_id=request_id)


def check_media(request: GenerateRequest, limits: MediaLimits) -> None:
    """Refuse media beyond the limits before they are decoded. Raises InvalidRequest naming the field."""
    for where, _, source in _sources(request):
        kind = where.partition("[")[0]
        if kind == "references":
            kind = request.references[int(where[len("references[") : -1])].kind
        if kind in ("image", "last_image"):
            _check_pixels(*probe_image(source, where), where, limits)
        elif kind == "video":
            facts = probe_video(source, where)
            _check_pixels(facts.width, facts.height, where, limits)
            _check_seconds(facts.seconds or 0.0, where, limits)
        else:
            _check_seconds(read_sound(source, where, max_seconds=limits.max_seconds + 1).seconds, where, limits)


def digest(plain: dict[str, Any], folder: Path) -> str:
    """Of a request and its media: equal for the same request sent twice. A seed that was drawn is not in it."""
    whole = hashlib.sha256(json.dumps(plain, sort_keys=True, ensure_ascii=False).encode())
    for file in sorted(folder.iterdir()):
        with file.open("rb") as stream:
            whole.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()


def placed(request: GenerateRequest, folder: Path) -> GenerateRequest:
    """The request with its media where `store_request` put them."""
    references = tuple(
        replace(reference, source=str(folder / f"reference-{index}"), **_without_sound(reference))
        for index, reference in enumerate(request.references)
    )
    return replace(
        request,
        references=references,
        image=None if request.image is None else str(folder / "image"),
        last_image=None if request.last_image is None else str(folder / "last_image"),
    )


def _without_sound(reference: Reference) -> dict[str, Any]:
    return {"sound": None} if isinstance(reference, VideoReference) else {}


def _sources(request: GenerateRequest) -> Iterator[tuple[str, str, Any]]:
    """Each medium: where it stands in the request, its file's name in the folder, its source."""
    for name in ("image", "last_image"):
        if getattr(request, name) is not None:
            yield name, name, getattr(request, name)
    for index, reference in enumerate(request.references):
        yield f"references[{index}]", f"reference-{index}", reference.source


def _copy(source: Any, target: Path, where: str) -> None:
    if isinstance(source, Image.Image):
        source.save(target, format="PNG")
    elif isinstance(source, np.ndarray) and source.ndim == 3:
        Image.fromarray(source).save(target, format="PNG")
    elif isinstance(source, str | Path):
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise InvalidRequest(f"{where}: expected a readable file, found {error.strerror}.", field=where) from error
    else:
        raise InvalidRequest(
            f"{where}: expected a file or a picture, found {type(source).__name__}. Write it to a file.", field=where
        )


def _reference(entry: dict[str, Any], folder: Path) -> Reference:
    source = str(folder / entry["file"])
    if entry["kind"] == "video":
        return VideoReference(source, fps=entry.get("fps"))
    return ImageReference(source) if entry["kind"] == "image" else AudioReference(source)


def _check_pixels(width: int, height: int, where: str, limits: MediaLimits) -> None:
    if width * height > limits.max_pixels:
        raise InvalidRequest(
            f"{where}: expected at most {limits.max_pixels} pixels, found {width} x {height}. Scale it down.",
            field=where,
        )


def _check_seconds(seconds: float, where: str, limits: MediaLimits) -> None:
    if seconds > limits.max_seconds:
        raise InvalidRequest(
            f"{where}: expected at most {limits.max_seconds:g} seconds, found {seconds:.1f} or more. Cut it.",
            field=where,
        )
