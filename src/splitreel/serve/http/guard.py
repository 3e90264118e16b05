"""What every request passes before any route sees it: host, origin, key, and the headers of the answer."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitreel.config import ServeConfig
from splitreel.observe.logs import get_logger
from splitreel.serve.http.errors import Forbidden, HeadersTooLarge, Unauthorized, as_response
from splitreel.serve.http.keys import is_loopback, owner_of

logger = get_logger(__name__)

# Without a key: probes of supervisors, and the document that says how to ask.
OPEN = frozenset({"/health", "/ready", "/openapi.json"})
_API = "/v1/"

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
# What the API answers is data: nothing in it may run, and nobody but the asker may keep it. A page sets its own policy.
_API_HEADERS = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Cache-Control": "no-store"}
_MAX_HEADERS = 32_768
Count = Callable[[str, int, float], None]


class Guard:
    """ASGI middleware. Sets `scope["state"]["owner"]`, the name of the client's key ("" while there are none)."""

    def __init__(self, app: ASGIApp, settings: ServeConfig, count: Count) -> None:
        """`count(method, status, seconds)` is called for each answer."""
        self._app = app
        self._settings = settings
        self._count = count
        self._names = {"localhost", settings.host.lower(), *settings.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, refuse, or pass on what is no request (lifespan)."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        started = False
        is_data = scope["path"].startswith(_API) or scope["path"] in OPEN or scope["path"] == "/metrics"

        async def answer(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**_HEADERS, **(_API_HEADERS if is_data else {})}.items():
                    headers.setdefault(name, value)
                self._count(scope.get("method", "WS"), message["status"], time.monotonic() - began)
            await send(message)

        headers = Headers(scope=scope)
        try:
            _check_size(headers)
            self._check_host(headers)
            self._check_origin(headers)
            scope.setdefault("state", {})["owner"] = self._owner(headers, scope["path"])
        except (Forbidden, Unauthorized, HeadersTooLarge) as error:
            response = as_response(error)
            if not is_data and isinstance(error, Unauthorized):
                response.headers["WWW-Authenticate"] = 'Basic realm="splitreel", charset="UTF-8"'  # a browser asks
            await response(scope, receive, answer)
            return
        try:
            await self._app(scope, receive, answer)
        except Exception as error:
            if started:
                raise  # the server cuts the connection, so that half an answer is not taken for a whole one
            logger.error("%s %s: %s", scope.get("method", "WS"), scope["path"], error, exc_info=error)
            await as_response(error)(scope, receive, answer)

    def _owner(self, headers: Headers, path: str) -> str:
        if not self._settings.keys or path in OPEN:
            return ""
        offered = headers.getlist("authorization")
        owner = owner_of(offered[0], self._settings.keys) if len(offered) == 1 else None
        if owner is None:
            found = "none" if not offered else "several headers" if len(offered) > 1 else "an unknown one"
            raise Unauthorized(
                f"Authorization: expected `Bearer` and a key of this server, found {found}. Ask whoever runs it for one."
            )
        return owner

    def _check_host(self, headers: Headers) -> None:
        """A page of another site may point its own host name at this address; its browser then sends that name."""
        if self._settings.keys:
            return
        host = _host_of(headers.get("host", ""))
        if host in self._names or is_loopback(host) or (self._settings.allow_without_key and _is_address(host)):
            return
        raise Forbidden(
            f"Host: expected localhost, an address of this server or one of serve.hosts, found {host[:80]!r}. Add the name "
            "to serve.hosts, or use keys."
        )

    def _check_origin(self, headers: Headers) -> None:
        """A browser says from which site a page asks; other clients say nothing."""
        origin = headers.get("origin")
        if origin is None or _netloc(origin) == _place(headers.get("host", "")) != "":
            return
        raise Forbidden(
            f"Origin: expected none, or this server's own address, found {origin[:80]!r}. Pages of other sites may not use "
            "it; a proxy must pass the Host header on."
        )


def _check_size(headers: Headers) -> None:
    size = sum(len(name) + len(value) for name, value in headers.raw)
    if size > _MAX_HEADERS:
        raise HeadersTooLarge(f"headers: expected at most {_MAX_HEADERS} bytes, found {size}. Send fewer cookies.")


def _netloc(origin: str) -> str:
    try:
        return _place(urlsplit(origin).netloc)
    except ValueError:
        return ""


def _place(netloc: str) -> str:
    return netloc.lower().removesuffix(":80").removesuffix(":443")


def _host_of(value: str) -> str:
    """A Host header without its port, lower case."""
    if value.startswith("["):
        return value.partition("]")[0][1:].lower()
    return value.partition(":")[0].lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
