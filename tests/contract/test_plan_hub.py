"""Plans for a checkpoint that is on the hub alone: file headers are read online, no weights, and the table is said aloud."""

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
from splitreel.plan.sizes import RELEASE, read_sizes, sizes_of

REPO = "acme/tiny-h3"
pytestmark = pytest.mark.timeout(90)


def plan(home: Path, *options: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "splitreel",
            "plan",
            "--node",
            "a=128:unified",
            "--node",
            "b=128:unified",
            "--json",
            *options,
        ],
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), "HF_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}, ended.stderr


def test_headers_are_read_online(tmp_path: Path) -> None:
    with serving(cached_tiny(), REPO) as hub:
        code, report, errors = plan(tmp_path, "--model", REPO, HF_ENDPOINT=hub.endpoint)
        assert code == 0, errors
        assert report["memory"]["sizes"] == f"file headers of {REPO}, read from the hub"
        whole = {path.relative_to(cached_tiny()).as_posix() for path in cached_tiny().rglob("*.safetensors")}
        assert whole & hub.headers == {name for name in whole if not name.startswith("transformer_ref/")}
        assert not any(name.endswith(".safetensors") for name in hub.fetched), "headers alone"
    found = {
        name: size
        for machine in report["memory"]["machines"]
        for worker in machine["workers"]
        for name, size in worker["weights"].items()
    }
    assert found.pop("prompt_cache") == 1 << 28
    local = read_sizes(cached_tiny(), ("t2va",))
    assert found == {name: local.bytes_of(name, "bfloat16") for name in found}
    assert set(found) == {"text_encoder", "transformer", "vae", "audio_vae"}
    assert not list(tmp_path.rglob("*.json")), "the hub's cache is left as it is"


def test_a_hub_that_does_not_answer_is_said_and_the_table_taken(tmp_path: Path) -> None:
    code, report, _ = plan(tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert code == 0
    said = report["memory"]["sizes"]
    assert said.startswith("the shipped table of the released checkpoint (")
    assert "refused" in said
    code, report, _ = plan(tmp_path, "--offline", HF_ENDPOINT="http://127.0.0.1:9")
    assert report["memory"]["sizes"] == "the shipped table of the released checkpoint"
    code, _, errors = plan(tmp_path, "--model", REPO, HF_ENDPOINT="http://127.0.0.1:9")
    assert code == 3
    assert f"model.path: expected the hub to tell the sizes of {REPO}, found " in errors


def test_offline_is_offline() -> None:
    """The tests' environment has HF_HUB_OFFLINE."""
    assert sizes_of(RELEASE, ("t2va",), online=True).source.endswith("checkpoint (HF_HUB_OFFLINE is set)")
