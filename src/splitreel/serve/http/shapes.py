"""What goes over the wire: OpenAI's video objects with our extensions as further fields."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from splitreel.serve.http.words import phrased
from splitreel.serve.jobs.table import MAX_PRIORITY
from splitreel.serve.jobs.view import JobView

_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
# As clients call a keyframe, and as a job's request does.
_KEYFRAMES: tuple[tuple[Literal["first", "last"], str], ...] = (("first", "image"), ("last", "last_image"))

VideoId = Annotated[str, StringConstraints(pattern=r"^video_[0-9a-f]{24}$")]


class Source(BaseModel):
    """A picture, clip or sound: by data URL, by https URL of a host that the server allows, or by an uploaded part's name.

    `fps` belongs to clips: the rate they were made at, where the container states another.
    """

    model_config = ConfigDict(extra="forbid")
    image_url: str | None = Field(default=None, description="As OpenAI has it: a data URL or https URL.")
    url: str | None = Field(default=None, description="The same for any kind of medium.")
    upload: str | None = Field(default=None, description="Multipart only: the name of the part that holds the file.")

    @model_validator(mode="after")
    def _one(self) -> Source:
        if sum(value is not None for value in (self.image_url, self.url, self.upload)) != 1:
            raise ValueError("expected exactly one of url, image_url and upload")
        return self


class KeyframeSources(BaseModel):
    """First and last frame of the film."""

    model_config = ConfigDict(extra="forbid")
    first: Source | None = None
    last: Source | None = None


class ReferenceSource(Source):
    """One of the ordered references."""

    kind: Literal["image", "video", "audio"]
    fps: float | None = Field(default=None, gt=0, le=1000)


class CreateVideo(BaseModel):
    """A film to make. `prompt`, `model`, `seconds`, `size` and `input_reference` are OpenAI's; the rest is ours."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(min_length=1, max_length=32_000, description="What to show and to be heard.")
    model: str | None = Field(default=None, max_length=256, description="One of /v1/models; the only one by default.")
    seconds: str | float | None = Field(
        default=None, description="Rounded up to what the model can make; the shortest by default.", examples=["6"]
    )
    size: str | None = Field(default=None, description="WIDTHxHEIGHT, multiples of 32.", examples=["832x480"])
    input_reference: Source | None = Field(
        default=None,
        description="A picture: the first frame where the server makes films from keyframes (fl2va), else a reference.",
    )
    keyframes: KeyframeSources | None = None
    references: list[ReferenceSource] = Field(default=[], max_length=12, description="In order (ref2va).")
    num_frames: int | None = Field(default=None, ge=1, le=10_000, description="Instead of seconds.")
    steps: int | None = Field(
        default=None,
        ge=2,
        le=1000,
        description="Sigma points: N make N - 1 transformer calls. Default: the server's preset, else 50.",
    )
    seed: int | None = Field(default=None, ge=0, lt=2**63, description="Drawn and reported by default.")
    lora: Any = Field(
        default=None, description='Adapters of the config: ["turbo"] or [{"name": "turbo", "scale": 0.8}]; [] for none.'
    )
    priority: int = Field(
        default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="One point is worth a minute of waiting."
    )
    deadline: float | None = Field(
        default=None, gt=0, le=31_536_000, description="Seconds from now; not done by then, the video fails."
    )

    @field_validator("seconds")
    @classmethod
    def _a_number(cls, value: str | float | None) -> float | None:
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            raise ValueError("expected a number of seconds") from None
        if not 0 < number < 1e6:
            raise ValueError("expected a positive number of seconds")
        return number

    @field_validator("size")
    @classmethod
    def _a_size(cls, value: str | None) -> str | None:
        if value is not None and not _SIZE.fullmatch(value):
            raise ValueError("expected WIDTHxHEIGHT such as 832x480")
        return value

    @property
    def width_height(self) -> tuple[int, int] | None:
        """The size as numbers."""
        match = _SIZE.fullmatch(self.size) if self.size is not None else None
        return (int(match[1]), int(match[2])) if match else None


class LoraShown(BaseModel):
    """An adapter that acts, and how strongly."""

    name: str
    scale: float


class ReferenceShown(BaseModel):
    """What one of the references was; the medium itself is not given back."""

    kind: Literal["image", "video", "audio"]
    fps: float | None = None


class VideoError(BaseModel):
    """Why a video failed. A cancelled one is failed with code `cancelled`: OpenAI's API has no other word for it."""

    code: str
    message: str


class Video(BaseModel):
    """A video job. Times are seconds since 1970; `progress` is percent, from the steps of all stages."""

    id: VideoId
    object: Literal["video"] = "video"
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int = Field(ge=0, le=100)
    created_at: int
    completed_at: int | None
    expires_at: int | None
    prompt: str
    seconds: str = Field(description="Of the film that is made.")
    size: str
    error: VideoError | None
    remixed_from_video_id: None = None
    workflow: str
    num_frames: int
    fps: float
    steps: int
    seed: int
    lora: list[LoraShown] = Field(description="Adapters that act: those asked for, else those of the server's config.")
    keyframes: list[Literal["first", "last"]] = Field(description="The frames that were given.")
    references: list[ReferenceShown] = Field(description="Those that were given, in order.")
    priority: int
    deadline_at: int | None = Field(description="When it fails unless it is done: its creation and `deadline`.")
    position: int | None = Field(description="Videos before it while queued.")
    stage: str | None = Field(description="The stage that runs: encode, denoise or decode.")
    unit: str | None = Field(description="What the stage counts: layer, tile, step or chunk.")
    done: int | None
    total: int | None
    eta: float | None = Field(description="Seconds until it is done; null before the first film.")
    cancelling: bool
    attempts: int
    seconds_taken: float | None
    warnings: list[str] = Field(description="What was rounded, and what may surprise.")


class VideoPage(BaseModel):
    """Some videos, and whether there are more: ask again with `after=last_id`."""

    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    """The video and its files are gone."""

    id: VideoId
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


class Model(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "splitreel"


class ModelPage(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[Model]


class Alive(BaseModel):
    """The process answers."""

    status: Literal["alive"] = "alive"
    version: str


class WorkerState(BaseModel):
    """A worker as it last answered."""

    worker: str
    role: str
    state: str
    running: str | None


class Ready(BaseModel):
    """Whether videos are taken now."""

    status: Literal["loading", "ready", "degraded", "draining", "failed"]
    detail: str
    workers: list[WorkerState]


def video_of(view: JobView, model: str) -> Video:
    """A job in OpenAI's words."""
    made = view.effective
    status: Any = "failed" if view.state == "cancelled" else view.state
    error = None
    if view.state in ("failed", "cancelled"):
        error = VideoError(code=view.error_code or "internal_error", message=view.error_message or "")
    return Video(
        id=view.id,
        model=model,
        status=status,
        progress=view.progress,
        created_at=int(view.created),
        completed_at=None if view.ended is None else int(view.ended),
        expires_at=None if view.expires is None else int(view.expires),
        prompt=view.request["prompt"],
        seconds=f"{made['seconds']:.3f}".rstrip("0").rstrip("."),
        size=f"{made['width']}x{made['height']}",
        error=error,
        workflow=made["workflow"],
        num_frames=made["num_frames"],
        fps=made["fps"],
        steps=made["steps"],
        seed=made["seed"],
        # A job that was written down before adapters were tells those that it asked for.
        lora=[LoraShown(**use) for use in made.get("lora", view.request.get("lora") or ())],
        keyframes=[name for name, field in _KEYFRAMES if view.request.get(field) is not None],
        references=[ReferenceShown(kind=item["kind"], fps=item.get("fps")) for item in view.request["references"]],
        priority=view.priority,
        deadline_at=None if view.deadline is None else int(view.deadline),
        position=view.position,
        stage=view.stage,
        unit=view.unit,
        done=view.done,
        total=view.total,
        eta=view.eta,
        cancelling=view.cancelling,
        attempts=view.attempts,
        seconds_taken=view.seconds,
        warnings=[phrased(text) for text in made["warnings"]],
    )
