"""The page's place in the app: at `/` and at the few paths that it needs, beside the API's own."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitreel.errors import ConfigError
from splitreel.observe.logs import get_logger
from splitreel.serve.jobs.service import JobService
from splitreel.serve.studio.uploads import Uploads

logger = get_logger(__name__)

# Gradio has many more paths: proxies, downloads by URL, documentation, editors. None of those is served.
_READ = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/(assets|static|svelte)/.+|/gradio_api/(startup-events|upload_progress)"
)
_WRITTEN = re.compile(r"/gradio_api/(run/predict|upload|reset)/?")
_FILE = "/gradio_api/file="

# Gradio's page has inline scripts and styles, and makes functions of its components' templates. Nothing comes from
# elsewhere, nothing goes elsewhere, nobody frames it.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_SOON = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><meta http-equiv="refresh" content="2"><title>splitreel</title>
<body style="font-family: system-ui; margin: 3rem"><p role="status">The studio is being prepared. This page reloads by \
itself.</p></body></html>"""


def mount_studio(app: FastAPI, service: JobService) -> bool:
    """Serve the page of `service` at `/`, as `serve.studio` says. Whether it is served.

    The page is built in the background while roles load. Raises ConfigError when it is wanted and its package is not there.
    """
    wanted = service.config.serve.studio
    if wanted is False:
        return False
    if importlib.util.find_spec("gradio") is None:
        if wanted is None:
            return False
        raise ConfigError(
            "serve.studio: expected the page's package, found no gradio. Install it: pip install 'splitreel[studio]', or set "
            "serve.studio: false."
        )
    page = _Page(service)
    before = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with before(app) as state, page.life():
            yield state

    app.router.lifespan_context = lifespan
    app.router.routes.append(page)
    return True


class _Page(BaseRoute):
    """The route of all that the page needs, and the life of what answers there."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._uploads = Uploads(service.folder.root / "studio-uploads", service.config.serve)
        self._files = f"{_FILE}{self._uploads.root}/"
        self._app: ASGIApp | None = None
        self._failed = False
        self._stop = asyncio.Event()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """The page's own paths only: an unknown path of the API stays one."""
        path, method = scope["path"], scope.get("method")
        is_read = method in ("GET", "HEAD") and (_READ.fullmatch(path) or path.startswith(self._files))
        if scope["type"] == "http" and (is_read or (method == "POST" and _WRITTEN.fullmatch(path))):
            return Match.FULL, {"endpoint": self}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with Gradio, its input in bounds and its output under the page's policy."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Content-Security-Policy", _POLICY)
            await send(message)

        if self._app is None:
            await self._unready()(scope, receive, answer)
        elif scope["method"] == "POST":
            is_upload = "/upload" in scope["path"]
            await self._uploads.bounded(self._app, scope, receive, answer, is_upload=is_upload)
        else:
            await self._app(scope, receive, answer)

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """Build in the background, end with the server."""
        task = asyncio.ensure_future(self._live())
        try:
            yield
        finally:
            self._stop.set()
            await task

    async def _live(self) -> None:
        try:
            # Two seconds and more of imports: the API answers meanwhile.
            await asyncio.to_thread(importlib.import_module, "splitreel.serve.studio.page")
            from splitreel.serve.studio.page import make_app

            await asyncio.to_thread(self._uploads.open)
            app = make_app(self._service, self._uploads)
            async with app.router.lifespan_context(app):
                if not self._stop.is_set():
                    self._app = app
                    logger.info("studio: ready at /")
                await self._stop.wait()
        except Exception:
            self._failed = True
            logger.exception("studio: the page could not be made; the API is not affected")

    def _unready(self) -> Response:
        if self._failed:
            return HTMLResponse("The studio could not be made; the server's log says why.", status_code=500)
        return HTMLResponse(_SOON, status_code=503, headers={"Retry-After": "2", "Cache-Control": "no-store"})
