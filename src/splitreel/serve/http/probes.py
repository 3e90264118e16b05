"""What operators ask: models, is it alive, is it ready, how is it doing."""

from __future__ import annotations

import time

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import PlainTextResponse, Response

from splitreel.serve.http.errors import documented, error_response
from splitreel.serve.http.orders import model_id
from splitreel.serve.http.shapes import Alive, Model, ModelPage, Ready, WorkerState
from splitreel.serve.jobs.service import JobService
from splitreel.version import __version__

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
OPEN_RESPONSES = {status: text for status, text in documented().items() if status != 401}


class HttpMetrics:
    """Figures of the door itself; the session has its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter(
            "splitreel_http_answers", "Answers, by method and status.", ("method", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "splitreel_http_seconds", "Seconds until an answer began.", registry=self._registry, buckets=_BUCKETS
        )
        self._jobs = Gauge("splitreel_jobs", "Jobs in the ledger, by state.", ("state",), registry=self._registry)

    def count(self, method: str, status: int, seconds: float) -> None:
        """An answer began."""
        known = method if method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH") else "other"
        self._answers.labels(known, str(status)).inc()
        self._seconds.observe(seconds)

    async def text(self, service: JobService) -> str:
        """All figures, the session's included."""
        for state, count in (await service.stats()).jobs.items():
            self._jobs.labels(state).set(count)
        return generate_latest(self._registry).decode() + await service.metrics()


def probe_routes(service: JobService, metrics: HttpMetrics) -> APIRouter:
    """The routes on one service."""
    router = APIRouter()
    began = int(time.time())

    @router.get("/v1/models", response_model=ModelPage, tags=["models"], responses=documented())
    async def models() -> ModelPage:
        """What `model` may be."""
        names = dict.fromkeys([model_id(service.config), *service.config.serve.model_names, service.config.model.path])
        return ModelPage(data=[Model(id=name, created=began) for name in names])

    @router.get("/v1/models/{model:path}", response_model=Model, tags=["models"], responses=documented(404))
    async def model(model: str) -> Model | Response:
        """One of them."""
        if model not in (*service.config.serve.model_names, service.config.model.path):
            return error_response(
                404, f"model: expected one of /v1/models, found {model[:80]!r}.", code="model_not_found"
            )
        return Model(id=model, created=began)

    @router.get("/health", response_model=Alive, tags=["operations"], responses=OPEN_RESPONSES)
    async def health() -> Alive:
        """The process answers. Says nothing about the workers."""
        return Alive(version=__version__)

    @router.get(
        "/ready",
        response_model=Ready,
        tags=["operations"],
        responses={
            500: documented()[500],
            503: {"model": Ready, "description": "Not now; `status` and `detail` say why."},
        },
    )
    async def ready(response: Response) -> Ready:
        """Whether every role is resident and videos are taken."""
        deployment = service.deployment
        response.status_code = 200 if deployment.condition == "ready" else 503
        workers = [
            WorkerState(worker=item.worker, role=item.role, state=item.state, running=item.running)
            for item in deployment.workers
        ]
        return Ready(status=deployment.condition, detail=deployment.detail, workers=workers)

    @router.get(
        "/metrics",
        tags=["operations"],
        response_class=PlainTextResponse,
        responses={
            **documented(),
            200: {
                "description": "Prometheus's text format.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            },
        },
    )
    async def scraped() -> PlainTextResponse:
        """Counters and gauges of the server, the ledger and the session."""
        return PlainTextResponse(await metrics.text(service))

    return router
