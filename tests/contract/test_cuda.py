"""Parity on a CUDA device. Runs where one is; elsewhere it is skipped, and listed in docs/gpu-checklist.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from diffusers import MiniMaxH3Blocks

from configs import roles_config
from splitreel import GenerateRequest, Session
from splitreel.config import TraceConfig
from splitreel.h3.tiny import cached_tiny
from splitreel.h3.watch import ModuleWatch
from splitreel.observe.spans import SpanRecord
from splitreel.request import Stage
from splitreel.roles.control import StageControl

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_split_equals_unsplit_on_cuda(dtype: str) -> None:
    root = cached_tiny()
    role = {"device": "cuda", "dtype": dtype, "num_gpus": 0.0}
    with Session(roles_config("local", str(root), encoder_decoder=role, dit=role)) as session:
        result = session.generate(GenerateRequest(prompt="A lake.", steps=3, seed=5, output="tensor"))
    pipeline = MiniMaxH3Blocks().get_workflow("t2va").init_pipeline(str(root))
    pipeline.load_components(pretrained_model_name_or_path=str(root), dtype=getattr(torch, dtype))
    pipeline.to("cuda")
    state = pipeline(
        prompt="A lake.",
        num_frames=124,
        num_inference_steps=3,
        generator=torch.Generator("cpu").manual_seed(5),
        output_type="pt",
    )
    np.testing.assert_array_equal(result.tensor, state.get("videos")[0].float().cpu().numpy())
    np.testing.assert_array_equal(result.waveform, state.get("audio")[0].float().cpu().numpy())


def test_a_stop_is_seen_while_a_step_is_queued() -> None:
    """The host is at most three calls before the device, however fast it orders."""
    size = 4096
    layers = torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False, device="cuda") for _ in range(50)))
    rows = torch.randn(16 * size, size, device="cuda")
    with torch.inference_mode():
        layers[0](rows)
        torch.cuda.synchronize()
        control = StageControl("r", Stage.DENOISE)
        done: list[torch.cuda.Event] = []
        before: list[int] = []

        def look(module: torch.nn.Module, args: object) -> None:
            before.append(sum(not event.query() for event in done))
            done.append(torch.cuda.Event())
            done[-1].record()

        watch = ModuleWatch(layers, "block")
        for layer in layers:
            layer.register_forward_pre_hook(look)
        with watch.reporting(control, pace=torch.device("cuda")):
            layers(rows)
    assert max(before) <= 3


def test_traces_synchronise_when_asked_and_say_so() -> None:
    role = {"device": "cuda", "dtype": "bfloat16", "num_gpus": 0.0}
    films = []
    for options in ({}, {"sync": True, "nvtx": True}):
        config = roles_config("local", encoder_decoder=role, dit=role)
        config = config.model_copy(update={"trace": TraceConfig(**options)})
        kept: list[SpanRecord] = []

        class Sink:
            def write(self, spans: Sequence[SpanRecord], kept: list[SpanRecord] = kept) -> None:
                kept.extend(spans)

            def close(self) -> None: ...

        with Session(config) as session:
            session._engine.observer.add(Sink())
            films.append(session.generate(GenerateRequest(prompt="A lake.", steps=3, seed=5, output="tensor")))
        on_device = [span for span in kept if span.worker != "driver"]
        assert {span.sync for span in on_device} == {bool(options)}
        assert sum(span.name == "denoise.step" for span in on_device) == 2
    np.testing.assert_array_equal(films[0].tensor, films[1].tensor)
