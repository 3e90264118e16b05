"""Runs the app with uvicorn until it is told to stop, and then in order: no new jobs, running ones end or are put back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from splitreel.config import Config
from splitreel.roles.definition import ModelDefinition
from splitreel.serve.http.app import create_app
from splitreel.serve.http.listening import listen
from splitreel.serve.jobs.service import JobService
from splitreel.serve.studio.mount import mount_studio
from splitreel.words import counted

_CLOSE_SECONDS = 5  # what answers under way get once everything else has ended
Say = Callable[[str], None]


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: stopping begins with the jobs, not with the sockets."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    config: Config,
    say: Say,
    *,
    on_open: Callable[[], None] = lambda: None,
    model: ModelDefinition | None = None,
) -> BaseException | None:
    """Listen, load and serve until a signal comes or the deployment fails; the failure, if that is why.

    Prints the address on stdout. `on_open` is called once, when the session is open: opening one changes how signals are
    caught. `model`: as `Session` has it. Belongs to the main thread. Raises ConfigError.
    """
    with listen(config.serve) as bound:
        service = JobService(config, model=model)
        host, port = bound.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(address, flush=True)
        say(f"listening at {address}/v1")
        app = create_app(service)
        if mount_studio(app, service):
            say(f"the studio is at {address}/")
        return asyncio.run(_run(service, app, bound, say, on_open))


def uvicorn_config(app: FastAPI) -> uvicorn.Config:
    """How the app is served: nothing is believed of proxies' headers, nothing is said of the software."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        # Longer than clients pause between two polls: one that asks again just then would find the connection closed.
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=65_536,
    )


async def _run(
    service: JobService, app: FastAPI, bound: socket.socket, say: Say, on_open: Callable[[], None]
) -> BaseException | None:
    server = _Server(uvicorn_config(app))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    told: list[int] = []

    def on_signal(number: int) -> None:
        if told:
            os.write(sys.stderr.fileno(), b"ended at once; running jobs run again at the next start.\n")
            os._exit(128 + number)
        told.append(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    serving = asyncio.ensure_future(server.serve(sockets=[bound]))
    opened = asyncio.ensure_future(_report(service, say, on_open))
    ends = [serving, asyncio.ensure_future(stop.wait()), asyncio.ensure_future(service.deployment.failed.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if told:
        say(f"stopping: running jobs have {service.config.serve.drain:g} s; a second signal ends at once")
    put_back = await service.drain(0.0 if service.deployment.failure else None)
    if put_back:
        say(f"{counted(put_back, 'job was', 'jobs were')} put back into the queue")
    server.should_exit = True
    await serving
    for task in (opened, *ends[1:]):
        task.cancel()
    return service.deployment.failure


async def _report(service: JobService, say: Say, on_open: Callable[[], None]) -> None:
    """Say how the deployment is whenever that changes."""
    last = ""
    async for condition, detail in service.deployment.changes():
        words = f"{condition}: {detail}" if condition in ("loading", "ready") else ""
        if words and words != last:
            say(words)
        if condition == "ready" and not last.startswith("ready"):
            on_open()
        last = words or last
