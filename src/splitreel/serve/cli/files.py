"""Text files that commands write: to stdout with `-`, never over an existing file unless told to."""

from __future__ import annotations

import os
from pathlib import Path

from splitreel.serve.cli.failures import Refused
from splitreel.words import plainly


def check_free(path: Path, *, overwrite: bool, option: str = "--output") -> None:
    """Raise Refused if the file exists and may not be replaced, or its folder cannot hold it."""
    if str(path) == "-":
        return
    if path.is_dir():
        raise Refused(f"{option}: expected a file to write, found the folder {path}. Name a file in it.")
    if os.path.lexists(path) and not overwrite:
        raise Refused(
            f"{option}: expected a free name, found {path}. Choose another one, or give --overwrite to replace it."
        )


def write_text(path: Path, text: str, *, option: str = "--output") -> None:
    """Write the file whole, or print it for `-`. Raises Refused when it cannot be written."""
    if str(path) == "-":
        print(text, end="")
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise Refused(
            f"{option}: expected a place to write {path}, found {plainly(error, path)}. Choose another one."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
