"""Components as the roles load them: the tensors that the libraries' own loading gives, and no others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from splitreel.config import MemorySpec, RoleSpec
from splitreel.errors import IncompleteCheckpoint
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.tiny import cached_tiny
from splitreel.request import Stage
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.loading import load_module
from splitreel.roles.role import Role
from splitreel.roles.weights import reading, stored_tensors

MODEL = MiniMaxH3()
WEIGHTS = ["vae", "audio_vae", "text_encoder", "transformer", "transformer_ref"]


def spec(dtype: str = "float32", memory: MemorySpec | None = None, path: str = "tiny") -> RoleSpec:
    workflows = ("t2va", "fl2va", "ref2va")
    dtypes = (("default", dtype),)
    return RoleSpec("all", tuple(Stage), workflows, path, None, "cpu", dtypes, 1, memory=memory or MemorySpec())


def load(component: str, dtype: str = "float32", memory: MemorySpec | None = None, root: Path | None = None) -> Any:
    checkpoint = Checkpoint(root or cached_tiny(), "")
    recipe = MODEL.recipe(component, checkpoint, spec(dtype, memory))
    return load_module(recipe, checkpoint, component, torch.device("cpu"))


def plain(component: str, dtype: str) -> Any:
    kind: Any = MODEL.component_class(component)
    return kind.from_pretrained(
        str(cached_tiny()), subfolder=component, dtype=getattr(torch, dtype), local_files_only=True
    )


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("component", WEIGHTS)
def test_a_component_is_what_its_library_loads(component: str, dtype: str) -> None:
    ours, theirs = tensors(load(component, dtype, MemorySpec(text_encoder="full"))), tensors(plain(component, dtype))
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(ours[name], tensor), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_needed_is_known_before_loading(dtype: str) -> None:
    role = Role(MODEL, spec(dtype))
    role.prepare()
    needed = role.memory_needed()
    role.load()
    assert set(needed) == set(WEIGHTS)
    for component, size in needed.items():
        # Buffers that are computed rather than loaded come on top: a few hundred bytes.
        assert size <= role.resident[component] <= size + 4096, component


def prompt_state(encoder: Any, *, pictures: int = 0) -> torch.Tensor:
    """The state that diffusers' own function reads, for a prompt after so many pictures of 64 x 64."""
    from diffusers.modular_pipelines.minimax_h3.encoders import get_qwen3vl_prompt_embeds
    from transformers import Qwen3VLProcessor

    processor = Qwen3VLProcessor.from_pretrained(str(cached_tiny()), subfolder="processor", local_files_only=True)
    ids = processor.tokenizer("A lake at dusk, birds.", add_special_tokens=False)["input_ids"]
    vision: dict[str, Any] = {}
    if pictures:
        images = [torch.arange(3 * 64 * 64, dtype=torch.uint8).view(3, 64, 64)] * pictures
        found = processor.image_processor(images=images, return_tensors="pt")
        vision = {name: found[name] for name in ("pixel_values", "image_grid_thw")}
        start, pad, end = processor.tokenizer.convert_tokens_to_ids(
            ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"]
        )
        ids = [start, *[pad] * (int(vision["image_grid_thw"][0].prod()) // 4), end] * pictures + ids
    with torch.inference_mode():
        state: torch.Tensor = get_qwen3vl_prompt_embeds(encoder, processor, ids, vision, dtype=encoder.dtype)
    return state


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pictures", [0, 2])
def test_the_used_part_of_the_text_encoder_gives_the_same_state(dtype: str, pictures: int) -> None:
    used = load("text_encoder", dtype)
    assert torch.equal(
        prompt_state(used, pictures=pictures), prompt_state(plain("text_encoder", dtype), pictures=pictures)
    )


def test_the_unused_part_is_neither_held_nor_run_nor_read() -> None:
    before = bytes_read()
    used = load("text_encoder")
    read = bytes_read() - before
    held = sum(parameter.nbytes for parameter in used.parameters())
    # Beside the tensors: headers, configurations, and what the libraries look at.
    assert held < read < held + 300_000
    assert len(used.model.language_model.layers) == 50
    assert not list(used.lm_head.parameters()) + list(used.model.language_model.norm.parameters())
    assert held < sum(parameter.nbytes for parameter in plain("text_encoder", "float32").parameters())
    calls: list[int] = []
    for layer in used.model.language_model.layers:
        layer.register_forward_hook(lambda module, inputs, output: calls.append(len(calls)))
    prompt_state(used)
    assert len(calls) == 50


def bytes_read() -> int:
    """What this process has read by system calls."""
    lines = Path("/proc/self/io").read_text().split("\n")
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def renamed(folder: Path, component: str, change: Any) -> Path:
    """A checkpoint whose component has its tensors changed by `change(tensors)`, in one file."""
    shutil.copytree(cached_tiny() / component, folder / component)
    contents: dict[str, torch.Tensor] = {}
    for file in sorted((folder / component).glob("*.safetensors*")):
        if file.suffix == ".safetensors":
            contents |= load_file(file)
        file.unlink()
    stem = "model" if component == "text_encoder" else "diffusion_pytorch_model"
    save_file(change(contents), folder / component / f"{stem}.safetensors", metadata={"format": "pt"})
    return folder


def test_files_with_a_tensor_missing_are_left_to_the_library(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def without_the_head(contents: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in contents.items() if name != "lm_head.weight"}

    root = renamed(tmp_path, "text_encoder", without_the_head)
    config = root / "text_encoder/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": True}))
    full = load("text_encoder", memory=MemorySpec(text_encoder="full"), root=root)
    assert full.lm_head.weight is full.model.language_model.embed_tokens.weight
    assert "the files name their tensors otherwise (1 of its tensors, such as lm_head.weight" in caplog.text
    assert torch.equal(prompt_state(full), prompt_state(load("text_encoder")))


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    root = renamed(tmp_path, "vae", lambda contents: contents)
    *_, last = stored_tensors(Checkpoint(root, ""), "vae")
    with last.path.open("r+b") as out:
        out.truncate(last.path.stat().st_size - 1)
    with (
        reading("vae", torch.device("cpu")) as reader,
        pytest.raises(IncompleteCheckpoint, match=f"vae: expected {last.name} whole in .*, found the file's end"),
    ):
        reader.read(last, torch.bfloat16)
