"""The page: Gradio's components, and what happens when they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI

from splitreel.errors import SplitreelError
from splitreel.observe.logs import get_logger
from splitreel.serve.jobs.refusals import message_of
from splitreel.serve.jobs.service import JobService
from splitreel.serve.jobs.view import JobView
from splitreel.serve.studio import shown
from splitreel.serve.studio.cluster import Cluster, condition
from splitreel.serve.studio.form import NO_ADAPTERS, SIZES, Form, form_of, request_of
from splitreel.serve.studio.uploads import Uploads, kind_of

logger = get_logger(__name__)

_HERE = Path(__file__).parent
_TICK = 1.0  # seconds between looks at the jobs
_ROWS = 10
_MOST_ROWS = 100
_SESSIONS = 256  # pages whose changed components Gradio remembers; nothing of ours depends on it
# No queue of Gradio's: every answer is quick, and what takes long is a job. No public names: programs use the API.
_EVENT: dict[str, Any] = {
    "queue": False,
    "preprocess": False,
    "show_progress": "hidden",
    "api_visibility": "private",
    "concurrency_limit": None,
}
_FONT, _MONO = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]


class _Blocks(gr.Blocks):
    """Gradio's page, which reads no file but uploads, and fetches none."""

    uploads: Uploads

    async def preprocess_data(
        self, block_fn: Any, inputs: list[Any], state: Any, explicit_call: bool = False
    ) -> list[Any]:
        """As Gradio has it, after its inputs were looked at."""
        try:
            self.uploads.check(inputs)
        except SplitreelError as error:
            raise gr.Error(error.message, print_exception=False) from None
        made: list[Any] = await super().preprocess_data(block_fn, inputs, state, explicit_call)
        return made


def make_app(service: JobService, uploads: Uploads) -> FastAPI:
    """The page as an app of its own, to be served at `/`."""
    studio = Studio(service, uploads)
    app: FastAPI = gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        studio.blocks,
        path="/",
        theme=_theme(),
        css=(_HERE / "page.css").read_text(),
        footer_links=[],
        run_history=False,
        show_error=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        max_file_size=service.config.serve.max_upload_bytes,
    )
    return app


def _theme() -> gr.themes.Base:
    """Fonts of the system, so that nothing is fetched; small print dark enough to be read (4.5:1)."""
    theme = gr.themes.Base(primary_hue="teal", neutral_hue="slate", font=_FONT, font_mono=_MONO)
    return theme.set(
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_hover_dark="*primary_600",
    )


class Studio:
    """The components and their handlers. Handlers run on the service's loop; a page's own state is in the page."""

    def __init__(self, service: JobService, uploads: Uploads) -> None:
        self._service = service
        self._uploads = uploads
        self._cluster = Cluster(service)
        self.blocks = _Blocks(title="splitreel", analytics_enabled=False, fill_width=True)
        self.blocks.uploads = uploads
        self.blocks.state_session_capacity = _SESSIONS
        with self.blocks:
            self._build()

    # Components -------------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        script = (_HERE / "page.js").read_text()
        workflows = self._service.config.model.workflows
        self._chosen = gr.Textbox("", visible=False)
        self._rows = gr.Number(_ROWS, visible=False)
        self._head = gr.HTML(elem_id="sr-head")
        with gr.Row(elem_id="sr-columns"):
            with gr.Column(scale=2, min_width=300, elem_id="sr-form"):
                fields = self._build_form(workflows, script)
            with gr.Column(scale=3, min_width=300, elem_id="sr-shown"):
                self._film = gr.HTML(js_on_load=script, elem_id="sr-film")
                self._history = gr.HTML(js_on_load=script, elem_id="sr-history")
                self._panel = gr.HTML(elem_id="sr-cluster")
        self._notice = gr.HTML(js_on_load=script, elem_id="sr-notice")
        self._fields = [fields[name] for name in Form.names()]
        self._connect()

    def _build_form(self, workflows: list[str] | tuple[str, ...], script: str) -> dict[str, Any]:
        """The inputs by the names of Form's fields."""
        made: dict[str, Any] = {
            "prompt": gr.Textbox(
                label="Prompt", info="What to show and to be heard.", lines=4, max_lines=12, elem_id="sr-prompt"
            )
        }
        pictures: dict[str, Any] = {"sources": ["upload", "clipboard"], "type": "filepath", "height": 170}
        self._frames = gr.Accordion("First and last frame", open=False, visible="fl2va" in workflows)
        with self._frames, gr.Row():
            made["first"] = gr.Image(label="First frame", elem_id="sr-first", **pictures)
            made["last"] = gr.Image(label="Last frame", elem_id="sr-last", **pictures)
        self._references = gr.Accordion("References, in order", open=False, visible="ref2va" in workflows)
        with self._references:
            self._list = gr.HTML(js_on_load=script, elem_id="sr-references")
            self._upload = gr.UploadButton(
                "Add pictures, clips or sounds",
                file_count="multiple",
                file_types=["image", "video", "audio"],
                elem_id="sr-add",
            )
            made["references"] = gr.JSON([], visible=False)
        with gr.Row():
            made["size"] = gr.Dropdown(
                list(SIZES),
                value=SIZES[0],
                label="Size",
                info="Or WIDTHxHEIGHT.",
                allow_custom_value=True,
                min_width=130,
            )
            made["seconds"] = gr.Textbox(
                "", label="Length (s)", info="Empty: the shortest.", max_lines=1, min_width=130
            )
        with gr.Row():
            made["steps"] = gr.Textbox("", label="Steps", info="Empty: default.", max_lines=1, min_width=95)
            made["seed"] = gr.Textbox("", label="Seed", info="Empty: drawn.", max_lines=1, min_width=95)
            made["priority"] = gr.Number(
                0, label="Priority", info="1 = a minute.", precision=0, minimum=-100, maximum=100, min_width=95
            )
        with gr.Row(visible=False) as self._adapters:
            made["lora"] = gr.Dropdown(
                [], value=[], multiselect=True, label="LoRA", info="Nothing chosen: the server's own."
            )
            made["lora_scale"] = gr.Number(1.0, label="LoRA scale", min_width=130)
        self._make = gr.Button("Make the film", variant="primary", elem_id="sr-make")
        return made

    def _connect(self) -> None:
        views = [self._head, self._panel, self._film, self._history]
        place = [self._chosen, self._rows]
        gr.Timer(_TICK).tick(self.look, place, views, **_EVENT)
        self.blocks.load(self.open, self._rows, [*views, self._chosen], **_EVENT)
        self.blocks.load(self.adapters, None, [self._adapters, self._fields[Form.names().index("lora")]], **_EVENT)
        seen = [self._notice, self._chosen, self._film, self._history]
        gr.on(
            [self._make.click, self._fields[0].submit], self.submit, [self._rows, *self._fields], seen, **_EVENT
        ).success(None, None, None, js="() => document.dispatchEvent(new Event('sr-made'))", **_EVENT)
        lists = [self._fields[Form.names().index("references")], self._list]
        self._upload.upload(self.add, [self._upload, lists[0]], [self._notice, *lists], **_EVENT)
        for source in (self._film, self._history, self._notice, self._list):
            source.click(
                self.act,
                [*place, lists[0]],
                [*seen, self._rows, self._list, self._frames, self._references, *self._fields],
                **_EVENT,
            )

    # Handlers ---------------------------------------------------------------------------------------------------------------

    async def look(self, chosen: Any, rows: Any, request: gr.Request) -> dict[Any, Any]:
        """Everything that changes by itself. Not the choice: one that was made meanwhile would be undone."""
        seen = await self.open(rows, request, chosen)
        return {component: value for component, value in seen.items() if component is not self._chosen}

    async def open(self, rows: Any, request: gr.Request, chosen: Any = "") -> dict[Any, Any]:
        """The page as it is first seen."""
        stats = await self._cluster.read()
        head = f'<header class="sr-top"><h1>splitreel</h1>{condition(stats)}</header>'
        panel = self._cluster.panel(stats)
        return {self._head: head, self._panel: panel, **await self._films(chosen, rows, request)}

    async def submit(self, request: gr.Request, rows: Any, *values: Any) -> dict[Any, Any]:
        """Make a film of the form."""
        try:
            wanted = request_of(Form(*values), self._uploads)
            view = await self._service.submit(wanted, owner=_owner(request))
        except Exception as error:
            return {self._notice: _in_words(error)}
        text = "; ".join([f"Queued with seed {view.effective['seed']}", *map(str, view.effective["warnings"])])
        return {self._notice: shown.notice(f"{text}."), **await self._films(view.id, rows, request)}

    async def add(self, files: Any, entries: Any) -> dict[Any, Any]:
        """Put uploads at the end of the references."""
        found = list(entries or ())
        try:
            for file in files if isinstance(files, list) else [files]:
                name = str(file.get("orig_name") or Path(self._uploads.path_of(file)).name)
                found.append({"path": file["path"], "orig_name": name[:120], "kind": kind_of(name)})
        except Exception as error:
            return {self._notice: _in_words(error)}
        return {self._notice: "", **self._referring(found)}

    async def act(
        self, chosen: Any, rows: Any, entries: Any, event: gr.EventData, request: gr.Request
    ) -> dict[Any, Any]:
        """A button in one of the lists."""
        action, target = str(event._data.get("action")), str(event._data.get("id", ""))
        try:
            if action in ("up", "down", "remove"):
                return self._referring(_moved(list(entries or ()), action, int(target)))
            if action == "reuse":
                view = await self._service.get(target, self._reader(request))
                form = await asyncio.to_thread(form_of, view, self._service.folder, self._uploads)
                return self._filled(form)
            if action == "cancel":
                await self._service.cancel(target, self._reader(request))
            elif action == "delete":
                await self._service.delete(target, self._reader(request))
            elif action == "show":
                chosen = target
            elif action == "more":
                rows = min(_MOST_ROWS, _count(rows) + _ROWS)
        except Exception as error:
            return {self._notice: _in_words(error)}
        return {self._notice: "", self._rows: _count(rows), **await self._films(chosen, rows, request)}

    async def adapters(self) -> list[Any]:
        """Offer the adapters that are loaded."""
        session = self._service.deployment.session
        names = [info.name for info in session.lora.list()] if session is not None else []
        return [
            gr.update(visible=bool(names)),
            gr.update(choices=[("none", NO_ADAPTERS), *((name, name) for name in names)]),
        ]

    # ------------------------------------------------------------------------------------------------------------------------

    async def _films(self, chosen: Any, rows: Any, request: gr.Request) -> dict[Any, Any]:
        """The chosen film and the list. Without a choice, the one that was made last."""
        reader = self._reader(request)
        views, more = await self._service.page(reader, limit=_count(rows))
        view: JobView | None = next((item for item in views if item.id == chosen), None)
        if view is None and isinstance(chosen, str) and chosen:
            try:
                view = await self._service.get(chosen, reader)
            except SplitreelError:
                view = None
        view = view or (views[0] if views else None)
        name = view.id if view else ""
        return {
            self._chosen: name,
            self._film: shown.film(view, traced=self._service.config.trace.record),
            self._history: shown.history(views, name, more=more and _count(rows) < _MOST_ROWS),
        }

    def _reader(self, request: gr.Request) -> str | None:
        """Whose jobs are seen: all, while there are no keys."""
        return _owner(request) if self._service.config.serve.keys else None

    def _referring(self, entries: list[dict[str, Any]]) -> dict[Any, Any]:
        return {self._fields[Form.names().index("references")]: entries, self._list: shown.references(entries)}

    def _filled(self, form: Form) -> dict[Any, Any]:
        """The form with a job's settings."""
        made = {field: getattr(form, name) for name, field in zip(Form.names(), self._fields, strict=True)}
        for name in ("first", "last"):
            medium = getattr(form, name)
            made[self._fields[Form.names().index(name)]] = medium["path"] if medium else None
        return {
            **made,
            **self._referring(list(form.references)),
            self._frames: gr.update(open=form.first is not None or form.last is not None),
            self._references: gr.update(open=bool(form.references)),
            self._notice: shown.notice(
                "The form has the settings of that film. Its seed is filled in: empty it for another."
            ),
        }


def _owner(request: gr.Request) -> str:
    """The name of the key that the guard found."""
    assert request.request is not None
    return str(request.request.state.owner)


def _in_words(error: Exception) -> str:
    """An error for the page; one that is none of ours goes into the log."""
    if not isinstance(error, SplitreelError):
        logger.error("studio: %s", error, exc_info=error)
    return shown.notice(message_of(error), "error")


def _count(rows: object) -> int:
    return min(_MOST_ROWS, max(1, int(rows))) if isinstance(rows, int | float) else _ROWS


def _moved(entries: list[dict[str, Any]], action: str, index: int) -> list[dict[str, Any]]:
    """The list with one entry moved by a place, or without it."""
    if not 0 <= index < len(entries) or not all(isinstance(entry, Mapping) for entry in entries):
        return entries
    entry = entries.pop(index)
    if action != "remove":
        entries.insert(max(0, index + (1 if action == "down" else -1)), entry)
    return entries
