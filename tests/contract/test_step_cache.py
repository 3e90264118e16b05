"""Step caches: a clean state for each request, what was saved is counted, and nothing is saved at a threshold of nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from configs import roles_config
from splitreel import Session
from splitreel.config import CacheSpec
from splitreel.errors import ConfigError, RequestCancelled
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.payloads import KINDS, SCHEMA
from splitreel.observe.progress import Progress
from splitreel.request import Stage
from splitreel.roles.control import StageControl
from splitreel.roles.role import Role
from splitreel.wire import Header, Payload

pytestmark = pytest.mark.timeout(120)

STEPS = 8


def dit(cache: CacheSpec | None) -> Role:
    role = Role(MiniMaxH3(), replace(roles_config("local").role_spec("dit"), cache=cache))
    role.prepare()
    role.load()
    return role


def encoded(role: Role, seed: int) -> Payload:
    """What an encoder would send: 6 text rows."""
    text = torch.randn((1, 6, role.geometry.text_dim), generator=torch.Generator().manual_seed(seed))
    return Payload(
        Header(
            request_id=f"r{seed}",
            workflow="t2va",
            kind=KINDS[Stage.DENOISE],
            schema=SCHEMA,
            geometry=role.geometry.fingerprint,
            values={
                "num_frames": 124,
                "height": 64,
                "width": 128,
                "steps": STEPS,
                "seed": seed,
                "output": "mp4",
                "lora": [],
            },
        ),
        {"prompt_embeds": text, "text_token_tags": torch.ones(6, dtype=torch.long)},
    )


def denoised(role: Role, seed: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    made = role.run(Stage.DENOISE, encoded(role, seed), StageControl(f"r{seed}", Stage.DENOISE))
    latents, sound = made.tensors["latents"], made.tensors["audio_latents"]
    assert isinstance(latents, torch.Tensor)
    assert isinstance(sound, torch.Tensor)
    return latents, sound, made.header.values["cached_steps"]


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return torch.equal(one[0], other[0]) and torch.equal(one[1], other[1]) and one[2] == other[2]


@pytest.fixture(scope="module")
def plain() -> tuple[torch.Tensor, torch.Tensor, int]:
    return denoised(dit(None), 1)


CACHES = [CacheSpec("first_block", threshold=0.3), CacheSpec("taylor_seer", interval=3, start=2)]


@pytest.mark.parametrize("cache", CACHES, ids=[cache.kind for cache in CACHES])
def test_requests_in_a_row_equal_their_solo_runs(cache: CacheSpec, plain: tuple[Any, ...]) -> None:
    role = dit(cache)
    in_a_row = [denoised(role, seed) for seed in (1, 2, 1)]
    assert 0 < in_a_row[0][2] < STEPS - 1, "some of the steps were saved"
    assert not torch.equal(in_a_row[0][0], plain[0])
    assert float((in_a_row[0][0] - plain[0]).norm() / plain[0].norm()) < 0.5
    assert same(in_a_row[0], in_a_row[2])
    assert same(in_a_row[1], denoised(dit(cache), 2))


def test_a_cancelled_request_leaves_no_state(plain: tuple[Any, ...]) -> None:
    role = dit(CACHES[0])
    control = StageControl("r2", Stage.DENOISE, lambda progress: stop(progress))

    def stop(progress: Progress) -> None:
        if progress.done == 4:
            control.stop()

    with pytest.raises(RequestCancelled):
        role.run(Stage.DENOISE, encoded(role, 2), control)
    assert same(denoised(role, 1), denoised(dit(CACHES[0]), 1))


@pytest.mark.parametrize("cache", [None, *CACHES], ids=["plain", *(cache.kind for cache in CACHES)])
def test_a_stop_in_mid_step_ends_the_stage_before_the_next_block(cache: CacheSpec | None) -> None:
    """A step may take minutes; the next request finds nothing of this one."""
    role = dit(cache)
    control = StageControl("r2", Stage.DENOISE)
    blocks = role.components["transformer"].transformer_blocks
    passed: list[int] = []

    def stop_in_second_step(module: Any, args: Any) -> None:
        passed.append(0)
        if passed.count(0) == 2:
            control.stop()

    hooks = [blocks[0].register_forward_pre_hook(stop_in_second_step)]
    hooks.append(blocks[1].register_forward_pre_hook(lambda module, args: passed.append(1)))
    with pytest.raises(RequestCancelled, match=rf"denoise stopped after step 1 of {STEPS - 1}"):
        role.run(Stage.DENOISE, encoded(role, 2), control)
    assert passed == [0, 1, 0]
    for hook in hooks:
        hook.remove()
    if cache is None:
        assert same(denoised(role, 1), denoised(dit(None), 1))


def test_the_hooks_of_a_role_are_there_once_however_many_programs_it_has() -> None:
    served = Role(MiniMaxH3(), roles_config("local", workflow=["t2va", "fl2va", "ref2va"]).role_spec("encoder_decoder"))
    served.prepare()
    served.load()
    vae, text_encoder = served.components["vae"], served.components["text_encoder"]
    for module in (vae.encoder, vae.decoder, text_encoder.model.language_model.layers[0]):
        assert len(module._forward_pre_hooks) == 1


def test_at_a_threshold_that_nothing_meets_the_result_is_the_plain_one(plain: tuple[Any, ...]) -> None:
    assert same(denoised(dit(CacheSpec("first_block", threshold=1e-9)), 1), plain)


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        ({"kind": "first_block", "threshold": 0.3}, "first_block (threshold 0.3)"),
        ({"kind": "taylor_seer", "interval": 3, "start": 2}, "taylor_seer (interval 3, start 2, order 1)"),
        (None, ""),
    ],
)
def test_health_says_what_is_in_force(cache: dict[str, Any] | None, words: str) -> None:
    with Session(roles_config("local", dit={"cache": cache})) as session:
        health = {worker.role: worker for worker in session.health()}
    assert health["dit"].step_cache == ({"transformer": words} if words else {})
    assert health["encoder_decoder"].step_cache == {}
    assert health["dit"].compile == {}


def test_settings() -> None:
    def spec(**cache: Any) -> CacheSpec | None:
        return roles_config("local", dit={"cache": cache}).role_spec("dit").cache

    assert roles_config("local").role_spec("dit").cache is None
    assert spec(kind="first_block") == CacheSpec("first_block", threshold=0.05)
    assert spec(kind="taylor_seer", interval=4) == CacheSpec("taylor_seer", interval=4)
    with pytest.raises(
        ConfigError, match=r"roles\.dit\.cache: expected settings of first_block \(threshold\), found interval"
    ):
        spec(kind="first_block", interval=4)
    with pytest.raises(ConfigError, match=r"roles\.dit\.cache\.kind:"):
        spec(kind="mag")
    with pytest.raises(
        ConfigError, match=r"roles\.encoder_decoder\.cache: expected on a role that holds denoise, found first_block"
    ):
        roles_config("local", encoder_decoder={"cache": {"kind": "first_block"}})
