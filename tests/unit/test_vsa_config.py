"""The settings of sparse attention and the presets: what wins, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from splitreel.config import PRESETS, Config, VsaSpec, parse_config
from splitreel.errors import ConfigError


def config(attention: Any = None, preset: str | None = None, role: str = "dit") -> Config:
    values: dict[str, Any] = {
        "model": {"path": "tiny"},
        "cluster": {"address": "local"},
        "roles": {"encoder_decoder": {}, "dit": {}},
    }
    if preset is not None:
        values["model"]["preset"] = preset
    if attention is not None:
        values["roles"][role]["attention"] = attention
    return parse_config(values)


def vsa(attention: Any = None, preset: str | None = None) -> VsaSpec | None:
    return config(attention, preset).role_spec("dit").attention.vsa


def test_nothing_asked_is_nothing_done() -> None:
    assert vsa() is None
    assert vsa({"backend": "native"}) is None
    assert vsa(preset="h3") is None
    assert config().role_spec("dit").schedule is None
    assert config().model.default_steps == 50


def test_settings_reach_the_worker() -> None:
    asked = {"tile": 256, "sparsity": 0.8, "mode": "compete", "dense_first_steps": 2, "dense_layers": [7, 3, 7]}
    assert vsa({"vsa": asked}) == VsaSpec(256, 0.8, "compete", 2, (3, 7))
    assert vsa({"vsa": {}}) == VsaSpec(64, 0.9, "exempt", 0, ())
    assert vsa({"vsa": {"sparsity": 0}}) == VsaSpec(sparsity=0)


def test_a_preset_fills_what_is_not_said() -> None:
    assert vsa(preset="fasth3-4step") == VsaSpec(tile=64, sparsity=0.9)
    assert vsa(preset="fasth3-8step-v2") == VsaSpec(tile=64, sparsity=0.8)
    assert vsa({"vsa": {"dense_first_steps": 1}}, "fasth3-8step-v2") == VsaSpec(sparsity=0.8, dense_first_steps=1)
    assert vsa({"vsa": {"sparsity": 0.9}}, "fasth3-8step-v2") == VsaSpec(sparsity=0.9)
    assert vsa({"vsa": None}, "fasth3-8step-v2") is None, "null is none, whatever the preset says"
    steps = {name: config(preset=name).model.default_steps for name in PRESETS}
    assert steps == {"h3": 50, "fasth3-4step": 5, "fasth3-8step-v2": 9}


def test_the_schedule_goes_where_denoising_is() -> None:
    made = config(preset="fasth3-8step-v2")
    schedule = made.role_spec("dit").schedule
    assert schedule is not None
    assert (schedule.video_shift, schedule.audio_shift) == (10.0, 3.0)
    assert schedule.rungs == (999, 874, 749, 624, 500, 375, 250, 125)
    assert made.role_spec("encoder_decoder").schedule is None
    assert made.role_spec("encoder_decoder").attention.vsa is None


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ({"vsa": {"tile": 128}}, r"roles\.dit\.attention\.vsa\.tile.*64 or 256.*128"),
        ({"vsa": {"sparsity": 1}}, r"roles\.dit\.attention\.vsa\.sparsity.*less than 1"),
        ({"vsa": {"sparsity": -0.1}}, r"roles\.dit\.attention\.vsa\.sparsity"),
        ({"vsa": {"mode": "exmpt"}}, r"roles\.dit\.attention\.vsa\.mode.*'exempt' or 'compete'"),
        ({"vsa": {"dense_layers": [-1]}}, r"roles\.dit\.attention\.vsa\.dense_layers"),
        ({"vsa": {"dense_layer": [1]}}, r"roles\.dit\.attention\.vsa\.dense_layer.*Did you mean dense_layers"),
    ],
)
def test_wrong_settings_are_named(attention: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(attention)


def test_a_role_without_denoising_has_nothing_to_be_sparse() -> None:
    with pytest.raises(
        ConfigError, match=r"roles\.encoder_decoder\.attention\.vsa: expected on a role that holds denoise"
    ):
        config({"vsa": {}}, role="encoder_decoder")


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(
        ConfigError,
        match=r"model\.preset.*expected one of h3, .*found .fasth3-8step_v2.\. Did you mean fasth3-8step-v2",
    ):
        config(preset="fasth3-8step_v2")
