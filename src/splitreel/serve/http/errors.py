"""Errors over HTTP: which status each means, and OpenAI's shape. The only place that maps one to the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from splitreel.errors import ClusterError, InvalidRequest, QueueFull, RequestError, RequestTimeout, SplitreelError
from splitreel.observe.logs import get_logger
from splitreel.serve.jobs.refusals import (
    JobBusy,
    JobNotFound,
    KeyReused,
    NotFinished,
    NothingThere,
    NotReady,
    VideoFailed,
    code_of,
    message_of,
)

logger = get_logger(__name__)


class Unauthorized(RequestError):
    """No key, or a wrong one."""


class Forbidden(RequestError):
    """The request comes from a place that is not served: another site's page, or under a foreign host name."""


class BodyTooLarge(RequestError):
    """The body is larger than `serve.max_upload_bytes`, or a field larger than `serve.max_field_bytes`."""


class UnsupportedBody(RequestError):
    """A content type, encoding or part that is not read."""


class BodyTimeout(RequestError):
    """The body did not arrive within `serve.upload_timeout`."""


class HeadersTooLarge(RequestError):
    """The request's headers are larger than any client needs."""


class ModelNotFound(RequestError):
    """The request names another model than the one that is served."""


# The first that fits counts.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (JobNotFound, 404),
    (NothingThere, 404),
    (ModelNotFound, 404),
    (BodyTimeout, 408),
    (JobBusy, 409),
    (NotFinished, 409),
    (VideoFailed, 409),
    (BodyTooLarge, 413),
    (UnsupportedBody, 415),
    (KeyReused, 422),
    (HeadersTooLarge, 431),
    (QueueFull, 429),
    (NotReady, 503),
    (RequestTimeout, 503),
    (ClusterError, 503),
    (InvalidRequest, 400),
    (RequestError, 400),
)
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}

_MEANINGS = {
    400: "A rule of the model or of the API is broken; `param` names the field.",
    401: "No API key, or a wrong one.",
    403: "From another site's page, or under a host name that is not served.",
    404: "No such video of yours, or its file is gone.",
    405: "The path knows other methods.",
    408: "The body did not arrive in time.",
    409: "The video is in another state: not finished yet (`Retry-After` says when to ask again), or failed.",
    413: "The body, or one of its fields, is too large.",
    415: "A content type or encoding that is not read.",
    416: "The range lies outside the file.",
    422: "The idempotency key came before with another request.",
    429: "The queue is full, or your own bound is reached. `Retry-After` says when to try again.",
    431: "The headers are too large.",
    500: "The server made a mistake.",
    503: "The server takes no videos now. `Retry-After` says when to try again.",
}


class ErrorDetail(BaseModel):
    """What went wrong: where, what was expected, what was found, what to do."""

    message: str
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = None
    code: str | None = Field(default=None, examples=["invalid_request"])


class ErrorBody(BaseModel):
    """Every answer from 400 up."""

    error: ErrorDetail


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route for these statuses, and those that any route may give."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*statuses, 401, 403, 431, 500}):
        found[status] = {"model": ErrorBody, "description": _MEANINGS[status]}
        if status in (409, 429, 503):
            header = {"description": "Seconds, from the measured rate.", "schema": {"type": "integer"}}
            found[status]["headers"] = {"Retry-After": header}
        if status == 409:
            header = {"description": "`false` where asking again changes nothing.", "schema": {"type": "string"}}
            found[status]["headers"]["x-should-retry"] = header
        if status == 401:
            found[status]["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return found


def status_of(error: Exception) -> int:
    """The HTTP status of an error; 500 for what is no fault of the request."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def as_response(error: Exception, *, retry_after: int = 30) -> Response:
    """An error as its answer. `retry_after`: for a full queue, by the measured rate."""
    status = status_of(error)
    headers: dict[str, str] = {}
    if status in (429, 503) or isinstance(error, NotFinished):
        after = error.details.get("retry_after", retry_after) if isinstance(error, SplitreelError) else retry_after
        headers["Retry-After"] = str(after)
    elif status == 409:
        headers["x-should-retry"] = "false"  # OpenAI's client repeats a 409 by itself unless told so
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="splitreel"'
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    param = error.details.get("field") if isinstance(error, SplitreelError) else None
    return error_response(status, message_of(error), code=code_of(error), param=param, headers=headers)


def error_response(
    status: int,
    message: str,
    *,
    code: str | None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """OpenAI's shape."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = ErrorBody(error=ErrorDetail(message=message, type=kind, param=param, code=code))
    return JSONResponse(body.model_dump(), status_code=status, headers=dict(headers or {}))


def invalid(error: ValidationError | RequestValidationError) -> InvalidRequest:
    """The first thing that pydantic found wrong, in our form."""
    first = error.errors()[0]
    where = _path([part for part in first["loc"] if part not in ("query", "path", "header", "body")])
    if first["type"] == "extra_forbidden":
        return InvalidRequest(
            f"{where}: not a field of a video request. See /openapi.json for those that are. The model is "
            "guidance-distilled: it takes no negative prompt and no guidance scale.",
            field=where,
        )
    found = f", found {str(first['input'])[:80]!r}" if first["type"] != "missing" else ""
    message = str(first["msg"]).removeprefix("Value error, ")
    return InvalidRequest(
        f"{where}: {message[0].lower()}{message[1:]}{found}. Change it, or leave it out.", field=where
    )


def _path(parts: Sequence[int | str]) -> str:
    """As clients write it, `references[0].kind`; without the types that pydantic tried, such as `seconds.str`."""
    kept = [part for index, part in enumerate(parts) if index == 0 or part not in ("str", "float", "int")]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in kept).lstrip(".") or "body"


def install(app: FastAPI, retry_after: Any) -> None:
    """Give every failure of the app its answer. `retry_after()`: whole seconds."""

    async def ours(request: Request, error: Exception) -> Response:
        if status_of(error) >= 500 and not isinstance(error, NotReady):
            logger.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
        return as_response(error, retry_after=retry_after())

    async def of_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return as_response(invalid(error))

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, StarletteHTTPException)
        words = {
            404: "expected a path of this API, found none",
            405: "expected another method, found one it does not know",
        }
        message = f"{request.method} {request.url.path}: {words.get(error.status_code, str(error.detail))}."
        message += " See /openapi.json." if error.status_code in words else ""
        return error_response(error.status_code, message, code=None, headers=error.headers)

    async def gone(request: Request, error: Exception) -> Response:
        return error_response(400, "body: the client went away while sending it.", code="client_disconnected")

    app.add_exception_handler(SplitreelError, ours)
    app.add_exception_handler(RequestValidationError, of_validation)
    app.add_exception_handler(StarletteHTTPException, of_http)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(ClientDisconnect, gone)
