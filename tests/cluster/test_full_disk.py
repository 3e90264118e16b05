"""Ray's directory on a small disk that is full: what does not fit ends by name and with sizes, nothing hangs, and the rest goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clockwork import submitted
from splitreel.cluster.embedded import EmbeddedCluster, EmbeddedNode
from splitreel.engine.engine import Engine
from splitreel.errors import StageError

DISK, STORE = 64_000_000, 80_000_000
BLOCKS = 900_000  # 32 bytes each: 28.8 MB, of which the store holds two
WITHIN = 60.0  # seconds; six requests need 4 on two idle cores

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """A file system of its own, as small as that."""
    folder = Path(tempfile.mkdtemp(prefix="sr", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        folder.rmdir()
        pytest.skip("needs root and mount (Debian: mount) to make a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@pytest.fixture(scope="module")
def cluster(disk: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster.start(nodes=[EmbeddedNode()], temp_dir=disk, object_store_bytes=STORE) as started:
        yield started


def fill(disk: Path, left: int) -> Path:
    """A file after which so many bytes are free."""
    usage = os.statvfs(disk)
    path = disk / f"filling-{left}"
    path.write_bytes(bytes(max(0, usage.f_bavail * usage.f_frsize - left)))
    return path


async def outcomes(engine: Engine, name: str) -> list[Any]:
    """What becomes of six requests whose payloads wait for a slow transformer, each by its own end."""
    plan: dict[str, Any] = {"encode": {"blocks": BLOCKS}, "denoise": {"steps": 10, "seconds": 0.1}}
    jobs = [engine.submit(f"{name}{index}", "t2va", submitted(f"{name}{index}", **plan)) for index in range(6)]
    found: list[Any] = []
    for job in jobs:
        try:
            found.append(await job.result(WITHIN))
        except StageError as error:
            found.append(error)
    return found


async def test_what_finds_no_room_fails_by_name_and_the_rest_goes_on(
    cluster: EmbeddedCluster, open_engine: Any, disk: Path
) -> None:
    async with open_engine(cluster.address, max_in_flight=6, look_ahead=6) as engine:
        # Full, so that Ray does not try to spill; and too full for one payload, so that it tries and runs out.
        for left in (1_000_000, 6_000_000):
            filling = fill(disk, left)
            began = time.monotonic()
            try:
                found = await outcomes(engine, f"left{left}-")
            finally:
                filling.unlink()
            assert time.monotonic() - began < WITHIN
            failed = [each for each in found if isinstance(each, StageError)]
            assert failed, "the payloads of six requests do not fit"
            for error in failed:
                assert error.stage == "encode"
                assert "failed on node 127.0.0.2, role encoder_decoder: expected room for a payload of 28.8 MB" in str(
                    error
                )
                assert "object store there (80 MB)" in str(error)
                assert f"found the store full and {disk}" in str(error)
                assert "Free space there, start Ray with a larger --object-store-memory" in str(error)
            assert len(failed) < len(found), "those that fit are made"
            # With space again, what failed before is made by the same workers.
            job = engine.submit(f"after{left}", "t2va", submitted(f"after{left}", encode={"blocks": BLOCKS}))
            assert await job.result(WITHIN) is not None
    # The engine has closed within its 30 s.
