"""Servers for tests: the app on a real socket in this process, and `splitreel serve` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import yaml

from splitreel.config import parse_config
from splitreel.serve.http import create_app
from splitreel.serve.http.run import listen
from splitreel.serve.jobs import JobService
from timed_h3 import TimedH3, settings

TESTS = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)]),
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
}


@dataclass
class Process:
    """A server in a process of its own."""

    popen: subprocess.Popen[str]
    address: str
    errors: Path

    def until_ready(self, seconds: float = 60.0) -> None:
        """Wait until the roles are resident."""
        wait_for(lambda: httpx.get(f"{self.address}/ready", timeout=10).status_code == 200, seconds, self.said)

    def said(self) -> str:
        """What it wrote on stderr."""
        return self.errors.read_text()

    def kill(self) -> None:
        """End it at once."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(20)

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60.0) -> int:
        """Tell it to end, and wait; its exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(seconds)


def wait_for(condition: Any, seconds: float, explain: Any = lambda: "") -> None:
    """Until the condition holds."""
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s. {explain()}")
        time.sleep(0.05)


@contextmanager
def timed_process(
    folder: Path,
    *,
    step_seconds: float = 0.05,
    address: str = "local",
    port: int = 0,
    log: Path | None = None,
    **serve: Any,
) -> Iterator[Process]:
    """A server whose stages take test durations."""
    folder.mkdir(exist_ok=True)
    config = folder / "splitreel.yaml"
    config.write_text(yaml.safe_dump(settings(folder / "jobs", address, **{**serve, "port": port})))
    arguments = [str(TESTS / "timed_h3.py"), str(config), str(step_seconds), *([str(log)] if log else [])]
    with process(folder, arguments) as started:
        yield started


@contextmanager
def process(folder: Path, arguments: list[str]) -> Iterator[Process]:
    """A server that prints its address first."""
    errors = folder / f"stderr-{time.monotonic_ns()}"
    with (
        errors.open("w") as stream,
        subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=stream, text=True
        ) as popen,
    ):
        try:
            assert popen.stdout is not None
            address = popen.stdout.readline().strip()
            assert address.startswith("http"), errors.read_text()
            yield Process(popen, address, errors)
        finally:
            if popen.poll() is None:
                popen.send_signal(signal.SIGTERM)
                try:
                    popen.wait(40)
                except subprocess.TimeoutExpired:
                    popen.kill()


@contextmanager
def served(folder: Path, *, step_seconds: float = 0.01, model: Any = None, **serve_settings: Any) -> Iterator[str]:
    """The app with test durations on a thread of this process; its address."""
    config = parse_config(settings(folder, **serve_settings))
    service = JobService(config, model=model or TimedH3(step_seconds=step_seconds))
    with listen(config.serve) as bound:
        server = uvicorn.Server(uvicorn.Config(create_app(service), log_config=None, timeout_graceful_shutdown=3))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            address = f"http://127.0.0.1:{bound.getsockname()[1]}"
            wait_for(lambda: httpx.get(f"{address}/ready", timeout=10).status_code == 200, 60)
            yield address
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive()


def body(prompt: str = "A lake.", **fields: Any) -> dict[str, Any]:
    """A small video request."""
    return {"prompt": prompt, "steps": 3, **fields}


def until_ended(client: httpx.Client, video_id: str, seconds: float = 60.0) -> dict[str, Any]:
    """The video once it is completed or failed."""
    found: dict[str, Any] = {}

    def ended() -> bool:
        found.update(client.get(f"/v1/videos/{video_id}").json())
        return found["status"] in ("completed", "failed")

    wait_for(ended, seconds, lambda: json.dumps(found))
    return found
