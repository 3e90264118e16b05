"""Reading a request's body in bounds: counted as it arrives, whatever its headers say, and never longer than allowed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from splitreel.config import ServeConfig
from splitreel.errors import InvalidRequest
from splitreel.serve.http.errors import BodyTimeout, BodyTooLarge, UnsupportedBody

_DRAINED_BYTES, _DRAINED_SECONDS = 16_777_216, 2.0
_MAX_FILES = 16
_MAX_FIELDS = 256
_KEY = re.compile(r"^([^\[\]]+)((?:\[[^\[\]]*\])*)$")
# Fields whose value may be JSON text, which a form has no form of its own for, each with an example.
_STRUCTURED: dict[str, Any] = {
    "references": [{"kind": "image", "url": "data:..."}],
    "keyframes": {"first": {"url": "data:..."}},
    "input_reference": {"url": "data:..."},
    "lora": [{"name": "turbo", "scale": 0.8}],
}


@asynccontextmanager
async def read_body(
    request: Request, settings: ServeConfig
) -> AsyncIterator[tuple[dict[str, Any], dict[str, UploadFile]]]:
    """The body as plain fields and uploaded files by part name, from JSON or a form.

    Raises BodyTooLarge, BodyTimeout, UnsupportedBody, InvalidRequest.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedBody(
            f"Content-Encoding: expected none, found {request.headers['content-encoding'][:40]!r}. Send it plain."
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "multipart/form-data"):
        raise UnsupportedBody(
            f"Content-Type: expected application/json or multipart/form-data, found {kind[:80] or 'none'!r}."
        )
    is_json = kind == "application/json"
    limit = settings.max_field_bytes if is_json else settings.max_upload_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        await drain(request)
        raise _too_large(limit, is_json)
    body = _counted(request, limit, is_json)
    form: FormData | None = None
    try:
        async with asyncio.timeout(settings.upload_timeout):
            if is_json:
                content = b"".join([part async for part in body])
            else:
                form = await _parsed(request, body, settings)
    except BodyTooLarge:
        await drain(request)
        raise
    except TimeoutError:
        raise BodyTimeout(
            f"body: expected all of it within {settings.upload_timeout:g} s, found it unfinished. Send less, or faster."
        ) from None
    try:
        yield (_of_json(content), {}) if form is None else _of_form(form)
    finally:
        if form is not None:
            await form.close()


async def _parsed(request: Request, body: AsyncGenerator[bytes, None], settings: ServeConfig) -> FormData:
    try:
        parser = MultiPartParser(
            request.headers,
            body,
            max_files=_MAX_FILES,
            max_fields=_MAX_FIELDS,
            max_part_size=settings.max_field_bytes,
        )
        return await parser.parse()
    except (MultiPartException, HTTPException, KeyError) as error:
        words = getattr(error, "message", None) or getattr(error, "detail", None) or "it has no boundary"
        raise InvalidRequest(f"body: expected a multipart form, found one that cannot be read ({words}).") from None


async def _counted(request: Request, limit: int, is_json: bool) -> AsyncGenerator[bytes, None]:
    count = 0
    async for part in request.stream():
        count += len(part)
        if count > limit:
            raise _too_large(limit, is_json)
        yield part


async def drain(request: Request) -> None:
    """Read what is left of a body that is refused, unless it is large: a client that is still sending when the connection
    closes never sees why.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > _DRAINED_BYTES:
        return
    left = _DRAINED_BYTES
    try:
        async with asyncio.timeout(_DRAINED_SECONDS):
            while left > 0:
                message = await request.receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _too_large(limit: int, is_json: bool) -> BodyTooLarge:
    setting = "serve.max_field_bytes" if is_json else "serve.max_upload_bytes"
    return BodyTooLarge(f"body: expected at most {limit} bytes ({setting}), found more. Send smaller media.")


def _of_json(content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"body: expected a JSON object, found {str(error)[:200]}.", field=None) from None
    if not isinstance(fields, dict):
        raise InvalidRequest(f"body: expected a JSON object, found {type(fields).__name__}.", field=None)
    return fields


def _no_constant(name: str) -> float:
    raise ValueError(f"{name}, which JSON has not")


def _of_form(form: FormData) -> tuple[dict[str, Any], dict[str, UploadFile]]:
    """Fields as the `openai` client spells nested values (`keyframes[first][url]`), or as JSON text; files by name."""
    fields: dict[str, Any] = {}
    files: dict[str, UploadFile] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name in files:
                raise InvalidRequest(f"{name[:80]}: expected one part of this name, found two.", field=name[:80])
            files[name] = value
        else:
            _put(fields, name, value)
    return {name: _plain(name, value) for name, value in fields.items()}, files


def _put(fields: dict[str, Any], name: str, value: str) -> None:
    match = _KEY.fullmatch(name)
    if match is None:
        raise InvalidRequest(
            f"{name[:80]!r}: expected a name such as prompt or keyframes[first][url].", field=name[:80]
        )
    path = [match[1], *re.findall(r"\[([^\[\]]*)\]", match[2])]
    if "" in path[1:] and path[1:] != [""]:
        raise InvalidRequest(
            f"{name[:80]}: expected a list of objects as one field of JSON text, found it spread over several, whose order "
            f"cannot be known. Send {path[0]} as json.dumps([...]).",
            field=path[0],
        )
    if path[1:] == [""]:
        at = fields.setdefault(path[0], [])
        if isinstance(at, list):
            at.append(value)
            return
    target: Any = fields
    for part in path[:-1]:
        target = target.setdefault(part, {}) if isinstance(target, dict) else None
    if not isinstance(target, dict) or path[-1] in target:
        raise InvalidRequest(f"{name[:80]}: expected one value, found several.", field=path[0])
    target[path[-1]] = value


def _plain(name: str, value: Any) -> Any:
    if name not in _STRUCTURED or not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{name}: expected JSON text in a form, such as {json.dumps(_STRUCTURED[name])}, found {value[:80]!r} "
            f"({str(error)[:200]}). Send json.dumps(...) of the value; for an empty list too, which forms leave out.",
            field=name,
        ) from None
