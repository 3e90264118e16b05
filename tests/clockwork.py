"""A model whose stages take as long as the request says, step by step: for tests of what surrounds stages.

It is a real `ModelDefinition`: real roles, payloads and workers run it. A request's values say for each stage how many
steps it has, how long each takes, and what goes wrong in which. The film is a digest of the path that was taken, so
that a resumed request can be compared with an undisturbed one.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from splitreel.config import RoleSpec
from splitreel.request import Stage
from splitreel.roles.checkpoint import Checkpoint, ComponentFiles
from splitreel.roles.control import StageControl
from splitreel.roles.loading import Recipe
from splitreel.wire import FieldSpec, Header, Packed, Payload, PayloadSpec, pack

KINDS = {Stage.ENCODE: "submitted", Stage.DENOISE: "encoded", Stage.DECODE: "denoised"}


class AwkwardError(Exception):
    """Cannot be unpickled: five positional arguments, and a lock."""

    def __init__(self, status: int, reason: str, url: str, headers: dict[str, str], body: bytes) -> None:
        super().__init__(f"HTTP {status} {reason}")
        self.lock = threading.Lock()


class Panic(BaseException):
    """What Rust's libraries (tokenizers, safetensors) raise when they panic: no Exception."""


@dataclass(frozen=True)
class Facts:
    """No geometry to speak of."""

    fingerprint: str = "clockwork"

    def to_dict(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint}


@dataclass(frozen=True)
class Program:
    """One stage; of a share above 0 its part, for which the plan has the name `part`."""

    stage: Stage

    def __call__(self, payload: Payload, control: StageControl) -> Payload:
        values = payload.header.values
        plan = values["plan"].get("part" if control.share.index else str(self.stage), {})
        steps, seconds = plan.get("steps", 1), plan.get("seconds", 0.0)
        for step in range(1, steps + 1):
            control.begin_part("step", step)
            self._trouble(plan, step)
            _pass_time(seconds, hold_gil=plan.get("hold_gil", False))
            control.end_part()
            control.step("step", step, steps)
        came = [take() is not None for take in control.parts]
        data = payload.tensors["data"]
        assert isinstance(data, torch.Tensor)
        digest = hashlib.sha256(data.numpy().tobytes() + self.stage.encode()).digest()
        made = torch.frombuffer(bytearray(digest * plan.get("blocks", 1)), dtype=torch.uint8)
        following = self.stage.following
        kind = "film" if following is None else KINDS[following]
        header = payload.header
        path = [*values["path"], f"{self.stage}@{os.getpid()}"]
        read = {**values["read"], **{name: os.environ.get(name) for name in plan.get("reads", ())}}
        return Payload(
            Header(
                header.request_id,
                header.workflow,
                kind,
                header.schema,
                header.geometry,
                {**values, "path": path, "read": read, **({"parts": came} if came else {})},
                header.trace,
            ),
            {"data": made},
        )

    def _trouble(self, plan: Mapping[str, Any], step: int) -> None:
        trouble = plan.get("trouble", {}).get(str(step))
        if trouble is None:
            return
        once = plan.get("once")
        if once is not None:
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        _cause(trouble)


def _cause(trouble: str) -> None:
    match trouble:
        case "value error":
            raise ValueError("the film tore")
        case "awkward error":
            raise AwkwardError(403, "Forbidden", "http://h", {}, b"")
        case "panic":
            raise Panic("the thread pool has not been initialized")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            time.sleep(3600)
        case "eat memory":
            held = []
            while len(held) < 60:  # 6 GB: more than any threshold that a test sets leaves
                held.append(b"x" * 100_000_000)
            time.sleep(60)
        case other:
            raise AssertionError(other)


def _pass_time(seconds: float, *, hold_gil: bool) -> None:
    """Let the time of one step pass, asleep as in a torch kernel that gave the GIL back, or computing in Python."""
    if not hold_gil:
        time.sleep(seconds)
        return
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


@dataclass(frozen=True)
class Clockwork:
    """The model."""

    name: str = "Clockwork"
    schema: tuple[int, int] = (1, 0)
    workflows: tuple[str, ...] = ("t2va", "ref2va")
    load_seconds: dict[str, float] = field(default_factory=dict)
    trouble_at_load: dict[str, str] = field(default_factory=dict)  # by stage
    trouble_at_prepare: str | None = None

    def locate(self, path: str) -> str:
        return path

    def components(self, workflows: Sequence[str], stages: Sequence[Stage]) -> tuple[ComponentFiles, ...]:
        return ()

    def attention_parts(self, checkpoint: Checkpoint, workflows: Sequence[str], stages: Sequence[Stage]) -> tuple[()]:
        return ()

    def component_class(self, name: str) -> type:
        raise KeyError(name)

    def recipe(self, name: str, checkpoint: Checkpoint, spec: RoleSpec) -> Recipe:
        raise KeyError(name)

    def adapted(self, name: str, component: Any, checkpoint: Checkpoint, spec: RoleSpec) -> Any:
        return component

    def read_geometry(self, checkpoint: Checkpoint, workflows: Sequence[str]) -> Facts:
        if self.trouble_at_prepare is not None:
            _cause(self.trouble_at_prepare)
        return Facts()

    def payload_spec(self, stage: Stage, workflow: str, geometry: Any) -> PayloadSpec:
        return PayloadSpec(
            KINDS[stage],
            self.schema,
            (FieldSpec("data", ("uint8",), (None,)),),
            {"plan": dict, "path": list, "read": dict},
        )

    def passing_values(self, stage: Stage) -> None:
        return None

    def adapted_component(self, workflow: str) -> str:
        return ""

    def adapter_surface(self, name: str, component: Any) -> Any:
        raise KeyError(name)

    def build_stage(
        self, stage: Stage, workflow: str, components: Mapping[str, Any], checkpoint: Checkpoint, geometry: Any
    ) -> Program:
        time.sleep(self.load_seconds.get(str(stage), 0.0))
        if str(stage) in self.trouble_at_load:
            _cause(self.trouble_at_load[str(stage)])
        return Program(stage)


def submitted(
    request_id: str, workflow: str = "t2va", size: int = 64, trace: Mapping[str, str] | None = None, **plan: Any
) -> Packed:
    """What a request of this model starts from: `encode={"steps": 3, "seconds": 0.1}` and so on."""
    data = torch.arange(size, dtype=torch.int64).to(torch.uint8)
    values = {"plan": plan, "path": [], "read": {}}
    header = Header(request_id, workflow, "submitted", (1, 0), "clockwork", values, trace or {})
    return pack(Payload(header, {"data": data}))


def film_digest(size: int = 64, blocks: int = 1, **plan: Any) -> bytes:
    """What an undisturbed request ends with. `plan`: as of `submitted`; of it, `blocks` count."""
    data = torch.arange(size, dtype=torch.int64).to(torch.uint8).numpy().tobytes()
    for stage in Stage:
        data = hashlib.sha256(data + stage.encode()).digest() * plan.get(stage, {}).get("blocks", 1)
    return data * blocks
