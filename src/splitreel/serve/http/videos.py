"""`/v1/videos`: OpenAI's video API, and what we add to it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi import Path as PathParameter
from pydantic import AfterValidator
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from splitreel.errors import RequestError
from splitreel.observe.chrome import chrome_trace
from splitreel.observe.gantt import gantt
from splitreel.observe.report import requests as reports
from splitreel.observe.spans import SpanRecord
from splitreel.serve.http.bodies import drain, read_body
from splitreel.serve.http.errors import documented
from splitreel.serve.http.orders import check_model, model_id, parse, request_of
from splitreel.serve.http.shapes import CreateVideo, Video, VideoDeleted, VideoPage, video_of
from splitreel.serve.http.words import in_their_words
from splitreel.serve.jobs.refusals import JobNotFound, no_such_job
from splitreel.serve.jobs.service import JobService
from splitreel.serve.jobs.view import JobView

_ID = r"video_[0-9a-f]{24}"


def _an_id(value: str) -> str:
    """Any other text is the id of no video, however it is written: it never gets as far as the database."""
    if not re.fullmatch(_ID, value):
        raise no_such_job(value)
    return value


def _an_id_or_none(value: str | None) -> str | None:
    return None if value is None else _an_id(value)


Id = Annotated[
    str,
    PathParameter(description="A video's id.", json_schema_extra={"pattern": f"^{_ID}$"}),
    AfterValidator(_an_id),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="The same key and request again give the video that the first one made.",
    ),
]
_MEDIA_TYPES = {"video": "video/mp4", "thumbnail": "image/webp", "spritesheet": "image/jpeg"}
_POLL_MS = 1000


def _binary(description: str, *types: str) -> dict[int | str, dict[str, Any]]:
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"description": description, "content": dict.fromkeys(types, schema)}}


def _create_body() -> dict[str, Any]:
    """The two forms of a create request, for the OpenAPI document."""
    schema = CreateVideo.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs")
    schema["properties"] = dict(schema["properties"])
    form = {**schema, "properties": {**schema["properties"], "input_reference": {"type": "string", "format": "binary"}}}
    return {
        "definitions": {**definitions, "CreateVideo": schema, "CreateVideoForm": {**form, "title": "CreateVideoForm"}},
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/CreateVideo"}},
                "multipart/form-data": {"schema": {"$ref": "#/components/schemas/CreateVideoForm"}},
            },
        },
    }


CREATE_BODY = _create_body()


def video_routes(service: JobService) -> APIRouter:
    """The routes on one service."""
    router = APIRouter(prefix="/v1/videos", tags=["videos"])
    config = service.config
    named = model_id(config)

    def reader(request: Request) -> str | None:
        """Whose jobs are seen: all, while there are no keys."""
        return request.state.owner if config.serve.keys else None

    def shown(view: JobView) -> Video:
        return video_of(view, named)

    @router.post(
        "",
        response_model=Video,
        summary="Make a video",
        responses=documented(400, 404, 408, 413, 415, 422, 429, 503),
        openapi_extra={"requestBody": CREATE_BODY["requestBody"]},
    )
    async def create(request: Request, idempotency_key: IdempotencyKey = None) -> Video:
        """Write a job down and return it, queued. It outlives this connection, and the server."""
        owner = request.state.owner
        try:
            await service.check_room(owner, idempotency_key)
        except RequestError:
            await drain(request)
            raise
        async with read_body(request, config.serve) as (fields, files):
            order = parse(fields)
            check_model(order.model, config)
            with TemporaryDirectory(prefix="splitreel-upload-") as place:
                wanted, names = await asyncio.to_thread(request_of, order, files, config, Path(place))
                with in_their_words(names):
                    view = await service.submit(
                        wanted, owner=owner, idempotency_key=idempotency_key, deadline=order.deadline
                    )
        return shown(view)

    @router.get("", response_model=VideoPage, summary="List videos", responses=documented(400, 404))
    async def listed(
        request: Request,
        after: Annotated[
            str | None, Query(description="The last id of the page before."), AfterValidator(_an_id_or_none)
        ] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Annotated[Literal["asc", "desc"], Query(description="By the time they were made.")] = "desc",
    ) -> VideoPage:
        """Your videos, newest first."""
        views, more = await service.page(reader(request), after=after, limit=limit, order=order)
        data = [shown(view) for view in views]
        ids = [item.id for item in data]
        return VideoPage(data=data, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=more)

    @router.get("/{video_id}", response_model=Video, summary="Retrieve a video", responses=documented(400, 404))
    async def retrieve(request: Request, response: Response, video_id: Id) -> Video:
        """The video's state, and how far it is."""
        view = await service.get(video_id, reader(request))
        response.headers["openai-poll-after-ms"] = str(_POLL_MS)
        return shown(view)

    @router.delete(
        "/{video_id}", response_model=VideoDeleted, summary="Delete a video", responses=documented(400, 404, 409)
    )
    async def delete(request: Request, video_id: Id) -> VideoDeleted:
        """Delete a video and its files for good. One in progress must be cancelled first."""
        await service.delete(video_id, reader(request))
        return VideoDeleted(id=video_id)

    @router.post("/{video_id}/cancel", response_model=Video, summary="Cancel a video", responses=documented(400, 404))
    async def cancel(request: Request, video_id: Id) -> Video:
        """End it: at once while queued, at its next step while in progress. One that has ended stays as it is."""
        return shown(await service.cancel(video_id, reader(request)))

    @router.get(
        "/{video_id}/content",
        summary="Download a video",
        response_class=FileResponse,
        responses={
            **documented(400, 404, 409),
            **_binary("The film, or a picture of it.", *_MEDIA_TYPES.values()),
            206: {"description": "A part of it, as `Range` asked.", **_binary("", *_MEDIA_TYPES.values())[200]},
            416: {"description": "The range lies outside the file."},
        },
    )
    async def content(
        request: Request,
        video_id: Id,
        variant: Annotated[Literal["video", "thumbnail", "spritesheet"], Query()] = "video",
    ) -> FileResponse:
        """The mp4; or its middle frame (WebP), or twelve frames on a sheet (JPEG)."""
        path = await service.content(video_id, reader(request), variant)
        name = f"{video_id}{path.suffix}"
        return FileResponse(path, media_type=_MEDIA_TYPES[variant], filename=name, content_disposition_type="inline")

    @router.get(
        "/{video_id}/events",
        summary="Follow a video",
        response_class=StreamingResponse,
        responses={
            **documented(400, 404),
            200: {
                "description": "Server-sent events, each with a Video as data: `queued`, `in_progress`, and at the end "
                "`completed` or `failed`.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
        },
    )
    async def events(request: Request, video_id: Id) -> StreamingResponse:
        """Its state, stage, step and ETA whenever they change, and every 10 s. Ends with the job, or with its deletion."""
        owner = reader(request)
        await service.get(video_id, owner)

        async def stream() -> AsyncIterator[str]:
            number = 0
            with suppress(JobNotFound):  # deleted since it was looked for above
                async for view in service.events(video_id, owner):
                    number += 1
                    video = shown(view)
                    yield f"id: {number}\nevent: {video.status}\ndata: {video.model_dump_json()}\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    @router.get(
        "/{video_id}/trace",
        summary="Where its time went",
        responses={
            **documented(400, 404, 409),
            200: {
                "description": "Timings and spans; or a Chrome trace; or a Gantt picture.",
                "content": {
                    "application/json": {"schema": {"type": "object"}},
                    "image/png": {"schema": {"type": "string", "format": "binary"}},
                },
            },
        },
        response_class=JSONResponse,
    )
    async def trace(
        request: Request,
        video_id: Id,
        form: Annotated[
            Literal["json", "chrome", "gantt"],
            Query(alias="format", description="chrome: for ui.perfetto.dev; gantt: a PNG."),
        ] = "json",
    ) -> Response:
        """What was recorded of its last run: queue, hops, stages, steps, with seconds and bytes."""
        spans = await service.trace(video_id, reader(request))
        if form == "gantt":
            return Response(await asyncio.to_thread(_picture, spans), media_type="image/png")
        content = chrome_trace(spans) if form == "chrome" else _timings(video_id, spans)
        return Response(json.dumps(content), media_type="application/json")

    return router


def _timings(video_id: str, spans: list[SpanRecord]) -> dict[str, Any]:
    report = reports([replace(span, request_id=video_id) if span.request_id else span for span in spans])
    parts = [{"part": name, "seconds": seconds} for name, seconds in report[0].timings.parts] if report else []
    return {
        "id": video_id,
        "object": "video.trace",
        "status": report[0].status if report else "unfinished",
        "seconds": report[0].seconds if report else 0.0,
        "parts": parts,
        "spans": [span.to_dict() for span in spans],
    }


def _picture(spans: list[SpanRecord]) -> bytes:
    import io

    made = io.BytesIO()
    gantt(spans).save(made, format="PNG")
    return made.getvalue()
