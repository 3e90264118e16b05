"""Split equals unsplit, bit for bit: every workflow, both geometries, both backends, whatever else is in flight."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import MiniMaxH3Blocks
from diffusers.modular_pipelines.minimax_h3 import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3VideoReference,
)
from diffusers.utils import load_image

from samples import Samples
from splitreel import AudioReference, GenerateRequest, GenerateResult, ImageReference, Session, VideoReference

STEPS = 3
CASES = ["t2va", "fl2va first", "fl2va last", "fl2va both", "ref2va"]


def split_request(case: str, samples: Samples) -> GenerateRequest:
    media: dict[str, Any] = {}
    if "first" in case or "both" in case:
        media["image"] = samples.first
    if "last" in case or "both" in case:
        media["last_image"] = samples.last
    if case == "ref2va":
        media["references"] = [
            ImageReference(samples.first),
            VideoReference(samples.clip),
            AudioReference(samples.mono),
        ]
    return GenerateRequest(
        prompt=f"An alpine lake, {case}.", steps=STEPS, seed=CASES.index(case) + 5, output="tensor", **media
    )


@functools.cache
def unsplit_pipeline(root: Path, workflow: str) -> Any:
    pipeline = MiniMaxH3Blocks().get_workflow(workflow).init_pipeline(str(root))
    pipeline.load_components(pretrained_model_name_or_path=str(root), dtype=torch.float32)
    return pipeline


@functools.cache
def unsplit(root: Path, case: str, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """diffusers' own pipeline with media read by diffusers' own loaders: video (F, 3, H, W) and sound (2, N)."""
    request = split_request(case, samples)
    workflow = case.split()[0]
    inputs: dict[str, Any] = {}
    if "first" in case or "both" in case:
        inputs["image"] = load_image(str(samples.first))
    if "last" in case or "both" in case:
        inputs["last_image"] = load_image(str(samples.last))
    if workflow == "ref2va":
        inputs["references"] = [
            MiniMaxH3ImageReference.from_file(samples.first),
            MiniMaxH3VideoReference.from_file(samples.clip),
            MiniMaxH3AudioReference.from_file(samples.mono),
        ]
    state = unsplit_pipeline(root, workflow)(
        prompt=request.prompt,
        num_frames=120,
        num_inference_steps=STEPS,
        generator=torch.Generator("cpu").manual_seed(request.seed or 0),
        output_type="pt",
        **inputs,
    )
    return state.get("videos")[0].numpy(), state.get("audio")[0].numpy()


def assert_equal(result: GenerateResult, expected: tuple[np.ndarray, np.ndarray]) -> None:
    assert result.tensor is not None
    assert result.waveform is not None
    np.testing.assert_array_equal(result.tensor, expected[0])
    np.testing.assert_array_equal(result.waveform, expected[1])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_split_equals_unsplit(session: Session, tiny_root: Path, samples: Samples, case: str) -> None:
    result = session.generate(split_request(case, samples))
    assert_equal(result, unsplit(tiny_root, case, samples))
    assert np.ptp(result.tensor) > 0.1, "a constant picture would make this test worthless"
    assert np.ptp(result.waveform) > 0.01


@pytest.mark.timeout(300)
@pytest.mark.parametrize("order", [(0, 3, 4), (4, 3, 0)])
def test_three_in_flight_equal_their_solo_results(
    session: Session, tiny_root: Path, samples: Samples, order: tuple[int, ...]
) -> None:
    cases = [CASES[index] for index in order]
    jobs = [session.submit(split_request(case, samples)) for case in cases]
    assert {job.status().state for job in jobs} <= {"queued", "running"}
    for case, job in zip(cases, jobs, strict=True):
        assert_equal(job.result(timeout=120), unsplit(tiny_root, case, samples))


def test_another_seed_another_film(session: Session, tiny_root: Path, samples: Samples) -> None:
    request = split_request("t2va", samples)
    other = session.generate(GenerateRequest(prompt=request.prompt, steps=STEPS, seed=99, output="tensor"))
    assert not np.array_equal(other.tensor, unsplit(tiny_root, "t2va", samples)[0])
