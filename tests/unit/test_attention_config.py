"""The attention section: names, near names, parts, and what a worker is told."""

from __future__ import annotations

from typing import Any

import pytest

from splitreel.config import ATTENTION_BACKENDS, AttentionSpec, Config, parse_config
from splitreel.errors import ConfigError


def config(role: str = "dit", **attention: Any) -> Config:
    roles: dict[str, Any] = {"encoder_decoder": {}, "dit": {}}
    roles[role] = {"attention": attention}
    return parse_config({"model": {"path": "tiny"}, "roles": roles})


def test_nothing_is_asked_for_by_default() -> None:
    assert config().role_spec("dit").attention == AttentionSpec(None, None, None, hub_kernels=False)


def test_the_refiner_follows_the_blocks_unless_it_has_its_own() -> None:
    assert config(backend="flash_3").role_spec("dit").attention == AttentionSpec("flash_3", "flash_3")
    assert config(backend="flash_3", refiner="native").role_spec("dit").attention == AttentionSpec("flash_3", "native")
    decoder = config("encoder_decoder", vae="native_math")
    assert decoder.role_spec("encoder_decoder").attention == AttentionSpec(vae="native_math")
    assert decoder.role_spec("dit").attention == AttentionSpec()


def test_the_names_are_those_of_diffusers() -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName

    assert sorted(ATTENTION_BACKENDS) == sorted(name.value.lstrip("_") for name in AttentionBackendName)
    for name in AttentionBackendName:
        assert config(backend=name.value).roles["dit"].attention.backend == name.value.lstrip("_")
    assert config(backend="flash_4").roles["dit"].attention.backend == "flash_4_hub"


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("misspelt", {"backend": "flahs_3"}, "roles.dit.attention.backend: expected an attention backend, found 'flahs_3'. Did you mean flash_3"),
    ("far from all", {"backend": "quick"}, "roles.dit.attention.backend: expected an attention backend, found 'quick'. Known: auto, native"),
    ("no name", {"backend": 3}, "expected the name of an attention backend, such as auto or native, found 3"),
    ("part", {"refiner": "falsh"}, "roles.dit.attention.refiner: expected an attention backend, found 'falsh'. Did you mean flash"),
    ("setting", {"backends": "flash"}, "roles.dit.attention.backends: unknown setting. Did you mean backend?"),
    ("elsewhere", {"vae": "flash"}, "roles.dit.attention.vae: expected on a role that holds decode, found flash on one that holds denoise"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "attention", "message"), MISTAKES, ids=[case[0] for case in MISTAKES])
def test_mistakes(name: str, attention: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**attention)
    assert message in str(caught.value)


def test_a_role_without_a_transformer_takes_no_backend_for_it() -> None:
    with pytest.raises(
        ConfigError, match=r"roles\.encoder_decoder\.attention\.backend: expected on a role that holds denoise"
    ):
        config("encoder_decoder", backend="flash")
    config("encoder_decoder", backend="auto")
