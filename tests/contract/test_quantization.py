"""Components in 8 bits: as small as said before loading, near the plain result, and refused where it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from splitreel.config import MemorySpec, RoleSpec, parse_config
from splitreel.errors import ConfigError
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.tiny import cached_tiny
from splitreel.h3.warmup import warm_up
from splitreel.plan.sizes import read_sizes
from splitreel.request import Stage
from splitreel.roles import quantizing
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.loading import load_module
from splitreel.roles.role import Role, resident_bytes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def spec(component: str, kind: str, dtype: str = "bfloat16", **memory: Any) -> RoleSpec:
    settings = MemorySpec(quantization=((component, kind),) if kind else (), **memory)
    return RoleSpec("all", tuple(Stage), ("t2va",), "tiny", None, "cpu", (("default", dtype),), 1, memory=settings)


def load(component: str, settings: RoleSpec) -> tuple[Any, int]:
    checkpoint = Checkpoint(cached_tiny(), "")
    recipe = MiniMaxH3().recipe(component, checkpoint, settings)
    needed = recipe.bytes_needed(checkpoint, component)
    return load_module(recipe, checkpoint, component, torch.device("cpu")), needed


@pytest.mark.parametrize("adaln", ["projections", "tables"])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("component", ["text_encoder", "transformer"])
def test_a_quantised_component_takes_what_was_said(component: str, kind: str, adaln: str) -> None:
    settings = spec(component, kind, adaln=adaln)
    module, needed = load(component, settings)
    plain, _ = load(component, spec(component, "", adaln=adaln))
    held = resident_bytes(module)
    # Scales and zero points have storages of their own, rounded up by nothing; computed buffers come on top.
    tables = 0 if adaln == "projections" or component == "text_encoder" else needed - held
    assert needed - tables <= held <= needed + 4096
    assert held < 0.9 * resident_bytes(plain)
    planned = read_sizes(Path(cached_tiny()), ("t2va",)).bytes_of(component, "bfloat16", settings.memory, ("t2va",))
    assert planned == pytest.approx(needed, rel=0.05)


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.02), ("fp8", 0.06)])
def test_a_layer_stays_near_its_plain_result(kind: str, most: float) -> None:
    quantised, plain = (load("transformer", spec("transformer", form))[0] for form in (kind, ""))
    rows = torch.randn(7, 64, dtype=torch.bfloat16)
    with torch.inference_mode():
        differences = [
            relative(ours.attn.to_q(rows), theirs.attn.to_q(rows))
            for ours, theirs in zip(quantised.transformer_blocks, plain.transformer_blocks, strict=True)
        ]
        warm_up("transformer", quantised, torch.device("cpu"))
    assert 0 < max(differences) < most
    assert type(quantised.proj_in.weight) is torch.nn.Parameter, "excluded by diffusers' guide"


def test_without_torchao_it_is_refused_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(
        ConfigError, match=r"memory\.quantization\.transformer: expected torchao for int8 on cpu, found .*"
    ):
        Role(MiniMaxH3(), spec("transformer", "int8")).prepare()


def test_what_the_device_cannot_do_is_refused_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*args: Any) -> quantizing.Quantize:
        def quantize(layer: torch.nn.Module) -> None:
            raise RuntimeError("no kernel for this device")

        return quantize

    monkeypatch.setattr(quantizing, "quantizer", cannot)
    with pytest.raises(
        ConfigError, match=r"hold linear layers as fp8 in torch\.float32 on cpu, found RuntimeError: no kernel"
    ):
        Role(MiniMaxH3(), spec("text_encoder", "fp8", "float32")).prepare()


def test_components_that_have_no_such_layers_are_refused() -> None:
    role = {"stages": ["encode", "denoise", "decode"], "memory": {"quantization": {"vae": "int8"}}}
    with pytest.raises(ConfigError, match=r"roles\.all\.memory\.quantization"):
        parse_config({"model": {"path": "tiny"}, "roles": {"all": role}})
