"""A driver process of its own: opens an engine, says so, and does what its argument asks. For test_drivers.

Prints one JSON line when it is open and one when its work is done.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from clockwork import Clockwork, film_digest, submitted
from conftest import opened
from splitreel.wire import unpack


@dataclass(frozen=True)
class Renamed(Clockwork):
    """A model that only this script's `__main__` knows."""

    name: str = "Renamed"


async def main(task: str, address: str, folder: str) -> None:
    began = time.monotonic()
    roles = {"encoder_decoder": {"num_gpus": 0.25}, "dit": {"num_gpus": 0.25}}
    async with opened(Path(folder), address, roles, model=Renamed()) as engine:
        health = await engine.health()
        print(json.dumps({"pids": [worker.pid for worker in health], "seconds": time.monotonic() - began}), flush=True)
        if task == "hang":
            engine.submit("hangs", "t2va", submitted("hangs", denoise={"steps": 10_000, "seconds": 0.1}))
            await asyncio.sleep(120)
        plan = {"denoise": {"steps": 5, "seconds": 0.2}}
        jobs = [engine.submit(name, "t2va", submitted(name, **plan)) for name in ("r1", "r2", "r3")]
        films = [await job.result(60) for job in jobs]
        right = [bytes(unpack(film.payload).tensors["data"].numpy()) == film_digest() for film in films]  # type: ignore[union-attr]
        print(json.dumps({"right": right}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
