"""Media between the page and a job: bounded while they arrive, kept in one folder, and nothing outside of it is read."""

from __future__ import annotations

import asyncio
import mimetypes
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitreel.config import ServeConfig
from splitreel.errors import InvalidRequest
from splitreel.serve.http.errors import BodyTimeout, BodyTooLarge

_KEPT_SECONDS = 6 * 3600.0
# Uploads that wait for their film, all together, in sizes of the largest request.
_WAITING = 4
_KINDS = ("image", "video", "audio")


class Uploads:
    """The folder. Gradio puts files there; a job gets copies."""

    def __init__(self, root: Path, settings: ServeConfig) -> None:
        self.root = root
        self._settings = settings
        # Gradio asks its environment for the folder, whenever it needs it; and nothing is to be told to anybody.
        os.environ["GRADIO_TEMP_DIR"] = str(root)
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

    def open(self) -> None:
        """Make the folder and delete what an earlier server left in it. Blocks on the disk."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._sweep()

    def check(self, value: object) -> None:
        """Refuse a value of the page that names a file which was not uploaded here: another path, or an address.

        Gradio itself would fetch the address. Raises InvalidRequest.
        """
        if isinstance(value, Mapping):
            if "path" in value:
                self.path_of(value)
            value = list(value.values())
        if isinstance(value, list | tuple):
            for item in value:
                self.check(item)

    def path_of(self, value: Mapping[str, Any]) -> Path:
        """The file of an upload. Raises InvalidRequest."""
        named: object = value.get("path")
        if isinstance(named, str) and "\0" not in named and os.path.isabs(named):
            path = Path(os.path.realpath(named))
            if path.is_relative_to(self.root.resolve()) and path.is_file():
                return path
        raise InvalidRequest("upload: expected a file that is on this server still, found none. Choose the file again.")

    def keep(self, source: Path, stem: str) -> dict[str, Any]:
        """A copy of a job's input, for a form. Blocks on the disk. Raises OSError."""
        folder = self.root / secrets.token_hex(16)
        folder.mkdir(parents=True)
        target = folder / f"{stem}{_suffix(source)}"
        shutil.copyfile(source, target)
        return {"path": str(target), "orig_name": target.name}

    async def bounded(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, is_upload: bool) -> None:
        """Pass a request with a body on, counted as it arrives. Raises BodyTooLarge, BodyTimeout."""
        settings = self._settings
        limit = settings.max_upload_bytes if is_upload else settings.max_field_bytes
        setting = "serve.max_upload_bytes" if is_upload else "serve.max_field_bytes"
        too_large = BodyTooLarge(f"upload: expected at most {limit} bytes ({setting}), found more. Send smaller media.")
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large
        if is_upload and await asyncio.to_thread(self._sweep) > _WAITING * settings.max_upload_bytes:
            raise BodyTooLarge("upload: expected room for more media, found too many that wait. Try again in an hour.")
        count, started, exceeded = 0, False, False

        async def counted() -> Message:
            nonlocal count, exceeded
            message = await receive()
            count += len(message.get("body", b""))
            if count > limit:
                exceeded = True
                return {"type": "http.disconnect"}
            return message

        async def answer(message: Message) -> None:
            nonlocal started
            if exceeded:
                return  # what Gradio says of the broken upload; the reason is said below
            started = True
            await send(message)

        try:
            async with asyncio.timeout(settings.upload_timeout):
                await app(scope, counted, answer)
        except TimeoutError:
            if started:
                raise
            raise BodyTimeout(f"upload: expected all of it within {settings.upload_timeout:g} s, found less.") from None
        except Exception:
            if not exceeded:
                raise
        if exceeded and not started:
            raise too_large

    def _sweep(self) -> int:
        """Delete what nobody made a film of; the bytes that are left."""
        before, left = time.time() - _KEPT_SECONDS, 0
        for folder in os.scandir(self.root):
            try:
                if folder.stat().st_mtime < before:
                    shutil.rmtree(folder.path, ignore_errors=True)
                elif folder.is_dir():
                    left += sum(entry.stat().st_size for entry in os.scandir(folder.path))
                else:
                    left += folder.stat().st_size
            except FileNotFoundError:
                continue  # another request deleted it
        return left


def kind_of(name: str) -> str:
    """image, video or audio, by a file's name. Raises InvalidRequest."""
    kind = (mimetypes.guess_type(name)[0] or "").partition("/")[0]
    if kind not in _KINDS:
        raise InvalidRequest(
            f"references: expected pictures, clips and sounds (by their names' endings), found {name[:80]!r}.",
            field="references",
        )
    return kind


def _suffix(source: Path) -> str:
    """A browser shows a picture only under its own ending; a job's inputs have none."""
    try:
        with Image.open(source) as picture:
            return f".{(picture.format or 'bin').lower()}"
    except (OSError, Image.DecompressionBombError):
        return ""
