"""What a worker's environment is made of, and which of it nobody may see."""

from __future__ import annotations

import pytest

from splitreel.cluster.environment import shown, split, worker_environment


def test_explicit_before_forwarded_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "from the driver")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub")
    monkeypatch.setenv("UNRELATED", "x")
    found = worker_environment({"HF_TOKEN": "explicit", "OMP_NUM_THREADS": "4"})
    assert found["HF_TOKEN"] == "explicit"
    assert found["HF_ENDPOINT"] == "http://hub"
    assert "UNRELATED" not in found


def test_null_keeps_the_drivers_value_from_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERS_ATTN_BACKEND", "flash")
    assert worker_environment({})["DIFFUSERS_ATTN_BACKEND"] == "flash"
    assert "DIFFUSERS_ATTN_BACKEND" not in worker_environment({"DIFFUSERS_ATTN_BACKEND": None})


def test_secrets_are_masked_and_kept_from_ray() -> None:
    secret = {"HF_TOKEN": "a", "AWS_SECRET_ACCESS_KEY": "b", "APIKEY": "c", "db_password": "d"}
    plain = {"TOKENIZERS_PARALLELISM": "false", "HF_TOKEN_PATH": "/t", "CUDA_VISIBLE_DEVICES": "0"}
    assert shown({**secret, **plain}) == {**dict.fromkeys(secret, "***"), **plain}
    assert split({**secret, **plain}) == (plain, secret)
