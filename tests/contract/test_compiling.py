"""torch.compile while loading: shown as load spans and progress, serves other lengths, and fails with the compiler's words."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch

from configs import roles_config
from splitreel.cluster.host import WorkerHost
from splitreel.cluster.replies import NodeFacts
from splitreel.errors import ConfigError, WorkerNotReady
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.warmup import transformer_inputs, warm_up
from splitreel.observe.spans import Place, SpanRecorder
from splitreel.roles.compiling import compile_blocks
from splitreel.roles.role import Role

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler for the CPU"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def role(name: str, *compiled: str) -> Role:
    made = Role(MiniMaxH3(), replace(roles_config("local").role_spec(name), compile=compiled))
    made.prepare()
    return made


def test_the_transformer_compiles_while_loading_and_serves_other_lengths() -> None:
    steps: list[tuple[str, int, int]] = []
    spans = SpanRecorder(Place("dit", "dit", "here"))
    compiled = role("dit", "transformer", "transformer_ref")
    compiled.load(lambda name, done, total, size, seconds: steps.append((name, done, total)), spans)
    assert steps[-1] == ("compile.transformer", 4, 4)
    span = next(span for span in spans.finish() if span.name == "load.compile.transformer")
    module = compiled.components["transformer"]
    assert span.attributes["blocks"] == len(module.transformer_blocks) + len(module.token_refiner.refiner_blocks)
    plain = role("dit")
    plain.load()
    host = WorkerHost(compiled.model, compiled.spec, "dit", NodeFacts("local-dit", "here"))
    host._role = compiled
    assert host.health().compile == {
        "transformer": f"torch.compile ({span.attributes['blocks']} blocks, dynamic sizes)"
    }
    assert host.health().step_cache == {}
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs
    with torch.inference_mode():
        for text_rows in (8, 13):
            inputs = transformer_inputs(module, text_rows=text_rows)
            found, expected = module(**inputs).sample, plain.components["transformer"](**inputs).sample
            assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "another length compiles nothing again"


def test_a_compiler_that_fails_fails_the_start() -> None:
    from torch._inductor import config

    block = torch.nn.GELU()
    words = r"compile\.transformer: expected torch .* to compile 1 blocks, found InductorError: InvalidCxxCompiler: No working"
    no_compiler = {"cpp.cxx": (None, "no-such-compiler"), "fx_graph_cache": False}
    with config.patch(no_compiler), torch.no_grad(), pytest.raises(WorkerNotReady, match=words) as caught:
        compile_blocks("transformer", [block], lambda: block(torch.ones(3, 7)))
    assert caught.value.__cause__ is not None
    assert "Traceback" in caught.value.remote_traceback


@pytest.mark.parametrize("component", ["text_encoder", "vae"])
def test_a_warm_up_passes_through_all_repeated_blocks(component: str) -> None:
    """What compiles is compiled by the warm-up; that of the transformer is tested above."""
    loaded = role("encoder_decoder")
    loaded.load()
    module = loaded.components[component]
    blocks = loaded.model.repeated_blocks(component, module)
    passed: list[Any] = []
    for block in blocks:
        block.register_forward_pre_hook(lambda module, args: passed.append(module))
    # As where a component is offloaded: its first parameter is not where it computes.
    module.register_parameter("elsewhere", torch.nn.Parameter(torch.empty(1, device="meta"), requires_grad=False))
    assert next(module.parameters()).device.type == "meta"
    warm_up(component, module, "cpu")
    assert passed == blocks


def test_settings() -> None:
    spec = roles_config("local", encoder_decoder={"compile": {"vae": True, "text_encoder": True}}).role_spec(
        "encoder_decoder"
    )
    assert spec.compile == ("text_encoder", "vae")
    with pytest.raises(ConfigError, match=r"roles\.dit\.compile\.vae: expected on a role that holds decode"):
        roles_config("local", dit={"compile": {"vae": True}})
