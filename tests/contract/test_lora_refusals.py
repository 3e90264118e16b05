"""What is wrong with a LoRA file, or does not fit, is said by name; nothing is dropped in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lora_bench import Bench, distance
from lora_files import (
    ALPHA,
    Factors,
    by_hand,
    diffusers_metadata,
    tensors_of,
    write,
)
from splitreel import AdapterError
from splitreel.roles.adapters.files import read_adapter

pytestmark = pytest.mark.timeout(120)


def _without_up(tensors: dict[str, Tensor]) -> None:
    del tensors["proj_in.lora_B.weight"]


def _wrong_size(tensors: dict[str, Tensor]) -> None:
    tensors["transformer_blocks.2.adaln_proj.linear.lora_A.weight"] = torch.zeros(2, 8)


def _nan(tensors: dict[str, Tensor]) -> None:
    tensors["proj_in.lora_B.weight"][3, 1] = float("nan")


def _infinite(tensors: dict[str, Tensor]) -> None:
    tensors["proj_in.alpha"] = torch.tensor(float("inf"))


def _unknown_head(tensors: dict[str, Tensor]) -> None:
    tensors["new_head.lora_A.weight"] = torch.zeros(4, 64)
    tensors["new_head.lora_B.weight"] = torch.zeros(64, 4)


def _gates(tensors: dict[str, Tensor]) -> None:
    tensors["transformer_blocks.0.attn.to_gate_compress.set_weight"] = torch.zeros(128, 64)


def _twice(tensors: dict[str, Tensor]) -> None:
    tensors["diffusion_model.proj_in.lora_A.weight"] = torch.zeros(4, 96)


def _no_alpha(tensors: dict[str, Tensor]) -> None:
    tensors["proj_in.alpha"] = torch.tensor(0.0)


def _zeros(tensors: dict[str, Tensor]) -> None:
    """As peft writes an adapter that was not trained."""
    for key in [name for name in tensors if "lora_B" in name]:
        tensors[key].zero_()


def _other_naming_too(tensors: dict[str, Tensor]) -> None:
    tensors["video_patch_proj.lora_A.weight"] = torch.zeros(4, 96)
    tensors["video_patch_proj.lora_B.weight"] = torch.zeros(64, 4)


def _integers(tensors: dict[str, Tensor]) -> None:
    tensors["proj_in.lora_A.weight"] = torch.zeros(4, 96, dtype=torch.int8)


def _both_kinds(tensors: dict[str, Tensor]) -> None:
    tensors["proj_in.set_weight"] = torch.zeros(64, 96)


def _no_bias(tensors: dict[str, Tensor]) -> None:
    tensors["transformer_blocks.0.attn.to_q.diff_b"] = torch.zeros(128)


REFUSED: dict[str, tuple[Callable[[dict[str, Tensor]], None], str]] = {
    "half a pair": (_without_up, r"expected both factors of proj_in, found proj_in\.lora_A\.weight alone"),
    "wrong size": (_wrong_size, r"adaln_proj\.linear\.lora_A\.weight of shape \(rank, 32\), found \(2, 8\).*pruned"),
    "nan": (_nan, r"expected finite values in proj_in\.lora_B\.weight, found NaN"),
    "infinite alpha": (_infinite, r"expected finite values in proj_in\.alpha"),
    "alpha 0": (
        _no_alpha,
        r"proj_in: expected an alpha other than 0, found 0 in tensors: the update would change nothing",
    ),
    "nothing but zeros": (_zeros, r"expected updates that change something, found zeros only in \d+ keys"),
    "unknown head": (_unknown_head, r"found 2 of \d+ that do not: new_head\.lora_A\.weight, new_head\.lora_B"),
    "gates": (
        _gates,
        r"found 1 of \d+ that do not: transformer_blocks\.0\.attn\.to_gate_compress\.set_weight .*has no gates",
    ),
    "twice": (_twice, r"expected each part of an update once, found proj_in\.lora_A\.weight again"),
    "two namings": (_other_naming_too, r"expected one update of proj_in\.weight, found a second one"),
    "integers": (_integers, r"expected floating-point values in proj_in\.lora_A\.weight, found int8"),
    "added and replaced": (_both_kinds, r"expected proj_in to be added to or replaced, found both"),
    "no bias": (_no_bias, r"expected a module with a bias, found transformer_blocks\.0\.attn\.to_q\.diff_b"),
}


@pytest.mark.parametrize("fault", list(REFUSED))
def test_refused_by_name(bench: Bench, factors: Factors, tmp_path: Path, fault: str) -> None:
    spoil, message = REFUSED[fault]
    tensors = tensors_of(factors)
    spoil(tensors)
    with pytest.raises(AdapterError, match=message):
        bench.install(write(tmp_path / "a.safetensors", tensors))


def test_files_for_something_else(bench: Bench, factors: Factors, tmp_path: Path) -> None:
    for_ref = write(tmp_path / "ref.safetensors", tensors_of(factors, "transformer_ref."))
    with pytest.raises(AdapterError, match=r"begin with transformer_ref: .* Give target='transformer_ref'"):
        bench.install(for_ref, allow_unmatched=True)
    plain = write(tmp_path / "plain.safetensors", tensors_of(factors, "transformer."))
    with pytest.raises(AdapterError, match="expected an adapter of transformer_ref, found keys that begin with transf"):
        bench.install(plain, "ref2va")
    other = {"unet.down.0.lora_A.weight": torch.zeros(4, 4), "unet.down.0.lora_B.weight": torch.zeros(4, 4)}
    with pytest.raises(AdapterError, match=r"found none among 2 keys: unet\.down\.0\.lora_A\.weight.*another model"):
        bench.install(write(tmp_path / "other.safetensors", other), allow_unmatched=True)
    dora = tmp_path / "dora"
    dora.mkdir()
    (dora / "adapter_config.json").write_text('{"use_dora": true}')
    write(dora / "adapter_model.safetensors", tensors_of(factors, "base_model.model."))
    with pytest.raises(AdapterError, match="found DoRA"):
        bench.install(dora)
    (tmp_path / "short.safetensors").write_bytes(plain.read_bytes()[:-10])
    with pytest.raises(AdapterError, match=r"lora: expected \d+ bytes in"):
        read_adapter(str(tmp_path / "short.safetensors"))
    (tmp_path / "pickle.bin").write_bytes(b"x")
    with pytest.raises(AdapterError, match="can run code"):
        read_adapter(str(tmp_path / "pickle.bin"))
    with pytest.raises(AdapterError, match=r"expected one \.safetensors file there, found other\.safetensors, plain"):
        read_adapter(str(tmp_path))
    with pytest.raises(AdapterError, match="nothing on this machine"):
        read_adapter("turbo")


def test_refiner_whole_parameters_and_an_unknown_head(bench: Bench, factors: Factors, tmp_path: Path) -> None:
    """Case 63: nothing is dropped in silence; what is ignored on request is listed, and the rest acts in full."""
    chosen = {name: pair for name, pair in factors.items() if name.startswith("token_refiner.")}
    tensors = tensors_of(chosen)
    tensors["transformer_blocks.0.norm2.diff"] = torch.full((64,), 0.3)
    _unknown_head(tensors)
    path = write(tmp_path / "a.safetensors", tensors)
    with pytest.raises(AdapterError, match="expected every key to fit transformer") as caught:
        bench.install(path)
    assert caught.value.unmatched == ["new_head.lora_A.weight", "new_head.lora_B.weight"]
    adapter, receipt = bench.install(path, allow_unmatched=True)
    assert receipt.unmatched == ("new_head.lora_A.weight", "new_head.lora_B.weight")
    assert receipt.modules == len(chosen) + 1
    deltas = by_hand(chosen, alpha=None) | {"transformer_blocks.0.norm2.weight": torch.full((64,), 0.3)}
    assert distance(bench.denoise("t2va", (adapter, 1.0)), bench.made_by_hand("t2va", deltas)) <= 1e-5
    bench.drop(adapter)


def test_alpha_of_ones_own(bench: Bench, factors: Factors, tmp_path: Path) -> None:
    """A file that states none (LightX2V's rank-128 Turbo was trained with alpha 8) or the wrong one."""
    path = write(tmp_path / "a.safetensors", tensors_of(factors, alpha=100.0))
    adapter, receipt = bench.install(path, alpha=ALPHA)
    assert (receipt.alphas, receipt.alpha_source) == ((ALPHA,), "given")
    assert distance(bench.denoise("t2va", (adapter, 1.0)), bench.made_by_hand("t2va", by_hand(factors))) <= 1e-5
    bench.drop(adapter)
    for metadata, where in (
        ({"alpha": "0"}, "metadata"),
        (diffusers_metadata("transformer", lora_alpha=0), "metadata"),
    ):
        with pytest.raises(AdapterError, match=f"expected an alpha other than 0, found 0 in {where}.*alpha=..."):
            bench.install(write(tmp_path / "b.safetensors", tensors_of(factors), metadata))
    with pytest.raises(AdapterError, match="expected a number as alpha in metadata, found 'big'"):
        bench.install(write(tmp_path / "b.safetensors", tensors_of(factors), {"alpha": "big"}))
