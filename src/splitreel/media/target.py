"""Where a film may be written, and whether this machine can encode one: checked before any work is done."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

import av
import av.codec

from splitreel.errors import ConfigError
from splitreel.words import plainly


def check_encoders() -> None:
    """Raise ConfigError unless this PyAV can encode H.264 with libx264, and AAC."""
    missing = []
    for name in ("libx264", "aac"):
        try:
            av.codec.Codec(name, "w")
        except ValueError:
            missing.append(name)
    if missing:
        raise ConfigError(
            f"av: expected the encoders libx264 and aac, found PyAV {av.__version__} without {' and '.join(missing)}. "
            "Install the wheel of PyAV from PyPI: pip install --force-reinstall --only-binary av av."
        )


def check_output(path: str | os.PathLike[str]) -> Path:
    """The path, once it is known that an mp4 can be written there; nothing is left behind.

    Raises ConfigError for another suffix, a directory, and a folder that cannot be made or written.
    """
    target = Path(path)
    if target.suffix.lower() != ".mp4":
        raise ConfigError(f"{target}: expected a name that ends in .mp4, found {target.name!r}. Rename the output.")
    check_place(target)
    return target


def check_place(target: Path) -> None:
    """Raise ConfigError unless a file can be written there; nothing is left behind."""
    try:
        if target.exists() and not target.is_file():
            raise ConfigError(f"{target}: expected a file or a free name, found a directory or device. Rename it.")
        folder = target.parent
        while not os.path.lexists(folder):
            folder = folder.parent
        folder.resolve(strict=True)  # raises for a loop of links
        longest = os.pathconf(folder, "PC_NAME_MAX")
        for part in target.relative_to(folder).parts:
            if len(os.fsencode(part)) > longest:
                raise ConfigError(
                    f"{target}: expected names of at most {longest} bytes, found one of {len(os.fsencode(part))}. Shorten it."
                )
        # The only sure test of permission, quota and a read-only mount.
        probe = _create_hidden(folder, target.stem)
        probe.unlink()
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{target}: expected a place where a file can be written, found {plainly(error, target)}. Choose another "
            "folder or name."
        ) from error


def create_partial(target: Path | None) -> Path:
    """A new hidden file beside the target, or in the temporary folder if there is none."""
    folder, stem = (target.parent, target.stem) if target is not None else (Path(tempfile.gettempdir()), "film")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _create_hidden(folder, stem)
    except OSError as error:
        raise ConfigError(
            f"{folder}: expected a folder that can be written, found {plainly(error, folder)}. Choose another."
        ) from error


def _create_hidden(folder: Path, stem: str) -> Path:
    """Make an empty file under a free hidden name, with the permissions of any new file (mkstemp's are the owner's)."""
    path = folder / f".{stem[:40]}.{secrets.token_hex(6)}.partial"
    path.touch(exist_ok=False)
    return path
