"""Servers for tests: the app on a real socket in this process, and `splitreel serve` in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import yaml
from PIL import Image

import timed_h3
from splitreel.config import Config, parse_config
from splitreel.roles.definition import ModelDefinition
from splitreel.serve.http.app import create_app
from splitreel.serve.http.listening import listen
from splitreel.serve.http.run import uvicorn_config
from splitreel.serve.jobs.service import JobService
from timed_h3 import TimedH3, settings


@dataclass
class Server:
    """A server in a process of its own."""

    process: BaseProcess
    address: str
    output: Path
    errors: Path

    def until_ready(self, seconds: float = 60.0) -> None:
        """Wait until the roles are resident."""
        wait_for(lambda: httpx.get(f"{self.address}/ready", timeout=10).status_code == 200, seconds, self.said)

    def said(self) -> str:
        """What it wrote on stderr."""
        return self.errors.read_text()

    def tell(self, number: int) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code, once it has ended."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still runs. {self.said()}"
        return self.process.exitcode

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.join(20)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Tell it to end, and wait; its exit code."""
        self.tell(number)
        return self.wait()


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
def timed_server(
    folder: Path,
    *,
    step_seconds: float | None = 0.05,
    address: str = "local",
    port: int = 0,
    log: Path | None = None,
    lora: dict[str, Any] | None = None,
    **serve: Any,
) -> Iterator[Server]:
    """A server whose stages take test durations, forked from a process that has imported everything already.

    `step_seconds` None: the real stages, on the tiny checkpoint.
    `lora`: the config's section. `folder` holds its config and output, and its jobs unless `jobs` names another.
    """
    folder.mkdir(exist_ok=True)
    config = folder / "splitreel.yaml"
    jobs = serve.pop("jobs", folder / "jobs")
    config.write_text(yaml.safe_dump({**settings(jobs, address, **{**serve, "port": port}), "lora": lora or {}}))
    stamp = time.monotonic_ns()
    output, errors = folder / f"stdout-{stamp}", folder / f"stderr-{stamp}"
    arguments = (str(output), str(errors), str(config), step_seconds, str(log) if log else None)
    process = _FORKS.Process(target=_serve_there, args=arguments)
    process.start()
    try:
        wait_for(lambda: output.exists() and output.read_text().startswith("http"), 90, lambda: _text(errors))
        yield Server(process, output.read_text().split()[0], output, errors)
    finally:
        if process.is_alive():
            process.terminate()
            process.join(40)
            process.kill()


# The process that is forked imports from here.
_TESTS = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(_TESTS.parent / "src"), str(_TESTS), os.environ.get("PYTHONPATH", "")])
)
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["servers"])


def _serve_there(output: str, errors: str, config: str, step_seconds: float | None, log: str | None) -> None:
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    timed_h3.main(config, step_seconds, log)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@contextmanager
def served(folder: Path, *, step_seconds: float = 0.01, **serve_settings: Any) -> Iterator[str]:
    """The app with test durations on a thread of this process; its address."""
    config = parse_config(settings(folder, **serve_settings))
    with serving(config, TimedH3(step_seconds=step_seconds)) as (address, _):
        yield address


@contextmanager
def serving(config: Config, model: ModelDefinition | None = None) -> Iterator[tuple[str, JobService]]:
    """The app on a thread of this process, ready: its address, and the service within."""
    service = JobService(config, model=model)
    with listen(config.serve) as bound:
        server = uvicorn.Server(uvicorn_config(create_app(service)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            address = f"http://127.0.0.1:{bound.getsockname()[1]}"
            until = lambda: httpx.get(f"{address}/ready", timeout=10).status_code == 200  # noqa: E731
            wait_for(until, 90, lambda: service.deployment.detail)
            yield address, service
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive()


def png(width: int = 96, height: int = 48) -> bytes:
    """A picture of one colour."""
    made = BytesIO()
    Image.new("RGB", (width, height), (200, 90, 20)).save(made, format="PNG")
    return made.getvalue()


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
