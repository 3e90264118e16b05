"""`splitreel serve` and `splitreel key` as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

import splitreel
from servers import until_ended, wait_for
from splitreel.config import parse_config
from splitreel.media import film_facts
from timed_h3 import settings

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "splitreel", *arguments]
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    content = settings(tmp_path / "jobs")
    (tmp_path / "splitreel.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "splitreel", "serve", *arguments]
    errors = folder / "stderr"
    with (
        errors.open("w") as stream,
        subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=stream, text=True
        ) as popen,
    ):
        try:
            assert popen.stdout is not None
            address = popen.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), errors.read_text()
            yield popen, address
        finally:
            popen.kill()


def test_from_nothing_to_a_film_and_back(folder: Path) -> None:
    """Cold start on the tiny checkpoint to the first film through `splitreel.Client`; then the examples; then Ctrl-C."""
    began = time.monotonic()
    with started(folder, "--set", "cluster.address=local") as (popen, address):
        wait_for(lambda: httpx.get(f"{address}/ready", timeout=10).status_code == 200, 120)
        ready = time.monotonic() - began
        with splitreel.Client(address) as client, httpx.Client(base_url=address) as http:
            video = client.create("A lake.", steps=3, seed=7, size="128x64")
            events = list(client.events(video["id"]))
            assert events[-1]["status"] == "completed"
            first = time.monotonic() - began
            print(f"cold start: ready after {ready:.1f} s, the first film after {first:.1f} s")
            (folder / "film.mp4").write_bytes(http.get(f"/v1/videos/{video['id']}/content").content)
            assert film_facts(folder / "film.mp4").frames == 124
            assert client.trace(video["id"])["status"] == "completed"
            with pytest.raises(splitreel.InvalidRequest, match="seconds: expected 124 to 345 frames") as refused:
                client.create("A lake.", seconds=1)
            assert refused.value.field == "seconds"
            with pytest.raises(splitreel.InvalidRequest, match="expected a readable file"):
                client.create("A lake.", image=folder / "none.png")
            assert client.cancel(client.create("A lake.", steps=900)["id"])["status"] in ("in_progress", "failed")
            for name in ("follow", "openai_client"):
                target = folder / f"{name}.mp4"
                environment = {**ENVIRONMENT, "SPLITREEL_URL": address, "OPENAI_BASE_URL": f"{address}/v1"}
                example = [sys.executable, str(ROOT / f"examples/{name}.py"), "A lake at sunrise.", str(target)]
                done = subprocess.run(
                    example, env=environment, capture_output=True, text=True, timeout=100, check=False
                )
                assert done.returncode == 0, done.stderr
                assert film_facts(target).frames == 124
            assert until_ended(http, video["id"])["status"] == "completed"
        popen.send_signal(signal.SIGINT)
        assert popen.wait(60) == 0
    said = (folder / "stderr").read_text()
    assert "ready: every role is resident" in said
    assert said.rstrip().endswith("stopped")
    with (
        pytest.raises(splitreel.ClusterUnreachable, match="that `splitreel serve` runs there"),
        splitreel.Client(address) as client,
    ):
        client.create("A lake.")


def test_a_key_is_shown_once_and_its_line_fits_the_config(folder: Path) -> None:
    done = run(folder, "key", "alice")
    assert done.stdout.startswith("sr-")
    assert len(done.stdout.strip()) > 40
    entry = yaml.safe_load(done.stderr.split("\n\n", 1)[1])["serve"]["keys"][0]
    made = json.loads(run(folder, "key", "alice", "--json").stdout)
    assert made["key"] != done.stdout.strip()
    content = {**settings(folder / "jobs", keys=[entry])}
    assert parse_config(content).serve.keys[0].name == "alice"
    refused = run(folder, "key", "no spaces")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "NAME: expected letters, digits" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--host", "0.0.0.0"], "serve.host: expected a loopback address such as 127.0.0.1 while there are no keys, found 0.0.0.0."),
        (["--host", ""], "--host : "),
        (["--set", "serve.databse=x"], "--set serve.databse=x: unknown setting. Did you mean database?"),
        (["--set", "serve.database=nonsense"], "serve.database: expected an SQLAlchemy URL"),
        (["--folder", "/proc/none"], "serve.folder: expected a folder that can be written"),
        (["--port", "1", "--host", "192.0.2.1", "--set", "serve.allow_without_key=true"], "serve.port: expected to listen on 192.0.2.1:1"),
    ],
)  # fmt: skip
def test_refused_before_anything_loads(folder: Path, arguments: list[str], found: str) -> None:
    done = run(folder, "serve", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert found in done.stderr
    assert "Traceback" not in done.stderr


def test_a_deployment_that_does_not_open_ends_the_server(folder: Path) -> None:
    done = run(folder, "serve", "--set", f"model.path={folder}/nothing")
    assert done.returncode == 3
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
