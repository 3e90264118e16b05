"""From a body's fields and files to a GenerateRequest whose media are files of ours."""

from __future__ import annotations

import base64
import binascii
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from pydantic import ValidationError
from starlette.datastructures import UploadFile

from splitreel.config import Config
from splitreel.errors import InvalidRequest
from splitreel.request import AudioReference, GenerateRequest, ImageReference, Reference, VideoReference
from splitreel.serve.http.errors import ModelNotFound, UnsupportedBody, invalid
from splitreel.serve.http.fetching import fetch
from splitreel.serve.http.shapes import CreateVideo, ReferenceSource, Source
from splitreel.serve.http.words import Names, in_their_words, names_of

Kind = Literal["image", "video", "audio"]


def parse(fields: Mapping[str, Any]) -> CreateVideo:
    """The fields, checked. Raises InvalidRequest."""
    try:
        return CreateVideo.model_validate(dict(fields))
    except ValidationError as error:
        raise invalid(error) from None


def model_id(config: Config) -> str:
    """What clients call the model."""
    return config.serve.model_names[0] if config.serve.model_names else config.model.path


def check_model(name: str | None, config: Config) -> None:
    """Raises ModelNotFound for another model than ours."""
    known = [*config.serve.model_names, config.model.path]
    if name is not None and name not in known:
        raise ModelNotFound(
            f"model: expected {' or '.join(dict.fromkeys(known))}, found {name[:80]!r}. Leave it out, or add the name to "
            "serve.model_names.",
            field="model",
        )


def request_of(
    order: CreateVideo, files: Mapping[str, UploadFile], config: Config, place: Path
) -> tuple[GenerateRequest, Names]:
    """The request, its media written into `place`, and what the client called its fields.

    Blocks on the disk, and on hosts that are fetched from.

    Raises InvalidRequest, also for a file that nothing refers to: no input is ignored.
    """
    desk = _Desk(dict(files), config, place)
    keyframes, references = order.keyframes, [desk.reference(i, entry) for i, entry in enumerate(order.references)]
    image = desk.take(keyframes.first, "keyframes.first", "image") if keyframes and keyframes.first else None
    last = desk.take(keyframes.last, "keyframes.last", "image") if keyframes and keyframes.last else None
    guide, became = order.input_reference, None
    if guide is None and "input_reference" in desk.files:
        guide = Source(upload="input_reference")
    if guide is not None:
        if "fl2va" in config.model.workflows and not references:
            if image is not None:
                raise InvalidRequest(
                    "input_reference: it is the first frame, and keyframes.first is another. Leave one out.",
                    field="input_reference",
                )
            image, became = desk.take(guide, "input_reference", "image"), "image"
        else:
            references.insert(0, ImageReference(desk.take(guide, "input_reference", "image")))
            became = "references"
    if desk.files:
        name = sorted(desk.files)[0]
        raise InvalidRequest(
            f"{name[:80]}: expected files named input_reference, or named by an `upload` of keyframes or references, found one "
            "that nothing refers to. It would be ignored: leave it out.",
            field=name[:80],
        )
    size = order.width_height
    values: dict[str, Any] = {
        "prompt": order.prompt,
        "image": image,
        "last_image": last,
        "references": references,
        "num_frames": order.num_frames,
        "seconds": order.seconds,
        "width": size[0] if size else None,
        "height": size[1] if size else None,
        "steps": order.steps,
        "seed": order.seed,
        "priority": order.priority,
        "lora": order.lora,
    }
    names = names_of(order, guide=became)
    with in_their_words(names):
        return GenerateRequest(**values), names


class _Desk:
    """Where media are taken from, each once, and put under names of ours."""

    def __init__(self, files: dict[str, UploadFile], config: Config, place: Path) -> None:
        self.files = files
        self._settings = config.serve
        self._place = place
        self._count = 0

    def reference(self, index: int, entry: ReferenceSource) -> Reference:
        where = f"references[{index}]"
        path = self.take(entry, where, entry.kind)
        if entry.fps is not None and entry.kind != "video":
            raise InvalidRequest(f"{where}.fps: expected it for a video only, found it for {entry.kind}.", field=where)
        match entry.kind:
            case "image":
                return ImageReference(path)
            case "video":
                return VideoReference(path, fps=entry.fps)
            case _:
                return AudioReference(path)

    def take(self, source: Source, where: str, kind: Kind) -> str:
        """The path of the medium's file."""
        target = self._place / f"{self._count}"
        self._count += 1
        if source.upload is not None:
            self._of_upload(source.upload, target, where, kind)
            return str(target)
        url = source.url or source.image_url or ""
        if url[:5].lower() == "data:":
            target.write_bytes(_of_data_url(url, where, kind))
        else:
            settings = self._settings
            fetch(url, target, where, hosts=settings.fetch_hosts, max_bytes=settings.max_upload_bytes)
        return str(target)

    def _of_upload(self, name: str, target: Path, where: str, kind: Kind) -> None:
        part = self.files.pop(name, None)
        if part is None:
            raise InvalidRequest(
                f"{where}: expected an uploaded part named {name[:80]!r} that nothing else uses, found none.",
                field=where,
            )
        _check_type(part.content_type or "application/octet-stream", where, kind)
        with target.open("wb") as stream:
            shutil.copyfileobj(part.file, stream, 1 << 20)


def _of_data_url(url: str, where: str, kind: Kind) -> bytes:
    head, comma, data = url[5:].partition(",")
    _check_type(head.partition(";")[0] or "text/plain", where, kind)
    if not comma:
        raise InvalidRequest(f"{where}: expected a data URL with a comma before its data, found none.", field=where)
    try:
        if head.lower().endswith(";base64"):
            return base64.b64decode(data, validate=True)
        return unquote_to_bytes(data)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{where}: expected base64 in the data URL, found {error}.", field=where) from None


def _check_type(content_type: str, where: str, kind: Kind) -> None:
    """What a client says the medium is must fit; what it really is shows when it is decoded."""
    stated = content_type.partition(";")[0].strip().lower()
    # The sound of a video is a sound, and an ogg or mp4 may be either.
    allowed = {"image": ("image/",), "video": ("video/", "image/gif"), "audio": ("audio/", "video/", "application/ogg")}
    if stated != "application/octet-stream" and not stated.startswith(allowed[kind]):
        raise UnsupportedBody(
            f"{where}: expected {kind}/*, found {stated[:80]!r}. Send the file with its own type.", field=where
        )
