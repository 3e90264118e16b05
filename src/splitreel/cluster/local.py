"""The local backend: every role in this process, one thread each. The same workers, wire form and checks as on Ray."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitreel.cluster.handshake import check_memory, compare
from splitreel.cluster.host import Arrive, WorkerHost, slow
from splitreel.cluster.journal import Entry, Reader
from splitreel.cluster.replies import NodeFacts, Reply, WorkerFacts, reply_value, versions
from splitreel.config import Config
from splitreel.engine.backend import (
    BeforeServing,
    Listener,
    PayloadGone,
    StageReceipt,
    WorkerHealth,
    WorkerInfo,
    as_it_is,
    hop_into,
)
from splitreel.errors import WorkerLost
from splitreel.lora import AdapterOrder, AdapterOutline, FuseAdapters, LoraReceipt
from splitreel.observe.progress import LoadProgress, Progress
from splitreel.observe.spans import SpanRecord, SpanRecorder
from splitreel.request import Stage
from splitreel.roles.control import StageControl
from splitreel.roles.definition import ModelDefinition
from splitreel.share import Share
from splitreel.wire import Packed, account

# How often one who waits for a part looks whether it was cancelled.
_GLANCE = 0.1


class LocalBackend:
    """Workers as threads. Nothing can be lost here, so nothing is replaced."""

    def __init__(self, model: ModelDefinition, config: Config, adapters: Sequence[AdapterOutline] = ()) -> None:
        self._hosts: dict[str, WorkerHost] = {}
        self._infos: list[WorkerInfo] = []
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._watch_threads = ThreadPoolExecutor(thread_name_prefix="splitreel-watch")
        self._readers: dict[str, Reader] = defaultdict(Reader)
        self._on_spans: Callable[[Sequence[SpanRecord]], None] = lambda spans: None
        self._on_progress: Callable[[Progress], None] = lambda progress: None
        self._on_load: Callable[[LoadProgress], None] = lambda progress: None
        self.facts: list[WorkerFacts] = []
        self.before_serving: BeforeServing = as_it_is
        host_name = socket.gethostname()
        for role, settings in config.roles.items():
            for index in range(len(settings.placements)):
                name = role if len(settings.placements) == 1 else f"{role}.{index}"
                spec = replace(config.role_spec(role), adapters=tuple(adapters))
                node = NodeFacts(node_id=f"local-{name}", name=host_name)
                self._hosts[name] = WorkerHost(model, spec, name, node)
                self._threads[name] = ThreadPoolExecutor(1, thread_name_prefix=f"splitreel-{name}")
                self._infos.append(WorkerInfo(name, role, spec.stages, spec.workflows, node.name, node.node_id))

    @property
    def workers(self) -> Sequence[WorkerInfo]:
        """All workers."""
        return self._infos

    @property
    def geometry(self) -> Mapping[str, Any]:
        """The checkpoint's geometry."""
        return self.facts[0].geometry

    async def start(self, listener: Listener, on_load: Callable[[LoadProgress], None]) -> None:
        """Check every role, then load all in parallel."""
        self._on_spans, self._on_progress, self._on_load = listener.on_spans, listener.on_progress, on_load
        replies = await asyncio.gather(*(self._call(name, host.prepare) for name, host in self._hosts.items()))
        self.facts = [reply_value(reply) for reply in replies]
        compare(self.facts, versions())
        check_memory(self.facts)
        for name in self._hosts:
            self._watchers.append(asyncio.ensure_future(self._watch(name)))
        for reply in await asyncio.gather(*(self._call(name, host.load) for name, host in self._hosts.items())):
            listener.on_spans(reply.spans)
            reply_value(reply)

    async def run_stage(
        self, worker: str, stage: Stage, request_id: str, payload: Any, parts: Sequence[Any] = ()
    ) -> tuple[Any, StageReceipt]:
        """Run a stage in the worker's thread."""
        made, reply = await self._call(
            worker,
            self._hosts[worker].run_stage,
            stage,
            request_id,
            lambda control: lambda: payload,
            None,
            [_arrival(part) for part in parts],
        )
        self._pass_on(worker, reply.events)
        self._on_spans(reply.spans)
        return made, reply_value(reply)

    def start_part(
        self, worker: str, stage: Stage, request_id: str, payload: Any, share: Share
    ) -> tuple[Any, Callable[[], Awaitable[StageReceipt]]]:
        """Make a part in the worker's thread."""
        part = self._threads[worker].submit(
            self._hosts[worker].run_stage, stage, request_id, lambda control: lambda: payload, share
        )

        async def ends() -> StageReceipt:
            _, reply = await asyncio.wrap_future(part)
            self._on_spans(reply.spans)
            receipt: StageReceipt = reply_value(reply)
            return receipt

        return part, ends

    async def stop_stage(self, worker: str, request_id: str) -> None:
        """Ask the stage to end at its next step."""
        self._hosts[worker].stop(request_id)

    async def replace_worker(self, worker: str, error: WorkerLost) -> None:
        """A thread cannot be replaced: the stage that does not stop goes on, and this says so."""
        raise error

    async def share(self, content: NDArray[np.uint8]) -> Any:
        """As they are."""
        return content

    async def adapt(self, worker: str, order: AdapterOrder, content: Any, timeout: float) -> LoraReceipt | None:
        """In a thread of its own; what writes weights, in the worker's, between two stages."""
        work = functools.partial(self._hosts[worker].adapt, order, lambda: content)
        pool = self._threads[worker] if isinstance(order, FuseAdapters) else None
        try:
            reply = await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(pool, work), timeout)
        except TimeoutError:
            raise slow(worker, order, timeout) from None
        receipt: LoraReceipt | None = reply_value(reply)
        return receipt

    async def fetch(self, payload: Any, spans: SpanRecorder) -> Any:
        """Already here."""
        with spans.span("hop.materialize", hop=hop_into(None)) as attributes:
            attributes["payload"] = account(payload).to_dict()
        return payload

    async def health(self) -> list[WorkerHealth]:
        """Ask every worker."""
        return [host.health() for host in self._hosts.values()]

    async def close(self) -> None:
        """Stop the threads at their next step."""
        for host in self._hosts.values():
            host.close()
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for threads in (*self._threads.values(), self._watch_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _watch(self, name: str) -> None:
        while True:
            entries = await asyncio.get_running_loop().run_in_executor(
                self._watch_threads, self._hosts[name].watch, self._readers[name].seen, 0.5
            )
            self._pass_on(name, entries)

    def _pass_on(self, name: str, entries: Iterable[Entry]) -> None:
        for event in self._readers[name].new(entries):
            if isinstance(event, Progress):
                self._on_progress(event)
            else:
                self._on_load(event)

    async def _call(self, worker: str, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(
            self._threads[worker], functools.partial(function, *args)
        )


def _arrival(part: Future[tuple[Packed | None, Reply]]) -> Arrive:
    """Wait for a part that another thread makes."""

    def arrive(control: StageControl) -> Callable[[], Packed]:
        while not wait_for([part], _GLANCE).done:
            control.check()
        made = None if part.cancelled() else part.result()[0]
        if made is None:
            raise PayloadGone("its worker did not make it")
        return lambda: made

    return arrive
