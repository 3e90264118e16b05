"""A DiT role that LoRA files are tried on, and the same change made by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from configs import roles_config
from lora_files import changed, put_back
from splitreel import GenerateRequest, ImageReference, LoraReceipt
from splitreel.h3.geometry import Geometry
from splitreel.h3.media import prepare
from splitreel.h3.model import MiniMaxH3
from splitreel.lora import DropAdapter, FuseAdapters, InstallAdapter
from splitreel.request import Stage
from splitreel.roles.adapters.files import read_adapter
from splitreel.roles.control import StageControl
from splitreel.roles.role import Role
from splitreel.wire import Payload

COMPONENT = {"t2va": "transformer", "ref2va": "transformer_ref"}


class Bench:
    """A DiT role, the same payloads for it again and again, and a transformer of its own to change by hand."""

    def __init__(self) -> None:
        config = roles_config("local", "tiny", list(COMPONENT))
        self.role = Role(MiniMaxH3(), config.role_spec("dit"))
        self.role.prepare()
        self.role.load()
        encoder = Role(MiniMaxH3(), config.role_spec("encoder_decoder"))
        geometry = encoder.prepare()
        assert isinstance(geometry, Geometry)
        encoder.load()
        picture = np.linspace(0, 255, 64 * 64 * 3).reshape(64, 64, 3).astype(np.uint8)
        self.encoded: dict[str, Payload] = {}
        for workflow, references in (("t2va", ()), ("ref2va", (ImageReference(picture),))):
            request = GenerateRequest(prompt="A lake.", steps=2, seed=5, references=references)
            payload = prepare(request, geometry, tuple(COMPONENT))[1]
            self.encoded[workflow] = encoder.run(
                Stage.ENCODE, encoder.receive(Stage.ENCODE, payload), StageControl("r", Stage.ENCODE)
            )
        self.base = {workflow: self.denoise(workflow) for workflow in COMPONENT}
        self._ids = itertools.count()

    def transformer(self, workflow: str) -> Any:
        return self.role._programs[workflow, Stage.DENOISE]._pipeline.components[COMPONENT[workflow]]  # type: ignore[attr-defined]

    def denoise(self, workflow: str, *uses: tuple[str, float]) -> tuple[Tensor, Tensor]:
        payload = self.encoded[workflow]
        payload.header.values["lora"] = [list(use) for use in uses]  # type: ignore[index]
        made = self.role.run(Stage.DENOISE, payload, StageControl("r", Stage.DENOISE))
        return made.tensors["latents"], made.tensors["audio_latents"]  # type: ignore[return-value]

    def install(self, path: Path | str, workflow: str = "t2va", **options: Any) -> tuple[str, LoraReceipt]:
        content = read_adapter(str(path))
        adapter = f"a#{next(self._ids)}"
        target = options.pop("target", COMPONENT[workflow])
        order = InstallAdapter(adapter, "a", str(path), content.sha256, target, content.config, **options)
        receipt = self.role.adapters.carry_out(order, lambda: content.content)
        assert receipt is not None
        return adapter, receipt

    def drop(self, adapter: str) -> None:
        self.role.adapters.carry_out(DropAdapter(adapter), lambda: np.empty(0, np.uint8))

    def fuse(self, *uses: tuple[str, float]) -> None:
        self.role.adapters.carry_out(FuseAdapters(uses), lambda: np.empty(0, np.uint8))

    def made_by_hand(self, workflow: str, *updates: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        self.denoise(workflow)  # nothing is applied now
        originals = changed(self.transformer(workflow), *updates)
        try:
            return self.denoise(workflow)
        finally:
            put_back(self.transformer(workflow), originals)


def distance(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
