"""`splitreel config` as a user runs it, and the run file of another system made into a film."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from foreign_run import smoke_run
from splitreel.media import film_facts

SOURCES = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCES), "COLUMNS": "100", "NO_COLOR": "1"}


def splitreel(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "splitreel", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def test_init_then_show(tmp_path: Path) -> None:
    splitreel(tmp_path, "config", "init", "--nodes", "10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert "found splitreel.yaml" in splitreel(tmp_path, "config", "init", code=2).stderr
    rows = splitreel(tmp_path, "config", "show", "--json", "--set", "engine.retries=3").stdout.splitlines()
    found = {row["setting"]: row for row in map(json.loads, rows)}
    assert found["roles.dit.nodes"]["value"] == ["10.0.0.2", "10.0.0.3"]
    assert found["engine.retries"]["origin"] == "--set"
    assert json.loads(splitreel(tmp_path, "config", "schema").stdout)["title"] == "splitreel config"


def test_the_smoke_run_of_another_system_converts_and_makes_a_film(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(smoke_run(model="tiny"))
    done = splitreel(tmp_path, "config", "convert", "run.yaml", "--device", "cpu", "--dtype", "float32")
    assert done.stdout.strip() == "splitreel generate --config splitreel.yaml --request request.yaml"
    assert "request.output.output_path" in done.stderr
    here = ("--set", "cluster.address=local", "--output", "smoke.mp4", "--json")
    made = splitreel(tmp_path, *done.stdout.split()[1:], *here)
    film = film_facts(tmp_path / "smoke.mp4")
    assert (film.width, film.height, film.frames) == (256, 256, 124)
    assert json.loads(made.stdout)["seed"] == 2026


def test_a_request_file_yields_to_options_and_names_its_mistakes(tmp_path: Path) -> None:
    (tmp_path / "splitreel.yaml").write_text("model: {path: tiny}\ncluster: {address: local}\nroles: {all: {}}\n")
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"prompt": "A lake.", "step": 5}))
    message = splitreel(tmp_path, "generate", "--request", "r.yaml", code=2).stderr
    assert "--request: r.yaml: step: not a field of a request" in message
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"prompt": "A lake.", "num_frames": 124, "steps": 1}))
    assert "steps: expected 2 or more" in splitreel(tmp_path, "generate", "--request", "r.yaml", code=2).stderr
    # The option's length replaces the file's; together they would be refused for naming both.
    message = splitreel(tmp_path, "generate", "--request", "r.yaml", "--seconds", "5", "--steps", "0", code=2).stderr
    assert "steps: expected 2 or more, found 0" in message
    assert splitreel(tmp_path, "generate", "--request", "r.yaml", "--prompts", "x", code=2).stderr.startswith(
        "error: --prompt"
    )
