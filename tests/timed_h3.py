"""MiniMax-H3 with stages that take a given time: for tests and benchmarks of what surrounds them.

Requests, rules, geometry (of the tiny checkpoint), payloads between real workers, and an mp4 that plays are as ever; no
weights are loaded and nothing is computed. The film ends with a box that names its request's seed, so that a film can
be told from another's. As a script it is `splitreel serve` with this model: `python timed_h3.py CONFIG STEP_SECONDS`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from splitreel.config import load_config
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.payloads import FILM, KINDS, SCHEMA, payload_spec
from splitreel.media import Clip, Sound, film_bytes
from splitreel.request import Stage
from splitreel.roles.checkpoint import Checkpoint, ComponentFiles
from splitreel.roles.control import StageControl
from splitreel.serve.cli.signals import retake
from splitreel.serve.http.run import serve
from splitreel.wire import FieldSpec, Header, Payload, PayloadSpec


@functools.cache
def plain_film() -> bytes:
    """Five seconds of a grey picture and silence, 64x32."""
    frames = np.full((124, 32, 64, 3), 90, np.uint8)
    frames[:, :, :8] = np.arange(124, dtype=np.uint8)[:, None, None, None]
    return film_bytes(Clip(frames, 24.0, Sound(np.zeros((2, round(124 / 24 * 32_000)), np.float32), 32_000)))


def marked(seed: int) -> bytes:
    """The box behind the film: a player skips it."""
    return (16).to_bytes(4, "big") + b"free" + seed.to_bytes(8, "big")


@dataclass(frozen=True)
class TimedProgram:
    """One stage: so many steps of so many seconds."""

    stage: Stage
    step_seconds: float
    log: str | None

    def __call__(self, payload: Payload, control: StageControl) -> Payload:
        header, values = payload.header, payload.header.values
        steps = values["steps"] - 1 if self.stage is Stage.DENOISE else 1
        if self.log is not None and self.stage is Stage.DENOISE:
            with open(self.log, "a") as stream:
                stream.write(f"{header.request_id} {os.getpid()}\n")
        for step in range(1, steps + 1):
            control.begin_part("step", step)
            time.sleep(self.step_seconds if self.stage is Stage.DENOISE else 0.0)
            control.end_part()
            control.step("step", step, steps)
        kept = {name: values[name] for name in ("num_frames", "height", "width", "steps", "seed", "output")}
        if self.stage is Stage.DECODE:
            made = torch.frombuffer(bytearray(plain_film() + marked(values["seed"])), dtype=torch.uint8)
            kind, tensors = FILM, {"mp4": made}
        else:
            assert self.stage.following is not None
            kind, tensors = KINDS[self.stage.following], {"data": torch.zeros(64, dtype=torch.uint8)}
        calls = {"transformer_calls": values["steps"] - 1, "cached_steps": 0}
        return Payload(
            Header(header.request_id, header.workflow, kind, SCHEMA, header.geometry, {**kept, **calls}, header.trace),
            tensors,
        )


@dataclass(frozen=True)
class TimedH3(MiniMaxH3):
    """The model."""

    name: str = "MiniMax-H3 by the clock"
    step_seconds: float = 0.01
    log: str | None = None

    def components(self, workflows: Sequence[str], stages: Sequence[Stage]) -> tuple[ComponentFiles, ...]:
        return ()

    def payload_spec(self, stage: Stage, workflow: str, geometry: Any) -> PayloadSpec:
        if stage is Stage.ENCODE:
            return payload_spec(stage, workflow, geometry)
        names = ("num_frames", "height", "width", "steps", "seed", "transformer_calls", "cached_steps")
        values = {**dict.fromkeys(names, int), "output": str}
        return PayloadSpec(KINDS[stage], SCHEMA, (FieldSpec("data", ("uint8",), (None,)),), values)

    def build_stage(
        self, stage: Stage, workflow: str, components: Mapping[str, Any], checkpoint: Checkpoint, geometry: Any
    ) -> Any:
        return TimedProgram(stage, self.step_seconds, self.log)


def settings(folder: Path, address: str = "local", **serve: Any) -> dict[str, Any]:
    """A config's content: two roles, jobs in `folder`."""
    return {
        "model": {"path": "tiny", "workflow": ["t2va", "fl2va", "ref2va"]},
        "cluster": {"address": address},
        "roles": {
            "encoder_decoder": {"device": "cpu", "dtype": "float32", "threads": 1},
            "dit": {"device": "cpu", "dtype": "float32", "threads": 1},
        },
        "engine": {"heartbeat": 0.5, "lost_after": 5.0, "restart_pause": 0.2, "restarts": 20},
        "serve": {"folder": str(folder), "port": 0, "studio": False, **serve},
    }


def main(path: str, step_seconds: float | None, log: str | None = None) -> None:
    """Serve until stopped; prints the address, and at the end how it went. Without `step_seconds`: the real model."""
    failure = serve(
        load_config(path),
        lambda text: print(text, file=sys.stderr, flush=True),
        on_open=retake,
        model=None if step_seconds is None else TimedH3(step_seconds=step_seconds, log=log),
    )
    print(json.dumps({"failure": str(failure) if failure else None}), flush=True)


if __name__ == "__main__":
    import timed_h3  # workers unpickle the model by that name

    timed_h3.main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
