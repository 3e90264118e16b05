"""The folder of jobs: a directory for each, files that appear whole or not at all, and nothing that a client named.

`<id>/inputs/…` media; `<id>/film-….mp4`; `<id>/trace-….json`; `<id>/thumbnail.webp`, `<id>/spritesheet.jpg`;
`.database-…`, the mark of the database that knows them.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import av
from PIL import Image

from splitreel.errors import ConfigError
from splitreel.observe.spans import SpanRecord
from splitreel.words import plainly

_JOB, _INCOMING, _MARK = "video_", ".incoming", ".database-"
_ORPHAN_SECONDS = 3600.0
_THUMBNAIL, _SHEET, _CELLS = 480, 240, 12


class JobFolder:
    """Paths and files of jobs. Every method blocks on the disk."""

    def __init__(self, root: Path) -> None:
        """Raises ConfigError when nothing can be written there."""
        self.root = root
        try:
            (root / _INCOMING).mkdir(parents=True, exist_ok=True)
            with self.incoming():
                pass
        except OSError as error:
            raise ConfigError(
                f"serve.folder: expected a folder that can be written at {root}, found {plainly(error, root)}. Choose another."
            ) from error

    def belong_to(self, database: str, unknown: Callable[[Collection[str]], list[str]]) -> None:
        """Mark the folder as that of one database; `unknown`: which of some jobs that one does not have.

        Raises ConfigError when it is another's: each would take the other's jobs for left-overs, and delete them.
        """
        if not self._marks():  # new, or of a version that knew no marks
            jobs = [entry.name for entry in os.scandir(self.root) if entry.name.startswith(_JOB)][:500]
            if not jobs or len(unknown(jobs)) < len(jobs):
                (self.root / f"{_MARK}{database}").touch()
        if self._marks() != [f"{_MARK}{database}"]:
            raise ConfigError(
                f"serve.folder: expected the jobs of serve.database in {self.root}, found those of another database, which "
                "would be deleted as left-overs. Choose another folder, or the database that they belong to."
            )

    def _marks(self) -> list[str]:
        """Names of the files that say whose the folder is: a name is there at once and whole, on any file system."""
        return [entry.name for entry in os.scandir(self.root) if entry.name.startswith(_MARK)]

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """A new directory, deleted at the end unless it was made a job's."""
        made = Path(mkdtemp(dir=self.root / _INCOMING))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def adopt(self, incoming: Path, job_id: str) -> None:
        """Make an incoming directory the inputs of a job."""
        (self.root / job_id).mkdir()
        incoming.rename(self.inputs(job_id))

    def inputs(self, job_id: str) -> Path:
        """Where the job's media are."""
        return self.root / job_id / "inputs"

    def film(self, job_id: str, name: str) -> Path:
        """The job's film."""
        return self.root / job_id / name

    def write(self, job_id: str, name: str, content: bytes) -> None:
        """Write a file that appears whole, and outlives a power cut once this has returned."""
        folder = self.root / job_id
        partial = folder / f".{name}.{secrets.token_hex(4)}"
        try:
            with partial.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(folder / name)
            _sync(folder)
        finally:
            partial.unlink(missing_ok=True)

    def discard(self, job_id: str, name: str) -> None:
        """Delete one file, if it is there."""
        (self.root / job_id / name).unlink(missing_ok=True)

    def forget(self, job_id: str) -> None:
        """Delete a job's directory, if it is there."""
        shutil.rmtree(self.root / job_id, ignore_errors=True)

    def orphans(self) -> list[str]:
        """Names of directories that are old enough for their job to be in the database, if there is one."""
        before = time.time() - _ORPHAN_SECONDS
        found = []
        for entry in os.scandir(self.root):
            if entry.is_dir() and entry.name.startswith(_JOB) and entry.stat().st_mtime < before:
                found.append(entry.name)
        for entry in os.scandir(self.root / _INCOMING):
            if entry.stat().st_mtime < before:
                shutil.rmtree(entry.path, ignore_errors=True)
        return found

    # Pictures and traces ----------------------------------------------------------------------------------------------------

    def preview(self, job_id: str, film: str, variant: str) -> Path:
        """`thumbnail` (WebP, one frame) or `spritesheet` (JPEG, frames in a row of rows); made when first asked for."""
        name = {"thumbnail": "thumbnail.webp", "spritesheet": "spritesheet.jpg"}[variant]
        path = self.root / job_id / name
        if not path.exists():
            frames = _frames(self.film(job_id, film), 1 if variant == "thumbnail" else _CELLS)
            picture = _fitted(frames[0], _THUMBNAIL) if variant == "thumbnail" else _sheet(frames)
            partial = path.with_name(f".{secrets.token_hex(4)}{path.suffix}")
            try:
                picture.save(partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        return path

    def write_trace(self, job_id: str, spans: Sequence[SpanRecord]) -> int:
        """Keep what was recorded of the job's last run; the bytes written."""
        content = json.dumps([span.to_dict() for span in spans]).encode()
        self.write(job_id, "trace.json", content)
        return len(content)

    def read_trace(self, job_id: str) -> list[SpanRecord] | None:
        """What `write_trace` kept; None if nothing was."""
        try:
            rows: list[dict[str, Any]] = json.loads((self.root / job_id / "trace.json").read_bytes())
        except FileNotFoundError:
            return None
        return [SpanRecord.from_dict(row) for row in rows]


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _frames(film: Path, count: int) -> list[Image.Image]:
    """Some frames at even distances; the middle one if it is one."""
    with av.open(str(film)) as container:
        stream = container.streams.video[0]
        total = max(stream.frames, 1)
        wanted = [round((index + 0.5) * total / count) for index in range(count)]
        found: list[Image.Image] = []
        for index, frame in enumerate(container.decode(stream)):
            if index >= min(wanted[len(found)], total - 1):
                found.append(frame.to_image())
                if len(found) == count:
                    break
    return found


def _fitted(picture: Image.Image, size: int) -> Image.Image:
    picture.thumbnail((size, size))
    return picture


def _sheet(frames: list[Image.Image]) -> Image.Image:
    cells = [_fitted(frame, _SHEET) for frame in frames]
    width, height = cells[0].size
    columns = 4
    sheet = Image.new("RGB", (columns * width, -(-len(cells) // columns) * height))
    for index, cell in enumerate(cells):
        sheet.paste(cell, (index % columns * width, index // columns * height))
    return sheet
