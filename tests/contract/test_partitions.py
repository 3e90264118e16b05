"""Roles are any partition of the three stages, with both transformers and replicas, and give the same film."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samples import Samples
from splitreel import GenerateRequest, GenerateResult, ImageReference, Session
from splitreel.config import load_config, parse_config
from splitreel.request import Stage

ROLE: dict[str, Any] = {"device": "cpu", "dtype": "float32", "threads": 1}
PARTITIONS: dict[str, dict[str, dict[str, Any]]] = {
    "all": {"all": {}},
    "two": {"encoder_decoder": {}, "dit": {}},
    "three": {"encoder": {}, "dit": {}, "decoder": {}},
    "encoder with the transformer": {"encoder_dit": {}, "decoder": {}},
    "stages by name": {"crew": {"stages": ["encode"]}, "shooters": {"stages": ["denoise", "decode"]}},
    "a transformer each": {"encoder_decoder": {}, "dit": {"workflows": ["t2va"]}, "dit_ref": {"workflows": ["ref2va"]}},
    "replicas": {"encoder_decoder": {}, "dit": {"nodes": ["here", "here"]}},
}


EXAMPLE = Path(__file__).parents[2] / "examples" / "three_roles.yaml"


def test_the_example_has_the_three_roles() -> None:
    config = load_config(EXAMPLE)
    assert {name: config.stages_of(name) for name in config.roles} == {
        name: (stage,) for name, stage in zip(PARTITIONS["three"], Stage, strict=True)
    }
    for name, role in config.roles.items():
        assert (role.device, role.dtype, role.threads) == (ROLE["device"], ROLE["dtype"], ROLE["threads"]), name
    assert config.cluster.nodes == 3


def films(partition: str, samples: Samples) -> list[GenerateResult]:
    roles = {name: {**ROLE, **settings} for name, settings in PARTITIONS[partition].items()}
    config = parse_config(
        {
            "model": {"path": "tiny", "workflow": ["t2va", "ref2va"]},
            "cluster": {"address": "local"},
            "roles": roles,
        }
    )
    text = GenerateRequest(prompt="A lake.", steps=2, seed=3, output="tensor")
    picture = GenerateRequest(
        prompt="A lake.", steps=2, seed=3, output="tensor", references=[ImageReference(samples.first)]
    )
    with Session(config) as session:
        jobs = [session.submit(request) for request in (text, picture)]
        made = [job.result(60) for job in jobs]
        if partition == "a transformer each":
            components = {worker.role: set(worker.components) for worker in session.health()}
            assert "transformer_ref" not in components["dit"]
            assert "transformer" not in components["dit_ref"]
            assert [result.timings[1].worker for result in made] == ["dit", "dit_ref"]
    return made


@pytest.fixture(scope="module")
def expected(samples: Samples) -> list[GenerateResult]:
    return films("all", samples)


@pytest.mark.parametrize("partition", [name for name in PARTITIONS if name != "all"])
def test_every_partition_makes_the_same_film(partition: str, expected: list[GenerateResult], samples: Samples) -> None:
    for made, wanted in zip(films(partition, samples), expected, strict=True):
        np.testing.assert_array_equal(made.tensor, wanted.tensor)
        np.testing.assert_array_equal(made.waveform, wanted.waveform)
