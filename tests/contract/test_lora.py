"""Every form of LoRA file does to the denoised latents what its update made by hand does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from diffusers import MiniMaxH3Transformer3DModel
from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_minimax_h3_lora_to_diffusers

from configs import roles_config
from lora_bench import COMPONENT, Bench, distance
from lora_files import (
    ALPHA,
    Factors,
    by_hand,
    diffusers_metadata,
    make_factors,
    original_names,
    tensors_of,
    write,
)
from splitreel import AdapterError
from splitreel.h3.lora import adapter_resolve, closed_modules
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.tiny import cached_tiny, make_tiny
from splitreel.lora import FuseAdapters, InstallAdapter
from splitreel.request import Stage
from splitreel.roles.adapters.bind import Surface, bind
from splitreel.roles.adapters.files import read_adapter
from splitreel.roles.adapters.rack import parameters_of
from splitreel.roles.control import StageControl
from splitreel.roles.role import Role

pytestmark = pytest.mark.timeout(120)

Writer = Callable[[Path, Factors, str], Path]


def _diffusers(folder: Path, factors: Factors, component: str) -> Path:
    metadata = diffusers_metadata(component, r=4, lora_alpha=ALPHA)
    return write(folder / "pytorch_lora_weights.safetensors", tensors_of(factors, f"{component}."), metadata)


def _no_prefix_default(folder: Path, factors: Factors, component: str) -> Path:
    return write(folder / "a.safetensors", tensors_of(factors, infix=".default"), {"alpha": str(ALPHA)})


def _original(folder: Path, factors: Factors, component: str) -> Path:
    return write(folder / "a.safetensors", tensors_of(original_names(factors)), {"alpha": f"{ALPHA:g}", "format": "pt"})


def _diffusion_model(folder: Path, factors: Factors, component: str) -> Path:
    return write(folder / "a.safetensors", tensors_of(original_names(factors), "diffusion_model.", alpha=ALPHA))


def _kohya(folder: Path, factors: Factors, component: str) -> Path:
    tensors = tensors_of(original_names(factors), "lora_unet_", names=("lora_down", "lora_up"), alpha=ALPHA, flat=True)
    return write(folder / "a.safetensors", tensors)


def _diffsynth(folder: Path, factors: Factors, component: str) -> Path:
    tensors = tensors_of(original_names(factors, interleaved_heads=4), infix=".default", alpha=ALPHA)
    return write(folder / "a.safetensors", tensors)


def _peft_config(folder: Path, factors: Factors, component: str) -> Path:
    (folder / "adapter_config.json").write_text(
        f'{{"peft_type": "LORA", "r": 4, "lora_alpha": 7, "alpha_pattern": {{".*": {ALPHA}}}}}'
    )
    write(folder / "adapter_model.safetensors", tensors_of(factors, "base_model.model."))
    return folder


FORMS: dict[str, tuple[Writer, str, str]] = {
    "diffusers": (_diffusers, "diffusers names, prefix transformer", "metadata"),
    "peft": (_peft_config, "diffusers names, prefix base_model.model.", "adapter_config.json"),
    "no prefix, lora_A.default": (_no_prefix_default, "diffusers names, infix default", "metadata"),
    "original names": (_original, "original names", "metadata"),
    "diffusion_model": (_diffusion_model, "original names, prefix diffusion_model.", "tensors"),
    "kohya": (_kohya, "kohya names, down and up", "tensors"),
    "DiffSynth": (_diffsynth, "names, infix default", "tensors"),
}


@pytest.mark.parametrize("workflow", list(COMPONENT))
@pytest.mark.parametrize("form", list(FORMS))
def test_each_form_equals_its_update_by_hand(
    bench: Bench, factors: Factors, tmp_path: Path, form: str, workflow: str
) -> None:
    writer, said, alpha_source = FORMS[form]
    path = writer(tmp_path, factors, COMPONENT[workflow])
    adapter, receipt = bench.install(path, workflow)
    assert said in receipt.format
    assert (receipt.modules, receipt.ranks, receipt.alphas) == (len(factors), (2, 4), (ALPHA,))
    assert (receipt.alpha_source, receipt.unmatched, receipt.target) == (alpha_source, (), COMPONENT[workflow])
    made = bench.denoise(workflow, (adapter, 0.7))
    assert distance(made, bench.base[workflow]) > 0.05, "an update without effect would make this test worthless"
    assert distance(made, bench.made_by_hand(workflow, by_hand(factors, 0.7))) <= 1e-5
    bench.drop(adapter)


def test_what_peft_itself_writes(bench: Bench, tmp_path: Path) -> None:
    """peft's own layers, file and merge, with ranks and alphas per pattern and rslora."""
    model = MiniMaxH3Transformer3DModel.from_pretrained(str(cached_tiny()), subfolder="transformer")
    config = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        rank_pattern={"proj_in": 2},
        alpha_pattern={"to_q": 5},
        use_rslora=True,
        init_lora_weights=False,
        target_modules=["to_q", "to_k", "proj_in", "net.2"],
    )
    torch.manual_seed(0)
    wrapped = peft.get_peft_model(model, config)
    wrapped.save_pretrained(tmp_path)
    before = bench.transformer("t2va").state_dict()
    merged = wrapped.merge_and_unload().state_dict()
    deltas = {name: value - before[name] for name, value in merged.items() if not torch.equal(value, before[name])}
    adapter, receipt = bench.install(tmp_path)
    assert (receipt.ranks, receipt.alphas) == ((2, 4), (5.0, 6.0))
    assert receipt.modules == len(deltas)
    assert distance(bench.denoise("t2va", (adapter, 1.0)), bench.made_by_hand("t2va", deltas)) <= 1e-5
    bench.drop(adapter)


@pytest.mark.parametrize("form", ["original names", "diffusion_model", "kohya"])
def test_the_translation_is_diffusers_own(bench: Bench, factors: Factors, tmp_path: Path, form: str) -> None:
    content = read_adapter(str(FORMS[form][0](tmp_path, factors, "transformer")))
    import safetensors.torch

    theirs = _convert_non_diffusers_minimax_h3_lora_to_diffusers(safetensors.torch.load(content.content.tobytes()))
    adapter, _ = bench.install(tmp_path / "a.safetensors")
    ours = bench.role.adapters._components["transformer"].bound[adapter].patches
    assert {key.removeprefix("transformer.").split(".lora_")[0] for key in theirs} == {
        name.removesuffix(".weight") for name in ours
    }
    for name, patch in ours.items():
        stem = f"transformer.{name.removesuffix('.weight')}"
        product = theirs[f"{stem}.lora_B.weight"] @ theirs[f"{stem}.lora_A.weight"]
        assert patch.up is not None
        assert patch.down is not None
        scale = 1.0 if form == "original names" else patch.factor  # their header's alpha is kept apart
        torch.testing.assert_close(patch.up @ patch.down * scale, product)
    bench.drop(adapter)


def test_whole_parameters_beside_factors(bench: Bench, factors: Factors, tmp_path: Path) -> None:
    """FastVideo's form: factors without alpha, `.diff` of norms, `.diff_b` of biases, `.set_weight`."""
    generator = torch.Generator().manual_seed(2)
    tensors = tensors_of(factors)
    tensors["transformer_blocks.0.norm1.diff"] = torch.randn(64, generator=generator) * 0.1
    tensors["proj_out.diff"] = torch.randn(96, 64, generator=generator) * 0.1
    tensors["proj_in.diff"] = torch.randn(64, 96, generator=generator) * 0.1  # beside its factors
    tensors["proj_in.diff_b"] = torch.randn(64, generator=generator) * 0.1
    tensors["token_refiner.final_norm.set_weight"] = torch.rand(64, generator=generator) + 0.5
    path = write(tmp_path / "a.safetensors", tensors, {"format": "fastvideo-lora-v2", "rank": "4"})
    adapter, receipt = bench.install(path)
    assert "whole parameters (.diff, .diff_b, .set_weight), calls itself fastvideo-lora-v2" in receipt.format
    assert receipt.alpha_source == "equal to rank, as none is stated"
    assert receipt.replaced == ("token_refiner.final_norm.weight",)
    for scale in (1.0, 0.6):
        set_to = tensors["token_refiner.final_norm.set_weight"]
        there = bench.transformer("t2va").get_parameter("token_refiner.final_norm.weight")
        whole = {
            "transformer_blocks.0.norm1.weight": scale * tensors["transformer_blocks.0.norm1.diff"],
            "proj_out.weight": scale * tensors["proj_out.diff"],
            "proj_in.weight": scale * tensors["proj_in.diff"],
            "proj_in.bias": scale * tensors["proj_in.diff_b"],
            "token_refiner.final_norm.weight": scale * (set_to - there),
        }
        made = bench.denoise("t2va", (adapter, scale))
        by_ours = bench.made_by_hand("t2va", by_hand(factors, scale, alpha=None), whole)
        assert distance(made, by_ours) <= 1e-5
    bench.fuse((adapter, 1.0))
    assert distance(bench.denoise("t2va", (adapter, 1.0)), bench.denoise("t2va", (adapter, 0.6))) > 0.01
    bench.drop(adapter)


def test_fused_factors_set_merged_taken_out_and_replaced(bench: Bench, factors: Factors, tmp_path: Path) -> None:
    """Case 64: two-dimensional fused qkv factors; set, merge, unmerge, set another, scale 0."""
    one, _ = bench.install(_original(tmp_path, factors, ""))
    other, _ = bench.install(
        write(tmp_path / "b.safetensors", tensors_of(original_names(make_factors(bench.transformer("t2va"), 9))))
    )
    made = bench.denoise("t2va", (one, 1.0))
    pointers = [parameter.data_ptr() for parameter in bench.transformer("t2va").parameters()]
    bench.fuse((one, 1.0))
    assert distance(bench.denoise("t2va", (one, 1.0)), made) == 0.0, "fusing changes no bit"
    assert bench.role.adapters._components["transformer"]._originals._kept, "something was written"
    assert all(kept.copy is None for kept in bench.role.adapters._components["transformer"]._originals._kept.values())
    bench.fuse()
    assert distance(bench.denoise("t2va"), bench.base["t2va"]) == 0.0
    assert distance(bench.denoise("t2va", (one, 1.0)), made) == 0.0
    second = bench.denoise("t2va", (other, 1.0))
    assert distance(second, made) > 0.05
    assert distance(bench.denoise("t2va", (one, 0.0)), bench.base["t2va"]) == 0.0
    both = bench.denoise("t2va", (one, 0.5), (other, -0.5))
    halves = by_hand(factors, 0.5), by_hand(make_factors(bench.transformer("t2va"), 9), -0.5, alpha=None)
    assert distance(both, bench.made_by_hand("t2va", *halves)) <= 1e-5
    # While fused, a request that was admitted with other adapters, and one more with the fused ones.
    bench.fuse((one, 1.0))
    assert distance(bench.denoise("t2va", (other, 1.0)), second) == 0.0
    assert distance(bench.denoise("t2va", (one, 1.0)), made) == 0.0
    assert [parameter.data_ptr() for parameter in bench.transformer("t2va").parameters()] == pointers
    bench.drop(one)
    bench.drop(other)


def test_compiled_components_get_their_weights_written(bench: Bench, factors: Factors, tmp_path: Path) -> None:
    """The same films, without a module that the compiler has not seen."""
    adapter, _ = bench.install(_original(tmp_path, factors, ""))
    made = bench.denoise("t2va", (adapter, 1.0))
    adapted = bench.role.adapters._components["transformer"]
    bench.denoise("t2va")
    adapted.always_write = True
    try:
        for scale in (1.0, 0.5, 1.0):
            latents = bench.denoise("t2va", (adapter, scale))
            assert not any("Parametrized" in type(module).__name__ for module in bench.transformer("t2va").modules())
            assert (distance(latents, made) == 0.0) == (scale == 1.0)
        assert distance(bench.denoise("t2va"), bench.base["t2va"]) == 0.0
        bench.denoise("t2va", (adapter, 1.0))
        bench.drop(adapter)
        assert distance(bench.denoise("t2va"), bench.base["t2va"]) == 0.0
    finally:
        adapted.always_write = False


def test_adaln_held_as_tables_is_named(bench: Bench, factors: Factors, tmp_path: Path) -> None:
    """Tables were made with the projections and the time embedder as loaded: an update of these would not act."""
    config = roles_config("local", "tiny", "t2va", dit={"memory": {"adaln": "tables"}})
    role = Role(MiniMaxH3(), config.role_spec("dit"))
    role.prepare()
    role.load()

    def install(name: str, chosen: Factors) -> InstallAdapter:
        content = read_adapter(str(write(tmp_path / f"{name}.safetensors", tensors_of(chosen))))
        order = InstallAdapter(name, name, content.source, content.sha256, "transformer")
        role.adapters.carry_out(order, lambda: content.content)
        return order

    with pytest.raises(
        AdapterError, match=r"found 6 of \d+ that do not.*holds AdaLN as tables \(memory\.adaln: tables\)"
    ):
        install("all", factors)
    others = {name: pair for name, pair in factors.items() if not name.startswith(("time_", "norm_out"))}
    others.pop("transformer_blocks.2.adaln_proj.linear")
    install("others", others)
    payload = bench.encoded["t2va"]
    payload.header.values["lora"] = [["others", 1.0]]  # type: ignore[index]
    made = role.run(Stage.DENOISE, payload, StageControl("r", Stage.DENOISE))
    assert role.resident["adapters"] > 0
    expected = bench.made_by_hand("t2va", by_hand(others, alpha=None))
    assert distance((made.tensors["latents"], made.tensors["audio_latents"]), expected) <= 1e-5  # type: ignore[arg-type]


def test_fused_projections_and_full_devices_are_named(bench: Bench, factors: Factors, tmp_path: Path) -> None:
    transformer = MiniMaxH3Transformer3DModel.from_pretrained(str(cached_tiny()), subfolder="transformer")
    transformer.transformer_blocks[0].attn.fuse_projections()
    closed = closed_modules(transformer)
    gates = {name for name in closed if name.endswith("to_gate_compress")}
    assert set(closed) - gates == {f"transformer_blocks.0.attn.to_{letter}" for letter in "qkv"}
    path = write(tmp_path / "a.safetensors", tensors_of(factors))
    content = read_adapter(str(path))
    order = InstallAdapter("a#1", "a", str(path), content.sha256, "transformer")
    shapes, _ = parameters_of(transformer)
    surface = Surface("transformer", shapes, adapter_resolve(transformer), closed, "cpu", lambda: 1 << 40)
    with pytest.raises(AdapterError, match=r"attn\.to_q\.lora_A.* \(the transformer's query, key and value were fused"):
        bind(order, content.content, surface, ())
    full = Surface("transformer", shapes, adapter_resolve(transformer), {}, "cpu", lambda: 10)
    with pytest.raises(AdapterError, match=r"expected \d+ bytes free on cpu, found 10"):
        bind(order, content.content, full, ())


def test_a_checkpoint_that_changes_under_fused_weights_is_noticed(factors: Factors, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(cached_tiny(), tmp_path / "model")
    role = Role(MiniMaxH3(), roles_config("local", str(tmp_path / "model")).role_spec("dit"))
    role.prepare()
    role.load()
    path = write(tmp_path / "a.safetensors", tensors_of(factors))
    content = read_adapter(str(path))
    role.adapters.carry_out(
        InstallAdapter("a#1", "a", str(path), content.sha256, "transformer"), lambda: content.content
    )
    role.adapters.carry_out(FuseAdapters((("a#1", 1.0),)), lambda: content.content)
    for file in (tmp_path / "model/transformer").glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-400:] = bytes(400)
        file.write_bytes(data)
    with pytest.raises(AdapterError, match="as it was loaded, found it changed since"):
        role.adapters.carry_out(FuseAdapters(()), lambda: content.content)


def test_gates_of_a_fastvideo_adapter_replace_those_of_the_checkpoint(factors: Factors, tmp_path: Path) -> None:
    """`.set_weight` of compression gates: at home on a transformer that has gates, refused on any other (see above)."""
    make_tiny(tmp_path / "model", vsa_gates=True)
    role = Role(
        MiniMaxH3(), roles_config("local", str(tmp_path / "model"), dit={"attention": {"vsa": {}}}).role_spec("dit")
    )
    role.prepare()
    role.load()
    tensors = tensors_of(factors)
    for block in range(3):
        tensors[f"transformer_blocks.{block}.attn.to_gate_compress.set_weight"] = torch.full((128, 64), float(block))
    path = write(tmp_path / "a.safetensors", tensors, {"format": "fastvideo-lora-v2"})
    content = read_adapter(str(path))
    order = InstallAdapter("a#1", "a", str(path), content.sha256, "transformer")
    receipt = role.adapters.carry_out(order, lambda: content.content)
    assert receipt is not None
    assert receipt.replaced == tuple(f"transformer_blocks.{block}.attn.to_gate_compress.weight" for block in range(3))
    role.adapters.apply("transformer", [("a#1", 1.0)])
    gates = [role.components["transformer"].transformer_blocks[block].attn.to_gate_compress for block in range(3)]
    assert [gate.weight.unique().tolist() for gate in gates] == [[0.0], [1.0], [2.0]]
    role.adapters.apply("transformer", [])
    assert all(gate.weight.unique().numel() > 100 for gate in gates)
