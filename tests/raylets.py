"""Raylets with a machine of their own as far as the kernel goes: process ids, mounts, environment. Needs root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from splitreel.cluster.embedded import RAY_START, UP

# Killing `unshare` ends the first process inside, and with that all others.
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def require_unshare() -> None:
    """Skip where namespaces cannot be had."""
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("needs root and unshare (Debian: util-linux)")


@contextmanager
def raylet(
    head: str, address: str, folder: Path, *, before: str = "true", store: int = 80_000_000, **environment: str
) -> Iterator[None]:
    """A node with one GPU as far as Ray is concerned. `before`: shell commands that run inside first, with $FOLDER."""
    folder.mkdir(exist_ok=True)
    command = [
        *RAY_START,
        f"--address={head}",
        f"--node-ip-address={address}",
        f"--temp-dir={folder}",
        "--num-cpus=1",
        "--num-gpus=1",
        f"--object-store-memory={store}",
    ]
    process = subprocess.Popen(
        [*ALONE, "sh", "-ec", f'{before}; exec "$@"', "-", *command],
        env={**os.environ, "FOLDER": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if UP in line:
                break
        else:
            raise AssertionError("".join(seen))
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
