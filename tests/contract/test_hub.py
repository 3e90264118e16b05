"""A hub id: each role fetches its own components and the small metadata of the others, and starts offline afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hub_stub import serving
from splitreel.h3.tiny import cached_tiny

REPO = "acme/tiny-h3"
pytestmark = pytest.mark.timeout(120)

# Prepares (and so downloads) roles in a process of their own, as workers do; prints a line of what came of each.
SCRIPT = """
import json, sys
from splitreel.config import parse_config
from splitreel.errors import SplitreelError
from splitreel.h3.model import MiniMaxH3
from splitreel.roles.role import Role
config = parse_config({"model": {"path": sys.argv[2], "workflow": "t2va"}, "roles": {"encoder_decoder": {}, "dit": {}}})
for name in sys.argv[1].split(","):
    try:
        print(json.dumps({"fingerprint": Role(MiniMaxH3(), config.role_spec(name)).prepare().fingerprint}))
    except SplitreelError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
"""


def prepare(roles: str, endpoint: str, home: Path, **environment: str) -> list[dict[str, Any]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, roles, REPO],
        env={
            **clean,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(home),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert finished.returncode == 0, finished.stderr
    answers = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == 1 + roles.count(",")
    return [{**answer, "output": finished.stdout + finished.stderr} for answer in answers]


def weights(names: set[str]) -> set[str]:
    return {name.split("/")[0] for name in names if name.endswith(".safetensors")}


def test_each_role_fetches_its_share_and_starts_offline(tmp_path: Path) -> None:
    with serving(cached_tiny(), REPO) as hub:
        (answer,) = prepare("dit", hub.endpoint, tmp_path)
        assert "fingerprint" in answer, answer
        assert weights(hub.fetched) == {"transformer"}
        assert {"vae/config.json", "audio_vae/config.json", "text_encoder/config.json"} <= hub.fetched
        assert not any(name.startswith(("tokenizer/", "processor/")) for name in hub.fetched)
        endpoint = hub.endpoint
    offline, other = prepare("dit,encoder_decoder", endpoint, tmp_path, HF_HUB_OFFLINE="1")
    assert offline["fingerprint"] == answer["fingerprint"]
    assert other["error"] == "MissingComponent"
    assert "tokenizer: expected the folder" in other["message"]


def test_a_gated_repository_needs_the_token_and_never_shows_it(tmp_path: Path) -> None:
    with serving(cached_tiny(), REPO, token="hf_very_secret") as hub:
        (without,) = prepare("dit", hub.endpoint, tmp_path / "a")
        assert without["error"] == "CheckpointError"
        assert "HF_TOKEN on this node" in without["message"]
        assert hub.refused > 0
        (answer,) = prepare("dit", hub.endpoint, tmp_path / "b", HF_TOKEN="hf_very_secret")
        assert "fingerprint" in answer, answer
        for text in (without["output"], answer["output"]):
            assert "hf_very_secret" not in text
