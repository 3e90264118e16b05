"""The tiny checkpoints: the released layout, repeatable bytes, and outputs in which every input shows."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import Qwen2Tokenizer, Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from splitreel.errors import ConfigError
from splitreel.h3 import tiny
from splitreel.h3.tiny import HUB_REPOSITORY, MARKER, cached_tiny, make_tiny
from splitreel.h3.tiny_spec import GEOMETRIES, GEOMETRY_SPECS, SIZES, index_configs

pytestmark = [
    pytest.mark.contract,
    # diffusers builds its audio VAE with the older weight norm.
    pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning"),
]

MODELS = ("transformer", "transformer_ref", "vae", "audio_vae", "text_encoder")
SHARDED = ("transformer", "transformer_ref", "text_encoder")
COMPONENTS = (*MODELS, "tokenizer", "processor", "scheduler", "audio_scheduler")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {name: make_tiny(root / name, geometry=name) for name in GEOMETRIES}


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def tensors(component: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted(component.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return found


# --- files


def test_layout_is_the_released_one(checkpoints):
    for directory in checkpoints.values():
        assert {path.name for path in directory.iterdir()} == {*COMPONENTS, "modular_model_index.json", MARKER}
        for name in SHARDED:
            assert len(list((directory / name).glob("*.safetensors"))) >= 3
            assert len(list((directory / name).glob("*.safetensors.index.json"))) == 1
        for name, shift in (("scheduler", 12.0), ("audio_scheduler", 3.0)):
            assert json.loads((directory / name / "scheduler_config.json").read_text())["shift"] == shift


def test_index_points_every_component_to_the_hub(checkpoints):
    for geometry, directory in checkpoints.items():
        index = json.loads((directory / "modular_model_index.json").read_text())
        assert index["_class_name"] == "MiniMaxH3ModularPipeline"
        assert index["_blocks_class_name"] == "MiniMaxH3Blocks"
        entries = {name: entry for name, entry in index.items() if isinstance(entry, list)}
        assert set(entries) == set(COMPONENTS)
        for name, (library, class_name, loading) in entries.items():
            assert loading["type_hint"] == [library, class_name]
            assert loading["pretrained_model_name_or_path"] == HUB_REPOSITORY
            assert loading["subfolder"] == name
        assert index.items() >= index_configs(GEOMETRY_SPECS[geometry], "tiny").items()


def test_two_makes_are_equal_byte_for_byte(checkpoints, tmp_path):
    torch.set_num_threads(2)
    torch.manual_seed(1234)
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.bfloat16)
    try:
        again = make_tiny(tmp_path / "elsewhere", geometry="other")
        assert torch.get_default_dtype() == torch.bfloat16
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    assert digests(again) == digests(checkpoints["other"])


def test_no_file_names_this_machine(checkpoints):
    for directory in checkpoints.values():
        for path in directory.rglob("*.json"):
            text = path.read_text(encoding="utf-8")
            assert str(directory.parent) not in text
            assert '_name_or_path": "/' not in text


def test_weights_follow_the_seed_and_differ_between_partitions(checkpoints, tmp_path):
    first = checkpoints["released"]
    second = make_tiny(tmp_path / "seed-1", seed=1)
    for component in MODELS:
        here, there = tensors(first / component), tensors(second / component)
        assert here.keys() == there.keys()
        assert all(torch.isfinite(value).all() for value in here.values())
        same = {name for name in here if torch.equal(here[name], there[name])}
        assert all(name.endswith(("filter", "zero_k_bias")) for name in same), same
    plain, reference = tensors(first / "transformer"), tensors(first / "transformer_ref")
    assert plain.keys() == reference.keys()
    assert not any(torch.equal(plain[name], reference[name]) for name in plain)


def test_bfloat16_keeps_what_the_release_keeps_in_float32(tmp_path):
    directory = make_tiny(tmp_path / "narrow", dtype="bfloat16")
    for component in ("transformer", "transformer_ref"):
        kept = ("proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out")
        for name, value in tensors(directory / component).items():
            assert value.dtype == (torch.float32 if name.startswith(kept) else torch.bfloat16), name
    assert {value.dtype for value in tensors(directory / "text_encoder").values()} == {torch.bfloat16}
    for component in ("vae", "audio_vae"):
        assert {value.dtype for value in tensors(directory / component).values()} == {torch.float32}


# --- making


def test_a_made_checkpoint_is_kept(checkpoints):
    directory = checkpoints["released"]
    before = directory.stat().st_ino
    assert make_tiny(directory) == directory
    assert directory.stat().st_ino == before


def test_anything_else_in_the_way_is_refused(checkpoints, tmp_path):
    with pytest.raises(ConfigError, match="expected a tiny checkpoint of"):
        make_tiny(checkpoints["released"], seed=7)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="found other files"):
        make_tiny(tmp_path)
    with pytest.raises(ConfigError, match="found a file"):
        make_tiny(tmp_path / "notes.txt")
    (tmp_path / MARKER).write_text("{")
    with pytest.raises(ConfigError, match="unreadable"):
        make_tiny(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", MARKER]


@pytest.mark.parametrize("wrong", [{"geometry": "flat"}, {"size": "huge"}, {"dtype": "float16"}])
def test_an_unknown_parameter_is_refused(wrong, tmp_path):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        make_tiny(tmp_path / "none", **wrong)
    assert not any(tmp_path.iterdir())


def test_an_interrupted_make_leaves_nothing(monkeypatch, tmp_path):
    def interrupt(root: Path) -> None:
        assert (root / "text_encoder").is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny, "_settle_files", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_tiny(tmp_path / "half")
    assert not any(tmp_path.iterdir())


def test_racing_callers_share_one_cached_checkpoint(tmp_path):
    call = "from splitreel.h3.tiny import cached_tiny; print(cached_tiny(geometry='other', seed=3))"
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "SPLITREEL_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    racers = [
        subprocess.Popen([sys.executable, "-c", call], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        answers = [racer.communicate(timeout=120)[0].strip() for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait(timeout=10)
    assert [racer.returncode for racer in racers] == [0, 0]
    assert len(set(answers)) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [
        f"tiny-other-tiny-float32-3-v{tiny.MAKER_VERSION}"
    ]
    assert (Path(answers[0]) / MARKER).is_file()


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("SPLITREEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = cached_tiny()
    assert directory == tmp_path / "splitreel" / f"tiny-released-tiny-float32-0-v{tiny.MAKER_VERSION}"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tiny.cache_directory() == tmp_path / ".cache" / "splitreel"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_canvas_configs_grow_with_the_size(geometry, size):
    found = index_configs(GEOMETRY_SPECS[geometry], size)
    assert found["canvas_short_edge"] >= GEOMETRY_SPECS[geometry].short_edges["tiny"]
    assert found["canvas_max_pixels"] == 2 * found["canvas_short_edge"] ** 2


# --- parts


def test_token_ids_agree_between_tokenizer_processor_and_encoder(checkpoints):
    directory = checkpoints["released"]
    tokenizer = Qwen2Tokenizer.from_pretrained(directory / "tokenizer")
    processor = Qwen3VLProcessor.from_pretrained(directory / "processor")
    config = json.loads((directory / "text_encoder" / "config.json").read_text())
    ids = {
        "<|image_pad|>": config["image_token_id"],
        "<|video_pad|>": config["video_token_id"],
        "<|vision_start|>": config["vision_start_token_id"],
        "<|vision_end|>": config["vision_end_token_id"],
    }
    for token, number in ids.items():
        assert tokenizer(token, add_special_tokens=False)["input_ids"] == [number]
        assert processor.tokenizer.convert_tokens_to_ids(token) == number
    assert processor.create_mm_token_type_ids([[65, ids["<|image_pad|>"], ids["<|video_pad|>"]]]) == [[0, 1, 2]]
    assert len(tokenizer) == config["text_config"]["vocab_size"]
    text = "A singer in Köln — 東京, at dawn."
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_51_layers_give_the_state_that_64_give(checkpoints):
    folder = checkpoints["released"] / "text_encoder"
    config = json.loads((folder / "config.json").read_text())
    assert config["text_config"]["num_hidden_layers"] == 64
    whole = Qwen3VLForConditionalGeneration.from_pretrained(folder)
    cut = Qwen3VLForConditionalGeneration.from_pretrained(folder)
    del cut.model.language_model.layers[51:]
    tokens = torch.tensor([[72, 101, 108, 108, 111]])
    with torch.no_grad():
        states = [
            model.model(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states
            for model in (whole, cut)
        ]
    assert torch.equal(states[0][50], states[1][50])
    assert not torch.equal(states[0][50], states[0][49])
    assert states[0][50].isfinite().all()
