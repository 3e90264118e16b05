"""Opening a media file that somebody else named: what is accepted, and how a refusal reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import av
import av.container
import av.error

from splitreel.errors import InvalidRequest

PathLike = str | os.PathLike[str]

MAX_PIXELS = 100_000_000
"""Largest picture that is decoded, in pixels: 300 MB as RGB."""

# A request names files by path, so libav may open that one local file and nothing else: playlists (hls, dash, concat)
# name further files and addresses, and the text renderers (tty, subtitles) make a video of any text file.
_DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,asf,ogg,gif,apng,ivf,mxf,nut,h264,hevc,m4v,mpegvideo,"
    "wav,w64,aiff,au,caf,mp3,aac,ac3,eac3,flac,amr,ape,wv,tta,tak,dts,truehd"
)
OPEN_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": _DEMUXERS}


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
        refuse(where, expected, f"{str(path)!r}, which cannot be read ({error})", "Check the path and its permissions.")
    return file


@contextmanager
def open_media(path: PathLike, where: str, expected: str) -> Iterator[av.container.InputContainer]:
    """Open a local media file for decoding; what libav raises while it is open becomes InvalidRequest."""
    file = check_file(path, where, expected)
    try:
        # "file:" keeps a colon in the name from being read as a protocol.
        with av.open(f"file:{file}", options=OPEN_OPTIONS, metadata_errors="replace") as container:
            yield container
    except (av.error.FFmpegError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        refuse(
            where,
            expected,
            f"{str(file)!r}, which cannot be decoded ({reason})",
            "The file is damaged, cut short or of another kind: play it to the end, then copy or convert it again.",
        )
