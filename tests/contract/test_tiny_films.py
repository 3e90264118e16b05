"""Films of the tiny checkpoints, unsplit: right shapes, nothing saturated, and every input shows in the output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3, MiniMaxH3Blocks, MiniMaxH3ModularPipeline
from diffusers.modular_pipelines.minimax_h3 import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3VideoReference,
)
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import video_latent_num_frames
from PIL import Image

from splitreel.h3.tiny import make_tiny
from splitreel.h3.tiny_spec import GEOMETRIES, Geometry

pytestmark = [
    pytest.mark.contract,
    # diffusers builds its audio VAE with the older weight norm.
    pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning"),
]

# Geometry to (frames, height, width, sample rate) of a film of 124 asked frames on the default canvas.
EXPECTED = {"released": (124, 64, 128, 32000), "other": (138, 72, 120, 24000)}


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


@pytest.mark.parametrize(("geometry", "frames", "latents"), [("released", 39, 12), ("other", 50, 14)])
def test_vae_lengths_agree_with_the_pipeline(geometry, frames, latents, checkpoints):
    vae = AutoencoderKLMiniMaxH3.from_pretrained(checkpoints[geometry] / "vae")
    assert video_latent_num_frames(frames, vae.config.clip_length, vae.tokens_chunk_size) == latents
    edge = 4 * vae.spatial_compression_ratio
    with torch.no_grad():
        moments = vae.encode(torch.zeros(1, 3, frames, edge, edge)).latent_dist
        video = vae.decode(moments.mode()).sample
    assert moments.mean.shape == (1, vae.config.latent_channels, latents, 4, 4)
    assert video.shape == (1, 3, frames, edge, edge)
    # A posterior wide enough to need its seed, narrow enough not to hide the image.
    assert 0.001 < moments.std.mean() < 0.5
    assert len(set(vae.config.latents_mean)) > 10
    assert len(set(vae.config.latents_std)) > 10


@dataclass(frozen=True)
class Film:
    video: torch.Tensor
    audio: torch.Tensor
    rate: int

    def is_sound(self) -> bool:
        """Finite, moving, audible, and hardly ever at a limit."""
        moving = (self.video[:, 1:] - self.video[:, :-1]).abs().mean() > 0.01
        dark_or_bright = ((self.video <= 0) | (self.video >= 1)).float().mean()
        clipped = (self.audio.abs() >= 1).float().mean()
        return bool(
            self.video.isfinite().all()
            and self.audio.isfinite().all()
            and moving
            and self.video.std() > 0.05
            and dark_or_bright < 0.2
            and 0.02 < self.audio.std() < 0.5
            and clipped < 0.01
        )

    def equals(self, other: Film) -> bool:
        return torch.equal(self.video, other.video) and torch.equal(self.audio, other.audio)

    def differs(self, other: Film) -> bool:
        """By at least one of 255 levels on average, and audibly: enough to survive an mp4."""
        levels = 255 * (self.video - other.video).abs().mean()
        return bool(levels > 1.0 and (self.audio - other.audio).std() > 0.002)


def build(directory: Path, workflow: str, **kwargs: Any) -> MiniMaxH3ModularPipeline:
    pipe = MiniMaxH3Blocks().get_workflow(workflow).init_pipeline(str(directory))
    pipe.load_components(pretrained_model_name_or_path=str(directory), **kwargs)
    assert not pipe.null_component_names, pipe.null_component_names
    pipe.set_progress_bar_config(disable=True)
    return pipe


def shoot(pipe: MiniMaxH3ModularPipeline, seed: int = 0, prompt: str = "An alpine lake at sunrise.", **inputs) -> Film:
    state = pipe(
        prompt=prompt,
        num_frames=124,
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(seed),
        output_type="pt",
        **inputs,
    )
    return Film(state.get("videos"), state.get("audio"), state.get("sampling_rate"))


@cache
def picture(seed: int, width: int = 160) -> Image.Image:
    spots = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize((width, 90), Image.Resampling.BICUBIC)


def clip(seed: int, frames: int = 60) -> np.ndarray:
    wide = np.asarray(picture(seed, 160 + frames))
    return np.stack([wide[:, start : start + 160] for start in range(frames)])


def tone(hertz: float, rate: int, channels: int) -> torch.Tensor:
    return (0.3 * torch.sin(2 * torch.pi * hertz * torch.arange(2 * rate) / rate)).expand(channels, -1).clone()


def references(image: int = 1, video: int = 2, own_sound: float = 440.0, sound: float = 220.0) -> list[Any]:
    return [
        MiniMaxH3ImageReference(image=picture(image)),
        MiniMaxH3VideoReference(frames=clip(video), fps=24.0, audio=tone(own_sound, 44100, 2), sample_rate=44100),
        MiniMaxH3AudioReference(audio=tone(sound, 16000, 1), sample_rate=16000),
    ]


def shoot_all(directory: Path) -> dict[str, Film]:
    """Every workflow, each with one input changed at a time."""
    films = {}
    pipe = build(directory, "t2va")
    films["t2va"] = shoot(pipe)
    films["t2va again"] = shoot(pipe)
    films["t2va prompt"] = shoot(pipe, prompt="An alpine lake at sunset.")
    films["t2va seed"] = shoot(pipe, seed=1)
    pipe = build(directory, "fl2va")
    films["fl2va"] = shoot(pipe, image=picture(1))
    films["fl2va image"] = shoot(pipe, image=picture(2))
    films["fl2va last"] = shoot(pipe, last_image=picture(1))
    films["fl2va both"] = shoot(pipe, image=picture(1), last_image=picture(3))
    films["fl2va both last"] = shoot(pipe, image=picture(1), last_image=picture(4))
    pipe = build(directory, "ref2va")
    films["ref2va"] = shoot(pipe, references=references())
    films["ref2va image"] = shoot(pipe, references=references(image=5))
    films["ref2va video"] = shoot(pipe, references=references(video=6))
    films["ref2va own sound"] = shoot(pipe, references=references(own_sound=880.0))
    films["ref2va sound"] = shoot(pipe, references=references(sound=330.0))
    return films


@pytest.fixture(scope="module", params=GEOMETRIES)
def geometry_and_films(request, checkpoints) -> tuple[Geometry, dict[str, Film]]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return request.param, shoot_all(checkpoints[request.param])
    finally:
        torch.set_num_threads(before)


def test_films_have_the_right_shape_and_are_sound(geometry_and_films):
    geometry, films = geometry_and_films
    frames, height, width, rate = EXPECTED[geometry]
    samples = round(frames / 24 * 40) * rate // 40
    for name, film in films.items():
        # The first keyframe (16:9 here, as the default) gives the canvas.
        assert film.video.shape == (1, frames, 3, height, width), name
        assert film.audio.shape == (1, 2, samples), name
        assert film.rate == rate
        assert film.is_sound(), name
        assert not torch.equal(film.audio[:, 0], film.audio[:, 1]), name


def test_films_repeat_bit_for_bit(geometry_and_films):
    _, films = geometry_and_films
    assert films["t2va"].equals(films["t2va again"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("t2va", "t2va prompt"),
        ("t2va", "t2va seed"),
        ("t2va", "fl2va"),
        ("fl2va", "fl2va image"),
        ("fl2va", "fl2va last"),
        ("fl2va both", "fl2va both last"),
        ("ref2va", "ref2va image"),
        ("ref2va", "ref2va video"),
        ("ref2va", "ref2va own sound"),
        ("ref2va", "ref2va sound"),
    ],
)
def test_every_input_shows(first, second, geometry_and_films):
    _, films = geometry_and_films
    assert films[first].differs(films[second])


def test_a_bfloat16_checkpoint_runs(tmp_path):
    directory = make_tiny(tmp_path / "narrow", dtype="bfloat16")
    pipe = build(directory, "t2va", dtype=torch.bfloat16)
    film = shoot(pipe)
    assert pipe.transformer.proj_in.weight.dtype == torch.float32
    assert film.is_sound()
