"""Checkpoints: found wherever they are, checked before weights load, and refused by node, role, component and file."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from configs import roles_config
from splitreel import (
    CheckpointError,
    GenerateRequest,
    GeometryMismatch,
    IncompleteCheckpoint,
    MissingComponent,
    Session,
    StageError,
)
from splitreel.h3.tiny import cached_tiny
from splitreel.roles.checkpoint import check_safetensors

REQUEST = GenerateRequest(prompt="A lake.", steps=2, seed=1)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A copy in another folder than it was made in, its index naming the hub."""
    copy = tmp_path / "moved" / "MiniMax-H3"
    shutil.copytree(cached_tiny(), copy)
    assert '"MiniMaxAI/MiniMax-H3"' in (copy / "modular_model_index.json").read_text()
    return copy


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_moved_directory_wins_over_the_hub_in_its_index(tiny: Path) -> None:
    with Session(roles_config("local", str(tiny))) as session:
        assert session.generate(REQUEST).video_bytes
    (tiny / "transformer_ref").rename(tiny.parent / "elsewhere")
    with Session(roles_config("local", str(tiny))) as session:
        assert {worker.role: worker.state for worker in session.health()} == {
            "encoder_decoder": "ready",
            "dit": "ready",
        }


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


Damage = Callable[[Path], Any]
DAMAGE: list[tuple[str, Damage, type[Exception], list[str]]] = [
    ("a shard deleted", lambda root: (root / "transformer/diffusion_pytorch_model-00002-of-00004.safetensors").unlink(), IncompleteCheckpoint, ["role dit, transformer: expected the weights in", "model-00002-of-00004.safetensors, found no such file"]),
    ("a shard cut in half", lambda root: cut(root / "text_encoder/model-00003-of-00004.safetensors"), IncompleteCheckpoint, ["role encoder_decoder, text_encoder: expected 1011352 bytes in", "found 505676"]),
    ("a shard emptied", lambda root: (root / "vae/diffusion_pytorch_model.safetensors").write_bytes(b""), IncompleteCheckpoint, ["role encoder_decoder, vae: expected a safetensors header in", "found 0 bytes"]),
    ("a broken config", lambda root: (root / "audio_vae/config.json").write_text('{"latent_channels": 3'), MissingComponent, ["audio_vae: expected JSON in", "audio_vae/config.json"]),
    ("a config that is a list", lambda root: (root / "vae/config.json").write_text("[]"), MissingComponent, ["vae: expected a JSON object in"]),
    ("no scheduler", lambda root: shutil.rmtree(root / "scheduler"), MissingComponent, ["role dit, scheduler: expected the folder"]),
    ("no tokenizer file", lambda root: (root / "tokenizer/tokenizer.json").unlink(), IncompleteCheckpoint, ["role encoder_decoder, tokenizer: expected tokenizer.json or vocab.json in"]),
    ("a fact missing", lambda root: edit_json(root / "vae/config.json", lambda c: c.pop("clip_length")), MissingComponent, ["vae: expected a positive whole number for clip_length in"]),
    ("channels that do not fit", lambda root: edit_json(root / "transformer/config.json", lambda c: c.update(in_channels=16)), GeometryMismatch, ["transformer/config.json: in_channels: expected 24 (vae latent_channels), found 16"]),
    ("50 text layers", lambda root: edit_json(root / "text_encoder/config.json", lambda c: c["text_config"].update(num_hidden_layers=50)), GeometryMismatch, ["expected 51 or more decoder layers", "found 50"]),
    ("a component of another class", lambda root: edit_json(root / "audio_vae/config.json", lambda c: c.update(encoder_rates=[2, 4, 4, 5], decoder_rates=[160])), GeometryMismatch, ["sampling_rate / encoder_rates: expected 40", "found 200.0"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "kind", "words"), DAMAGE, ids=[row[0] for row in DAMAGE])
def test_damage_is_named_before_weights_load(
    name: str, damage: Damage, kind: type[Exception], words: list[str], tiny: Path
) -> None:
    damage(tiny)
    loaded: list[Any] = []
    with pytest.raises(kind) as caught:
        Session(roles_config("local", str(tiny)), on_load=loaded.append)
    assert loaded == []
    message = str(caught.value)
    assert message.startswith("node ")
    for word in words:
        assert word in message
    assert caught.value.role in ("encoder_decoder", "dit")  # type: ignore[attr-defined]
    assert caught.value.node  # type: ignore[attr-defined]


def test_a_component_that_does_not_load_keeps_its_cause(tiny: Path) -> None:
    """Whole by its header, but not what the class expects: diffusers alone would go on without the component."""
    path = tiny / "audio_vae/diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    weights["mean_proj.weight"] = torch.zeros(3, 3, 1)
    save_file(weights, path)
    with pytest.raises(
        MissingComponent, match=r"role encoder_decoder, audio_vae: expected AutoencoderKL.* to load from .* found "
    ):
        Session(roles_config("local", str(tiny)))


def test_an_original_partition_is_told_from_the_diffusers_layout(tmp_path: Path) -> None:
    partition = tmp_path / "FL2VA"
    partition.mkdir()
    save_file({"blocks.0.attn.qkv.weight": torch.zeros(2, 2)}, partition / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"looks like one of the original partitions.*Use the repository root"):
        Session(roles_config("local", str(partition)))


def test_a_component_folder_is_told_from_the_root(tiny: Path) -> None:
    with pytest.raises(CheckpointError, match=f"Use the repository root: {tiny}"):
        Session(roles_config("local", str(tiny / "transformer")))


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "tiny:huge", "just-a-name"])
def test_a_path_that_is_nothing(path: str) -> None:
    with pytest.raises(CheckpointError, match=r"model\.path: expected"):
        Session(roles_config("local", path))


def test_a_hub_id_offline_without_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        CheckpointError, match="expected MiniMaxAI/MiniMax-H3 in the local hub cache because HF_HUB_OFFLINE"
    ):
        Session(roles_config("local", "MiniMaxAI/MiniMax-H3"))


def test_two_roles_with_different_checkpoints(tmp_path: Path) -> None:
    config = roles_config("local", str(cached_tiny()), dit={"model_path": str(cached_tiny("other"))})
    with pytest.raises(GeometryMismatch, match=r"expected the same checkpoint on both.*spatial_ratio: 16 / 8"):
        Session(config)


def poison(root: Path, component: str, tensor: str) -> None:
    for path in sorted((root / component).glob("*.safetensors")):
        weights = load_file(path)
        if tensor in weights:
            weights[tensor] = torch.full_like(weights[tensor], float("nan"))
            save_file(weights, path, metadata={"format": "pt"})
            return
    raise AssertionError(tensor)


@pytest.mark.parametrize(
    ("component", "tensor", "words"),
    [
        ("transformer", "proj_out.bias", ["denoise of request", "role dit", "latents: expected finite values"]),
        ("transformer", "audio_proj_out.bias", ["denoise of request", "role dit", "audio_latents: expected finite"]),
        (
            "vae",
            "decoder.proj_out.bias",
            ["decode of request", "role encoder_decoder", "decoded video: expected finite"],
        ),
        (
            "audio_vae",
            "dec_in_proj.bias",
            ["decode of request", "role encoder_decoder", "decoded sound: expected finite"],
        ),
    ],
)
def test_values_that_are_not_finite_are_no_film(component: str, tensor: str, words: list[str], tiny: Path) -> None:
    """A NaN in the weights is a real way to NaN latents, pixels and samples; none may come out as black or silent."""
    poison(tiny, component, tensor)
    with Session(roles_config("local", str(tiny))) as session, pytest.raises(StageError) as caught:
        session.generate(REQUEST)
    message = str(caught.value)
    for word in [*words, "on node "]:
        assert word in message
    assert caught.value.error_type == "InvalidPayload"
    assert "Traceback" in caught.value.remote_traceback


def test_safetensors_lengths(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(10)}, path)
    check_safetensors(path, component="a")
    whole = path.read_bytes()
    for damaged in (
        whole + b"x",
        whole[:-1],
        whole[:4],
        struct.pack("<Q", 10**12) + whole[8:],
        b"\x02" + b"\0" * 7 + b"[]",
    ):
        path.write_bytes(damaged)
        with pytest.raises(IncompleteCheckpoint):
            check_safetensors(path, component="a")
