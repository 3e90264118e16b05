"""Reading video: decoded frame by frame, put on a constant rate and on the canvas as it goes, and cut where asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from av.stream import Disposition
from PIL import Image

from splitreel.media.data import Clip
from splitreel.media.files import MAX_PIXELS, PathLike, check_complete, check_stream, open_media, refuse
from splitreel.media.grid import Grid
from splitreel.media.sound import check_sound, decode_sound

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream
    from numpy.typing import NDArray

    Canvas = Callable[[int, int], tuple[int, int]]

_EXPECTED = "a video"
_NO_TIMESTAMPS = 0x0080  # AVFMT_NOTIMESTAMPS of libavformat
T = TypeVar("T")


@dataclass(frozen=True)
class VideoFacts:
    """What a video file says of itself, without decoding more than its first frame.

    `width`, `height`: pixels as displayed (rotation applied). `fps`, `frames`, `seconds`: None when not stated.
    """

    width: int
    height: int
    fps: float | None
    frames: int | None
    seconds: float | None
    rotation: int
    codec: str
    has_sound: bool


def probe_video(path: PathLike, where: str) -> VideoFacts:
    """The facts of a video file. Raises InvalidRequest with `field=where` if it is none or cannot be decoded."""
    with open_media(path, where, _EXPECTED) as container:
        stream = _video_stream(container, where, repr(str(path)))
        frame = next(iter(container.decode(stream)), None)
        if frame is None:
            refuse(where, _EXPECTED, f"no frames in {str(path)!r}", "Export the file again.")
        turned = _turns(frame) % 2 == 1
        seconds = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else None
        if seconds is None and container.duration:
            seconds = container.duration / 1_000_000
        return VideoFacts(
            width=frame.height if turned else frame.width,
            height=frame.width if turned else frame.height,
            fps=_stated_rate(container, stream),
            frames=stream.frames or None,
            seconds=seconds,
            rotation=int(frame.rotation),
            codec=stream.codec_context.name,
            has_sound=bool(container.streams.audio),
        )


def read_video(
    source: PathLike | Clip | NDArray[np.uint8],
    where: str,
    *,
    max_frames: int,
    fps: float = 24.0,
    canvas: Canvas | None = None,
    source_fps: float | None = None,
    with_sound: bool = True,
) -> Clip:
    """The first `max_frames` frames of a video on the constant `fps` grid, each resized (LANCZOS) to the canvas.

    `source`: a path, a `Clip`, or uint8 (F, H, W, 3) frames, which need `source_fps`. `canvas(width, height)` gives
    (height, width) for the video's own size; None keeps it. `source_fps` replaces the rate and the timestamps of the
    source. The sound is cut at `max_frames / fps` seconds and otherwise left as it is.

    For files of a constant rate the frames are those that diffusers decodes and resamples, bit for bit; frames of a
    variable or wrongly stated rate are placed by their timestamps. As in diffusers, picture and sound each begin with
    their own first frame, and a pixel aspect ratio is left alone. At most one source frame is held besides the result,
    and decoding stops where the cut is. Raises InvalidRequest with `field=where` for a file that is missing, empty,
    damaged, cut short or no video, frames of another shape or type, and when no rate can be known.
    """
    if source_fps is not None and not (math.isfinite(source_fps) and source_fps > 0):
        refuse(where, "a positive frame rate", repr(source_fps), "Pass the rate the frames were made at.")
    seconds = max_frames / fps
    if isinstance(source, Clip):
        rate = source.fps if source_fps is None else source_fps
        clip = read_video(source.frames, where, max_frames=max_frames, fps=fps, canvas=canvas, source_fps=rate)
        sound = check_sound(source.sound, where, max_seconds=seconds) if source.sound and with_sound else None
        return Clip(clip.frames, fps, sound)
    if isinstance(source, np.ndarray):
        _check_frames(source, where)
        if source_fps is None:
            refuse(where, "frames with their rate", "no fps", "Pass fps with in-memory frames.")
        reel = _Reel(max_frames, canvas)
        grid = Grid(fps, float(source_fps))
        _fill(reel, grid, ((None, None, frame) for frame in source), lambda frame: frame)
        return Clip(reel.frames(where, "the frames"), fps)
    name = repr(str(source))
    with open_media(source, where, _EXPECTED) as container:
        stream = _video_stream(container, where, name)
        if source_fps is None:
            grid = Grid(fps, _stated_rate(container, stream), float(stream.time_base or 0))
        else:
            grid = Grid(fps, float(source_fps))
        reel = _Reel(max_frames, canvas)
        # AVI has no presentation times: libav passes decoding times off as such, out of order and with gaps.
        timed = source_fps is None and container.format.name != "avi"
        _fill(reel, grid, _timed_frames(container, stream, where, name, timed=timed), _pixels)
        frames = reel.frames(where, name)
        sound = None
        if with_sound and container.streams.audio:
            # The frames drained the container; the same second pass as diffusers makes.
            container.seek(0)
            sound = decode_sound(container, container.streams.audio[0], where, name, max_seconds=seconds)
        return Clip(frames, fps, sound)


class _Reel:
    """The growing result: takes frames until `limit`, sizes itself by the first."""

    def __init__(self, limit: int, canvas: Canvas | None) -> None:
        self.limit = limit
        self.count = 0
        self._canvas = canvas
        self._size: tuple[int, int] | None = None
        self._frames: NDArray[np.uint8] = np.empty((0, 0, 0, 3), np.uint8)

    def put(self, frame: NDArray[np.uint8], end: int) -> None:
        """Fill the slots up to `end` (not included) with one frame."""
        height, width = frame.shape[:2]
        if self._size is None:
            self._size = (height, width) if self._canvas is None else self._canvas(width, height)
            # Pages of an empty array cost nothing until they are written.
            self._frames = np.empty((min(self.limit, 512), *self._size, 3), np.uint8)
        if (height, width) != self._size:
            size = (self._size[1], self._size[0])
            frame = np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS))
        end = min(end, self.limit)
        while end > len(self._frames):
            self._frames = np.concatenate([self._frames, np.empty_like(self._frames)])
        self._frames[self.count : end] = frame
        self.count = end

    def frames(self, where: str, name: str) -> NDArray[np.uint8]:
        """What was put in; none at all is refused."""
        if not self.count:
            refuse(where, "a video of one frame or more", f"none in {name}, or half of one", "Send a longer video.")
        return self._frames[: self.count]


def _fill(
    reel: _Reel,
    grid: Grid,
    frames: Iterator[tuple[float | None, float | None, T]],
    pixels: Callable[[T], NDArray[np.uint8]],
) -> None:
    """Run timed frames over the grid into the reel; a frame's pixels are made only if it fills a slot."""
    held: T | None = None
    for time, duration, frame in frames:
        start = grid.start_of(time, duration)
        if held is not None and start > reel.count:
            reel.put(pixels(held), start)
        if reel.count >= reel.limit:
            return
        held = frame
    if held is not None and grid.end() > reel.count:
        reel.put(pixels(held), grid.end())


def _timed_frames(
    container: InputContainer, stream: VideoStream, where: str, name: str, *, timed: bool
) -> Iterator[tuple[float | None, float | None, VideoFrame]]:
    """Decoded frames with their start and duration in seconds; None for both unless `timed`."""
    rate_known = _stated_rate(container, stream) is not None
    end: float | None = None
    for frame in container.decode(stream):
        if not timed:
            yield None, None, frame
            continue
        if frame.pts is None and not rate_known:
            refuse(
                where,
                "a video with a frame rate or timestamps",
                f"neither in {name}",
                "Pass fps, the rate it was made at, or put it in an mp4.",
            )
        duration = float((frame.duration or 0) * (frame.time_base or 0)) or None
        end = None if frame.time is None else frame.time + (duration or 0.0)
        yield frame.time, duration, frame
    if end is not None:
        check_complete(container, stream, end, where, _EXPECTED, name)


def _video_stream(container: InputContainer, where: str, name: str) -> VideoStream:
    """The first video stream that is no cover picture, if it can be decoded."""
    stream = next((one for one in container.streams.video if not one.disposition & Disposition.attached_pic), None)
    if stream is None:
        refuse(where, _EXPECTED, f"no video in {name}", "Send sound alone as an audio reference.")
    check_stream(stream, where, _EXPECTED, name)
    width, height = stream.codec_context.width, stream.codec_context.height
    if width * height > MAX_PIXELS:
        refuse(where, f"at most {MAX_PIXELS} pixels", f"{name} of {width} x {height}", "Scale the video down.")
    stream.thread_type = "AUTO"
    return stream


def _stated_rate(container: InputContainer, stream: VideoStream) -> float | None:
    """The rate the container states; None for elementary streams, whose rate libav makes up."""
    if container.format.flags & _NO_TIMESTAMPS:
        return None
    rate = stream.average_rate or stream.guessed_rate
    return float(rate) if rate and rate > 0 else None


def _turns(frame: VideoFrame) -> int:
    return round(frame.rotation / 90.0) % 4


def _pixels(frame: VideoFrame) -> NDArray[np.uint8]:
    """Upright uint8 RGB: the display matrix holds a counterclockwise rotation, which is undone."""
    pixels = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    turns = _turns(frame)
    return np.ascontiguousarray(np.rot90(pixels, k=-turns)) if turns else pixels


def _check_frames(frames: NDArray[np.uint8], where: str) -> None:
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or 0 in frames.shape:
        refuse(
            where,
            "uint8 (F, H, W, 3) frames, at least one",
            f"{frames.dtype} {frames.shape}",
            "Scale to 0..255, convert to uint8 and put the channels last.",
        )
