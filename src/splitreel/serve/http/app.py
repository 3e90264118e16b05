"""The app: routes, guard, errors and the OpenAPI document, on one job service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from splitreel.serve.http.errors import install
from splitreel.serve.http.guard import OPEN, Guard
from splitreel.serve.http.probes import HttpMetrics, probe_routes
from splitreel.serve.http.videos import CREATE_BODY, video_routes
from splitreel.serve.jobs.service import JobService
from splitreel.version import __version__

_DESCRIPTION = """Makes films with sound. Clients of OpenAI's video API need this server's address as `base_url` and \
nothing else; further fields and paths are additions."""


def create_app(service: JobService) -> FastAPI:
    """An ASGI app that serves `service`, and starts and stops it with its own life.

    A page may be mounted on it, at `/` too: it passes the same guard, with `request.state.owner` set.
    """
    metrics = HttpMetrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    # Interactive pages of the document load scripts from elsewhere: the document alone is served.
    app = FastAPI(
        title="splitreel",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(video_routes(service))
    app.include_router(probe_routes(service, metrics))
    install(app, service.retry_after)
    app.add_middleware(Guard, settings=service.config.serve, count=metrics.count)
    has_keys = bool(service.config.serve.keys)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, has_keys)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _document(app: FastAPI, has_keys: bool) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(CREATE_BODY["definitions"])
    for path, methods in document["paths"].items():
        for operation in methods.values():
            # FastAPI says 422 of every route with parameters; ours answer 400.
            found = operation["responses"].get("422", {})
            if "HTTPValidationError" in str(found):
                del operation["responses"]["422"]
            if has_keys and path not in OPEN:
                operation["security"] = [{"key": []}]
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document
