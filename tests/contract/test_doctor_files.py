"""What doctor says of a hub id: before anything is here, when one role's files are, and offline. Nothing is downloaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hub_stub import serving
from splitreel.h3.tiny import cached_tiny

REPO = "acme/tiny-h3"
pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import json, sys
from huggingface_hub import constants
from splitreel.cluster.doctor.context import Context, RoleTask
from splitreel.cluster.doctor.files import checkpoint
from splitreel.config import parse_config
from splitreel.h3.model import MiniMaxH3
from splitreel.roles.role import Role
config = parse_config({"model": {"path": sys.argv[1], "workflow": "t2va"}, "roles": {"encoder_decoder": {}, "dit": {}}})
tasks = tuple(RoleTask(role, config.role_spec(role), 0) for role in config.roles)
context = Context("10.0.0.2", tasks=tasks, model="splitreel.h3.model:MiniMaxH3")
look = lambda: print(json.dumps([finding.to_dict() for finding in checkpoint(context)]))
look()
Role(MiniMaxH3(), config.role_spec("dit")).prepare()
look()
constants.HF_HUB_OFFLINE = True
look()
"""


def test_each_roles_share_is_known_and_nothing_is_fetched(tmp_path: Path) -> None:
    with serving(cached_tiny(), REPO, token="hf_very_secret") as hub:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT, REPO],
            env={
                **clean,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "HF_ENDPOINT": hub.endpoint,
                "HF_HOME": str(tmp_path),
                "HF_TOKEN": "hf_very_secret",
            },
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert ended.returncode == 0, ended.stderr
        assert not any(name.startswith(("vae/diff", "text_encoder/model")) for name in hub.fetched)
    assert "hf_very_secret" not in ended.stdout + ended.stderr
    rows = [json.loads(line) for line in ended.stdout.splitlines()[-3:]]
    before, after, offline = ({(each["role"], each["check"]): each for each in row} for row in rows)
    assert {each["status"] for each in before.values()} == {"pass", "skip"}, "a first start is no fault"
    fetches = before["dit", "checkpoint.complete"]["found"]
    assert fetches.startswith("the first start fetches 0.0 GB of acme/tiny-h3 to ")
    assert before["dit", "hub.token"]["found"] == "a token is set (never shown); the hub gives the files out"
    assert after["dit", "hub.offline"]["status"] == "pass"
    assert "transformer: whole in" in after["dit", "checkpoint.complete"]["found"]
    assert offline["dit", "checkpoint.complete"]["status"] == "pass"
    assert offline["encoder_decoder", "hub.offline"]["status"] == "fail"
    missing = [each for each in rows[2] if (each["role"], each["check"]) == ("encoder_decoder", "checkpoint.complete")]
    assert {each["status"] for each in missing} == {"fail"}
    assert {each["found"].partition(":")[0] for each in missing} == {
        "tokenizer",
        "processor",
        "audio_vae",
        "vae",
        "text_encoder",
    }
    assert all(each["remedy"] for each in missing)
