"""Sparse attention in whole films: split equals unsplit, and each setting does what it says."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from configs import roles_config
from samples import Samples
from splitreel import GenerateRequest, ImageReference, Session, VideoReference
from splitreel.config import RoleSpec, VsaSpec, parse_config
from splitreel.config.slices import AttentionSpec, ScheduleSpec
from splitreel.errors import CheckpointError, ConfigError, IncompleteCheckpoint
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.payloads import KINDS, SCHEMA
from splitreel.h3.tiny import cached_tiny, make_tiny
from splitreel.h3.vsa.processor import VsaProcessor, VsaRun, run_of
from splitreel.request import Stage
from splitreel.roles.control import StageControl
from splitreel.roles.role import Role
from splitreel.wire import Header, Payload
from vsa_films import unsplit

STEPS = 4
VSA = {"sparsity": 0.7, "dense_first_steps": 1, "dense_layers": [2]}
SPEC = VsaSpec(sparsity=0.7, dense_first_steps=1, dense_layers=(2,))
LAYERS = 3


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with gates."""
    return make_tiny(tmp_path_factory.mktemp("gated") / "model", vsa_gates=True)


@pytest.fixture(scope="module")
def session(gated: Path) -> Iterator[Session]:
    with Session(
        roles_config("local", str(gated), ["t2va", "fl2va", "ref2va"], dit={"attention": {"vsa": VSA}})
    ) as opened:
        yield opened


def request(case: str, samples: Samples) -> GenerateRequest:
    media: dict[str, Any] = {
        "t2va": {},
        "fl2va": {"image": samples.first, "last_image": samples.last},
        "ref2va": {"references": [ImageReference(samples.first), VideoReference(samples.clip)]},
    }[case]
    return GenerateRequest(prompt=f"A lake, {case}.", steps=STEPS, seed=3, output="tensor", **media)


@pytest.mark.parametrize("case", ["t2va", "fl2va", "ref2va"])
def test_split_equals_unsplit_with_our_processor(session: Session, gated: Path, samples: Samples, case: str) -> None:
    result = session.generate(request(case, samples))
    video, sound = unsplit(gated, case, samples, SPEC, STEPS)
    np.testing.assert_array_equal(result.tensor, video)
    np.testing.assert_array_equal(result.waveform, sound)


# Below, one role with the denoise stage alone: what is asked of it is counted and compared without a film.


def denoiser(root: Path, vsa: VsaSpec | None, workflow: str = "t2va", schedule: ScheduleSpec | None = None) -> Role:
    spec = RoleSpec(
        role="dit",
        stages=(Stage.DENOISE,),
        workflows=(workflow,),
        model_path=str(root),
        revision=None,
        device="cpu",
        dtypes=(("default", "float32"),),
        threads=1,
        attention=AttentionSpec(vsa=vsa),
        schedule=schedule,
    )
    role = Role(MiniMaxH3(), spec)
    role.prepare()
    role.load()
    return role


@pytest.fixture(scope="module")
def role(gated: Path) -> Role:
    """One that stays loaded; its settings are changed between requests."""
    return denoiser(gated, SPEC)


def run_with(role: Role, spec: VsaSpec) -> tuple[torch.Tensor, VsaRun]:
    program: Any = role._programs["t2va", Stage.DENOISE]
    shared = run_of(program._pipeline.transformer)
    assert shared is not None
    shared.spec = spec
    return run(role)[0], shared


def run(role: Role, steps: int = STEPS) -> tuple[torch.Tensor, VsaRun | None, int]:
    """Latents of a made-up prompt, what the processors counted, and the transformer calls."""
    geometry: Any = role.geometry
    values = {"num_frames": 124, "height": 64, "width": 128, "steps": steps, "seed": 1, "output": "tensor", "lora": []}
    generator = torch.Generator().manual_seed(2)
    payload = Payload(
        Header("r", "t2va", KINDS[Stage.DENOISE], SCHEMA, geometry.fingerprint, values),
        {
            "prompt_embeds": torch.randn(1, 9, geometry.text_dim, generator=generator),
            "text_token_tags": torch.ones(9, dtype=torch.int64),
        },
    )
    made = role.run(Stage.DENOISE, payload, StageControl("r", Stage.DENOISE))
    latents = made.tensors["latents"]
    assert isinstance(latents, torch.Tensor)
    program: Any = role._programs["t2va", Stage.DENOISE]
    return latents, run_of(program._pipeline.transformer), made.header.values["transformer_calls"]


def test_dense_steps_and_layers_are_counted(role: Role) -> None:
    calls = STEPS - 1
    for spec, dense in (
        (VsaSpec(), 0),
        (VsaSpec(dense_first_steps=2), 2 * LAYERS),
        (VsaSpec(dense_layers=(0, 2)), 2 * calls),
        (SPEC, LAYERS + (calls - 1)),
        (VsaSpec(sparsity=0.0), calls * LAYERS),
        (VsaSpec(dense_first_steps=99), calls * LAYERS),
    ):
        _, counted = run_with(role, spec)
        assert (counted.counts["dense"], counted.counts["sparse"]) == (dense, calls * LAYERS - dense)
        assert counted.tiles is None, "the request is over"


def test_each_setting_changes_the_film(role: Role, gated: Path) -> None:
    specs = {
        "exempt": VsaSpec(),
        "compete": VsaSpec(mode="compete"),
        "a dense step": VsaSpec(dense_first_steps=1),
        "a dense layer": VsaSpec(dense_layers=(1,)),
        "less": VsaSpec(sparsity=0.5),
        "dense, with gates": VsaSpec(sparsity=0.0),
    }
    latents = {name: run_with(role, spec)[0] for name, spec in specs.items()}
    latents["no gates"] = run(denoiser(gated, None))[0]
    for index, name in enumerate(latents):
        for other in list(latents)[:index]:
            assert not torch.equal(latents[name], latents[other]), f"{name} is as {other}"
    assert torch.equal(run_with(role, VsaSpec())[0], latents["exempt"])


def test_no_sparsity_and_no_gates_is_dense() -> None:
    plain, counted, _ = run(denoiser(cached_tiny(), None))
    assert counted is None
    same, _, _ = run(denoiser(cached_tiny(), VsaSpec(sparsity=0.0)))
    assert float((same - plain).abs().max()) <= 1e-5
    assert torch.equal(same, plain), "dense calls go to the same backend"


def test_the_refiner_keeps_its_own(role: Role) -> None:
    program: Any = role._programs["t2va", Stage.DENOISE]
    transformer = program._pipeline.transformer
    ours = [type(block.attn.processor) is VsaProcessor for block in transformer.transformer_blocks]
    assert ours == [True] * LAYERS
    assert not any(isinstance(block.attn.processor, VsaProcessor) for block in transformer.token_refiner.refiner_blocks)


def test_health_says_what_runs(session: Session) -> None:
    said = {name: text for worker in session.health() for name, text in worker.attention.items()}
    sparse = "vsa gather (tile 64, sparsity 0.7, exempt, gates; dense calls native)"
    assert said["transformer"] == said["transformer_ref"] == f"native (vsa dense, gates), {sparse}"
    assert said["transformer.refiner"] == "native"


def test_gates_are_loaded_only_when_used(role: Role, gated: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="splitreel")
    with_gates, without = role, denoiser(gated, None)
    assert "has gates for sparse attention and attention.vsa is not set" in caplog.text
    gates = LAYERS * 64 * 128 * 4
    assert with_gates.resident["transformer"] - without.resident["transformer"] == gates
    assert with_gates.memory_needed()["transformer"] - without.memory_needed()["transformer"] == gates
    caplog.clear()
    denoiser(cached_tiny(), VsaSpec())
    assert "has no gates: it was not trained for it, and runs without the coarse branch" in caplog.text


def copied(gated: Path, target: Path) -> Path:
    shutil.copytree(gated, target)
    return target


def change_gates(root: Path, change: Any) -> None:
    """Rewrite the transformer's files with other gates; the index follows."""
    folder = root / "transformer"
    index = json.loads((folder / "diffusion_pytorch_model.safetensors.index.json").read_text())
    index["weight_map"] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors = change(load_file(file))
        save_file(tensors, file)
        index["weight_map"] |= dict.fromkeys(tensors, file.name)
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))


GATE = "transformer_blocks.{}.attn.to_gate_compress.weight"


def renamed(name: str, other: str) -> Any:
    return lambda tensors: {other if key == name else key: value for key, value in tensors.items()}


@pytest.mark.parametrize("vsa", [VsaSpec(), None])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: {
                key: value for key, value in tensors.items() if key not in (GATE.format(1), GATE.format(2))
            },
            f"a gate in each of 3 blocks.*none of these: {GATE.format(1)}, {GATE.format(2)}",
        ),
        (
            lambda tensors: {
                key: value[:, :32].contiguous() if key == GATE.format(1) else value for key, value in tensors.items()
            },
            rf"gates of \(128, 64\).*{GATE.format(1)} \(128, 32\)",
        ),
        (renamed(GATE.format(2), GATE.format(7)), f"gates of 3 blocks .* only.*found {GATE.format(7)}"),
    ],
)
def test_half_a_set_of_gates_is_refused(
    gated: Path, tmp_path: Path, vsa: VsaSpec | None, change: Any, message: str
) -> None:
    root = copied(gated, tmp_path / "half")
    change_gates(root, change)
    with pytest.raises(IncompleteCheckpoint, match=message):
        denoiser(root, vsa)


def test_a_layer_that_is_none_is_refused(gated: Path) -> None:
    with pytest.raises(ConfigError, match="expected layers from 0 to 2, found 3, 50"):
        denoiser(gated, VsaSpec(dense_layers=(1, 3, 50)))


def test_the_same_gates_every_time(gated: Path, tmp_path: Path) -> None:
    again = make_tiny(tmp_path / "again", vsa_gates=True)
    plain = make_tiny(tmp_path / "plain")
    for file in sorted((gated / "transformer").iterdir()):
        assert file.read_bytes() == (again / "transformer" / file.name).read_bytes()
    tensors = {
        key: value
        for file in sorted((gated / "transformer").glob("*.safetensors"))
        for key, value in load_file(file).items()
    }
    others = {
        key: value
        for file in sorted((plain / "transformer").glob("*.safetensors"))
        for key, value in load_file(file).items()
    }
    assert set(tensors) - set(others) == {GATE.format(layer) for layer in range(LAYERS)}
    assert all(torch.equal(tensors[key], others[key]) for key in others)
    assert float(tensors[GATE.format(0)].std()) > 0.01


# Presets ----------------------------------------------------------------------------------------------------------------


def test_a_preset_checks_the_shifts(gated: Path, tmp_path: Path) -> None:
    eight = ScheduleSpec("fasth3-8step-v2", 10.0, 3.0, (999, 874, 749, 624, 500, 375, 250, 125))
    with pytest.raises(
        CheckpointError, match=r"the scheduler of fasth3-8step-v2 with shift 10, found 12 in .*scheduler_config"
    ):
        denoiser(gated, None, schedule=eight)
    root = copied(gated, tmp_path / "eight")
    config = json.loads((root / "scheduler" / "scheduler_config.json").read_text())
    (root / "scheduler" / "scheduler_config.json").write_text(json.dumps(config | {"shift": 10.0}))
    role = denoiser(root, VsaSpec(sparsity=0.8), schedule=eight)
    _, _, calls = run(role, steps=9)
    assert calls == 8
    program: Any = role._programs["t2va", Stage.DENOISE]
    for scheduler, shift in ((program._pipeline.scheduler, 10), (program._pipeline.audio_scheduler, 3)):
        levels = [rung / 1000 for rung in (*eight.rungs, 0)]
        expected = torch.tensor([shift * level / (1 + (shift - 1) * level) for level in levels])
        torch.testing.assert_close(scheduler.sigmas, expected, rtol=0, atol=1e-7)
    assert run(role, steps=5)[2] == 4, "another number of steps is the request's own choice"
    assert len(program._pipeline.scheduler.sigmas) == 5
    assert float(program._pipeline.scheduler.sigmas[0]) == 1.0


def test_the_four_step_ladder_is_diffusers_own(gated: Path) -> None:
    """1000, 750, 500, 250: what a uniform grid of five points is, so that preset needs none of its own."""
    plain = run(denoiser(gated, None), steps=5)[0]
    assert torch.equal(run(denoiser(gated, None, schedule=ScheduleSpec("fasth3-4step", 12.0, 3.0)), steps=5)[0], plain)


def test_a_preset_sets_what_nothing_else_does(gated: Path) -> None:
    config = parse_config(
        {
            "model": {"path": str(gated), "preset": "fasth3-4step"},
            "cluster": {"address": "local"},
            "roles": {"all": {"dtype": "float32", "threads": 1}},
        }
    )
    with Session(config) as opened:
        request = GenerateRequest(prompt="A lake.", seed=1, output="tensor")
        assert opened.check(request).steps == 5
        result = opened.generate(request)
        assert result.effective.transformer_calls == 4
        own = GenerateRequest(prompt="A lake.", seed=1, steps=3, output="tensor")
        assert opened.check(own).steps == 3
