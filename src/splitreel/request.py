"""What goes in and what comes out: requests, media inputs, results.

Knows no model and no cluster. Rules of the model (frame counts, canvas, limits) are checked by the session against
the checkpoint's geometry; here only what is true of any request is checked.
"""

from __future__ import annotations

import math
import operator
import os
import secrets
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from splitreel.errors import InvalidRequest
from splitreel.lora import LoraUse, as_uses
from splitreel.media import Clip, Sound, write_film
from splitreel.media.target import create_partial
from splitreel.observe.spans import SpanRecorder
from splitreel.observe.timings import Timings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    PathLike = str | os.PathLike[str]
    ImageSource = PathLike | Image | NDArray[np.uint8]

Output = Literal["mp4", "frames", "tensor"]
OUTPUTS: tuple[Output, ...] = ("mp4", "frames", "tensor")


class Stage(StrEnum):
    """The three stages of a request, in order."""

    ENCODE = "encode"
    DENOISE = "denoise"
    DECODE = "decode"

    @property
    def previous(self) -> Stage | None:
        """The stage whose payload this one takes; None for the first."""
        order = list(Stage)
        index = order.index(self)
        return order[index - 1] if index else None

    @property
    def following(self) -> Stage | None:
        """The stage that takes this one's payload; None for the last."""
        order = list(Stage)
        index = order.index(self)
        return order[index + 1] if index + 1 < len(order) else None


@dataclass(frozen=True)
class ImageReference:
    """A picture of a subject, style or scene. `source`: a path, a PIL image or an (H, W, 3) uint8 array."""

    source: ImageSource
    kind = "image"


@dataclass(frozen=True)
class VideoReference:
    """A clip whose motion, and sound if it has any, conditions the request.

    `source`: a path, or (F, H, W, 3) uint8 frames, which then need `fps` (and may bring `sound`).
    `fps`: for a path, replaces the rate that the container states.
    """

    source: PathLike | NDArray[np.uint8]
    fps: float | None = None
    sound: Sound | None = None
    kind = "video"


@dataclass(frozen=True)
class AudioReference:
    """A voice or music. `source`: a path, or a `Sound` (waveform and its sample rate)."""

    source: PathLike | Sound
    kind = "audio"


Reference = ImageReference | VideoReference | AudioReference


def new_request_id() -> str:
    """A short id, unique enough for one deployment: 12 hex digits."""
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, eq=False)
class GenerateRequest:
    """One film to make.

    `steps` counts sigma points, so a request makes `steps - 1` transformer calls; without it the config's preset says how
    many, else 50. `seed=None` draws one, which the result reports. `lora`: exactly these of the loaded adapters, as
    `LoraUse`, name or mapping; None takes those that the session has set.
    `num_frames` is rounded up to the next legal count, `seconds` to the next legal duration; at most
    one of the two. `height` and `width` go together; without them the first keyframe, else 16:9, gives the canvas.
    """

    prompt: str
    image: ImageSource | None = None
    last_image: ImageSource | None = None
    references: Sequence[Reference] = ()
    num_frames: int | None = None
    seconds: float | None = None
    height: int | None = None
    width: int | None = None
    steps: int | None = None
    seed: int | None = None
    output: Output = "mp4"
    priority: int = 0
    lora: Sequence[LoraUse] | None = None
    request_id: str = field(default_factory=new_request_id)

    def __post_init__(self) -> None:
        if self.lora is not None:
            object.__setattr__(self, "lora", as_uses(self.lora))
        if isinstance(self.references, str | ImageReference | VideoReference | AudioReference):
            raise InvalidRequest(
                f"references: expected a list, found one {type(self.references).__name__}. Put it in [ ].",
                field="references",
            )
        object.__setattr__(self, "references", tuple(self.references))
        for name in ("num_frames", "height", "width", "steps", "seed", "priority"):
            value = getattr(self, name)
            if not isinstance(value, int | float | str | None) and hasattr(value, "__index__"):
                object.__setattr__(self, name, operator.index(value))  # numpy's whole numbers
        check_plain_fields(self)

    @property
    def workflow(self) -> str:
        """The workflow that the inputs call for: `ref2va`, `fl2va` or `t2va`."""
        if self.references:
            return "ref2va"
        return "fl2va" if self.image is not None or self.last_image is not None else "t2va"

    def with_seed(self) -> GenerateRequest:
        """This request with its seed settled."""
        return self if self.seed is not None else replace(self, seed=secrets.randbelow(2**31))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> GenerateRequest:
        """Build from plain data; an unknown name is an error that lists the accepted ones."""
        accepted = sorted(cls.__dataclass_fields__)
        unknown = sorted(set(values) - set(accepted))
        if unknown:
            raise InvalidRequest(
                f"{unknown[0]}: not an input of a request. Accepted: {', '.join(accepted)}. "
                "The model is guidance-distilled: it takes no negative prompt and no guidance scale.",
                field=unknown[0],
            )
        return cls(**values)


def check_plain_fields(request: GenerateRequest) -> None:
    """Check what needs no model: types and ranges. Raises InvalidRequest naming the field."""

    def refuse(name: str, expected: str, found: object, hint: str = "") -> None:
        raise InvalidRequest(f"{name}: expected {expected}, found {found!r}.{' ' + hint if hint else ''}", field=name)

    prompt: object = request.prompt  # types are promises; a caller without a type checker gets a message
    if not isinstance(prompt, str):
        refuse("prompt", "one string", type(prompt).__name__, "One request makes one film; send several.")
    if not request.prompt.strip():
        refuse("prompt", "a text that is not empty", request.prompt)
    try:
        str(prompt).encode()
    except UnicodeEncodeError as error:
        refuse("prompt", "valid Unicode", f"half a character at {error.start}", "Read the text as UTF-8.")
    for name in ("num_frames", "height", "width", "steps", "priority"):
        value = getattr(request, name)
        if value is None and name in ("num_frames", "height", "width", "steps"):
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(name, "a whole number", value)
    if request.seconds is not None and (
        isinstance(request.seconds, bool)
        or not isinstance(request.seconds, int | float)
        or not math.isfinite(request.seconds)
    ):
        refuse("seconds", "a finite number", request.seconds)
    if request.num_frames is not None and request.seconds is not None:
        refuse("seconds", "either num_frames or seconds", f"both ({request.num_frames} and {request.seconds})")
    if (request.height is None) != (request.width is None):
        refuse("height, width", "both or neither", f"{request.height} x {request.width}")
    if request.steps is not None and request.steps < 2:
        refuse(
            "steps",
            "2 or more",
            request.steps,
            "Steps are sigma points: N points make N - 1 transformer calls, so 1 would make none.",
        )
    if request.steps is not None and request.steps > 1000:
        refuse("steps", "at most 1000", request.steps)
    seed = request.seed
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        refuse("seed", "a whole number from 0 to 2**63 - 1", seed)
    if request.output not in OUTPUTS:
        refuse("output", f"one of {', '.join(OUTPUTS)}", request.output)
    request_id: object = request.request_id
    if not isinstance(request_id, str) or not request_id:
        refuse("request_id", "a text that is not empty", request.request_id)
    references: Sequence[object] = request.references
    for index, reference in enumerate(references):
        if not isinstance(reference, ImageReference | VideoReference | AudioReference):
            refuse(
                f"references[{index}]",
                "an ImageReference, VideoReference or AudioReference",
                type(reference).__name__,
            )


@dataclass(frozen=True)
class Effective:
    """What a request really makes, after the model's rules were applied.

    `num_frames` at `fps`; the canvas `height` x `width` in pixels; `steps` sigma points and `transformer_calls`,
    of which `cached_steps` reused earlier work. With sparse attention (VSA): how often a layer's attention was sparse, and
    how often dense as its step or layer is to be.
    `warnings`: what was changed or may surprise (a rounded frame count, a stretched keyframe). `lora`: the adapters that
    act, asked for or set for all.
    """

    workflow: str
    num_frames: int
    fps: float
    height: int
    width: int
    steps: int
    transformer_calls: int
    seed: int
    sample_rate: int
    cached_steps: int = 0
    sparse_attention_calls: int = 0
    dense_attention_calls: int = 0
    warnings: tuple[str, ...] = ()
    lora: tuple[LoraUse, ...] = ()

    @property
    def seconds(self) -> float:
        """Duration of the film."""
        return self.num_frames / self.fps


@dataclass(frozen=True, eq=False)
class GenerateResult:
    """A finished film, in the form that the request asked for.

    Exactly one of `video_bytes` (`output="mp4"`), `frames` ((F, H, W, 3) uint8, `"frames"`) and `tensor`
    ((F, 3, H, W) float32 in [0, 1], `"tensor"`) is present; `waveform` is (2, N) float32 and comes with the latter two.
    `recorder`: where `save` records its span; the session sets it.
    """

    request_id: str
    effective: Effective
    timings: Timings = field(default_factory=Timings)
    seconds: float = 0.0
    video_bytes: bytes | None = None
    frames: NDArray[np.uint8] | None = None
    tensor: NDArray[np.float32] | None = None
    waveform: NDArray[np.float32] | None = None
    recorder: Callable[[], AbstractContextManager[SpanRecorder]] | None = field(default=None, repr=False, compare=False)

    @property
    def seed(self) -> int:
        """The seed that was used."""
        return self.effective.seed

    @property
    def sample_rate(self) -> int:
        """Samples per second of the sound."""
        return self.effective.sample_rate

    def save(self, path: PathLike, *, fps: float | None = None, sound: bool = True) -> Path:
        """Write an mp4 (H.264 yuv420p, AAC stereo) and return its path; the file appears whole or not at all.

        `fps` other than the film's is refused: sound and picture would drift apart. `sound=False` leaves it out.
        """
        if fps is not None and fps != self.effective.fps:
            raise InvalidRequest(
                f"fps: the film was made at {self.effective.fps:g} frames per second with sound of the same length; "
                f"saved at {fps:g} the two would drift apart. Leave fps out.",
                field="fps",
            )
        target = Path(path)
        if target.suffix.lower() != ".mp4":
            raise InvalidRequest(f"path: expected a name that ends in .mp4, found {target.name!r}.", field="path")
        if self.recorder is None:
            return self._write(target, sound=sound)
        with self.recorder() as spans, spans.span("save") as attributes:
            written = self._write(target, sound=sound)
            attributes["bytes"] = written.stat().st_size
        return written

    def _write(self, target: Path, *, sound: bool) -> Path:
        if self.video_bytes is not None:
            if not sound:
                raise InvalidRequest('sound: an mp4 is already encoded. Ask for output="frames".', field="sound")
            return _write_whole(target, self.video_bytes)
        if self.frames is not None:
            frames = self.frames
        elif self.tensor is not None:
            frames = (self.tensor.transpose(0, 2, 3, 1) * 255.0).round().astype("uint8")
        else:
            raise InvalidRequest("save: this result holds no video.", field="output")
        track = Sound(self.waveform, self.sample_rate) if sound and self.waveform is not None else None
        write_film(target, Clip(frames=frames, fps=self.effective.fps, sound=track))
        return target


def _write_whole(target: Path, content: bytes) -> Path:
    partial = create_partial(target)
    try:
        partial.write_bytes(content)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
