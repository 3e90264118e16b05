"""Opening a media file that somebody else named: what is accepted, and how a refusal reads."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import av
import av.error

from splitreel.errors import InvalidRequest
from splitreel.words import plainly

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

PathLike = str | os.PathLike[str]

MAX_PIXELS = 100_000_000
"""Largest picture that is decoded, in pixels: 300 MB as RGB."""

# A request names files by path, so libav may open that one local file and nothing else: playlists (hls, dash, concat)
# name further files and addresses, and the text renderers (tty, subtitles) make a video of any text file.
_DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,asf,ogg,gif,apng,ivf,mxf,nut,h264,hevc,m4v,mpegvideo,"
    "wav,w64,aiff,au,caf,mp3,aac,ac3,eac3,flac,amr,ape,wv,tta,tak,dts,truehd"
)
_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": _DEMUXERS}


def refuse(where: str, expected: str, found: str, todo: str) -> NoReturn:
    """Raise InvalidRequest in the common form, with `field=where`."""
    raise InvalidRequest(f"{where}: expected {expected}, found {found}. {todo}", field=where)


def check_file(path: PathLike, where: str, expected: str) -> Path:
    """The path, once it is known to be a readable file with something in it."""
    try:
        file = Path(path)
        if not file.exists():
            refuse(where, expected, f"no file at {str(file)!r}", "Check the path, on the machine that reads it.")
        if not file.is_file():
            refuse(where, expected, f"{str(file)!r}, which is not a file", "Name one file.")
        with file.open("rb") as stream:
            if not stream.read(1):
                refuse(where, expected, f"the empty file {str(file)!r}", "Copy or export it again.")
    except (OSError, ValueError) as error:
        refuse(
            where,
            expected,
            f"{str(path)!r}, which cannot be read ({plainly(error, path)})",
            "Check the path and its permissions.",
        )
    except TypeError:
        refuse(where, expected, f"a {type(path).__name__}", "Pass the path of a file.")
    return file


@contextmanager
def open_media(source: PathLike | bytes, where: str, expected: str) -> Iterator[InputContainer]:
    """Open a local media file (or the bytes of one) for decoding.

    What libav raises on opening and while it is open becomes InvalidRequest.
    """
    if isinstance(source, bytes):
        name = f"{len(source)} bytes"
        target: str | io.BytesIO = io.BytesIO(source)
    else:
        file = check_file(source, where, expected)
        # "file:" keeps a colon in the name from being read as a protocol.
        name = repr(str(file))
        target = f"file:{file}"
    try:
        container = av.open(target, options=_OPTIONS, metadata_errors="replace")
    except av.error.FFmpegError as error:
        refuse(
            where,
            expected,
            f"{name}, which is damaged or of a kind that is not read ({error.strerror})",
            "Play it to the end to see which, then copy it again or convert it to mp4 or wav.",
        )
    with container:
        try:
            yield container
        except av.error.FFmpegError as error:
            refuse(
                where,
                expected,
                f"{name}, which cannot be decoded ({error.strerror})",
                "The file is damaged or cut short: copy or export it again.",
            )


def check_stream(stream: VideoStream | AudioStream, where: str, expected: str, name: str) -> None:
    """Refuse a stream that this libav has no decoder for."""
    if stream.codec_context is None:
        refuse(where, expected, f"{name} in a codec that is not known here", "Convert it to H.264 and AAC, or wav.")


def check_complete(
    container: InputContainer, stream: VideoStream | AudioStream, end: float, where: str, expected: str, name: str
) -> None:
    """Refuse an mp4 whose data end before its header says: a cut-off download that decodes without a complaint.

    `end`: the time in seconds where the last decoded frame ends. Only mp4 and mov are checked: their header states
    the length of each stream, edits included (measured equal to the last frame's end for every edit list tried).
    """
    if not container.format.name.startswith("mov") or not stream.duration or not stream.time_base:
        return
    stated = float(((stream.start_time or 0) + stream.duration) * stream.time_base)
    if end < stated - 0.25:
        refuse(
            where,
            expected,
            f"{name}, which ends at {end:.2f} s of the {stated:.2f} s that its header states",
            "The file is cut short: copy or export it again.",
        )
