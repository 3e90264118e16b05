"""Which adapters are loaded, which of them requests use, and how a change reaches every worker or none.

A request carries the adapters that it was admitted with, each by the id that one loading of a file was given, and a
worker applies exactly these before it denoises. So `load`, `set` and `unload` change what later requests carry, nothing
else, and no change can fall inside a request. A file is bound on all workers first; its name exists once all have it.
Only `fuse` and `unfuse` touch weights: between two stages, and without changing any result.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Unpack

from splitreel.engine.backend import Backend, WorkerInfo
from splitreel.engine.outcomes import bare
from splitreel.errors import AdapterError, ClusterError, InvalidRequest, SplitreelError
from splitreel.lora import (
    AdapterOrder,
    Applied,
    DropAdapter,
    FuseAdapters,
    InstallAdapter,
    LoadOptions,
    LoraInfo,
    LoraReceipt,
    LoraUse,
    checked_alpha,
)
from splitreel.observe.logs import get_logger
from splitreel.request import Stage
from splitreel.roles.adapters.files import AdapterContent, read_adapter, target_of

logger = get_logger(__name__)


@dataclass(frozen=True)
class Loaded:
    """An adapter that every worker holds."""

    order: InstallAdapter
    receipt: LoraReceipt

    @property
    def id(self) -> str:
        """What requests carry."""
        return self.order.id

    @property
    def target(self) -> str:
        """The component that it changes."""
        return self.order.target


@dataclass(frozen=True)
class _State:
    """Replaced as a whole, so that any thread sees one that is consistent. `standing`: for requests that name none."""

    loaded: Mapping[str, Loaded] = field(default_factory=dict)
    standing: tuple[LoraUse, ...] = ()
    fused: tuple[LoraUse, ...] | None = None


@dataclass(frozen=True)
class Chosen:
    """A request's adapters, for people and for workers."""

    uses: tuple[LoraUse, ...] = ()
    applied: tuple[Applied, ...] = ()


class Adapters:
    """The one place that knows. `choose` may be called from any thread; all else belongs to the engine's loop."""

    def __init__(self, backend: Backend, component_of: Mapping[str, str], load: float, stage: float) -> None:
        """`component_of`: for each workflow served, the component that denoises it. `load`, `stage`: deadlines in seconds
        for loading a file and for a stage that has to end first.
        """
        self._backend = backend
        self._component_of = dict(component_of)
        self._load_timeout = load
        self._stage_timeout = stage + load
        self._state = _State()
        self._lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._users: Counter[str] = Counter()
        self._retired: dict[str, Loaded] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        backend.before_serving = self.restore

    # Requests ---------------------------------------------------------------------------------------------------------

    def choose(self, asked: Sequence[LoraUse] | None, workflow: str) -> Chosen:
        """The adapters of a request: those asked for, or the standing ones. Raises InvalidRequest."""
        state, component = self._state, self._component_of[workflow]
        if asked is None:
            asked = [use for use in state.standing if state.loaded[use.name].target == component]
        for use in asked:
            found = state.loaded.get(use.name)
            if found is None:
                raise InvalidRequest(
                    f"lora: expected a loaded adapter ({', '.join(sorted(state.loaded)) or 'none is'}), found {use.name!r}. "
                    "Load it first, or name another.",
                    field="lora",
                )
            if found.target != component:
                raise InvalidRequest(
                    f"lora: expected an adapter of {component}, which {workflow} denoises with, found {use.name!r}, which "
                    f"was loaded for {found.target}. Load it for {component}, or leave it out.",
                    field="lora",
                )
        acting = [use for use in asked if use.scale != 0.0]
        _check_rivals([state.loaded[use.name].receipt for use in acting])
        if state.fused is not None:
            fused = [use for use in state.fused if state.loaded[use.name].target == component]
            if acting != fused:
                raise InvalidRequest(
                    f"lora: expected the fused adapters ({_shown(fused)}) or no word of any, found {_shown(acting)}. Take "
                    "them out of the weights first (session.lora.unfuse()).",
                    field="lora",
                )
        return Chosen(tuple(asked), tuple((state.loaded[use.name].id, use.scale) for use in asked))

    def still_loaded(self, chosen: Chosen) -> None:
        """Raise InvalidRequest when one was unloaded since it was chosen."""
        known = {loaded.id for loaded in self._state.loaded.values()}
        for use, (adapter, _) in zip(chosen.uses, chosen.applied, strict=True):
            if adapter not in known:
                raise InvalidRequest(f"lora: {use.name!r} was unloaded while this request came in.", field="lora")

    def hold(self, chosen: Chosen, job: asyncio.Future[Any]) -> None:
        """Keep a request's adapters on the workers until its job has ended."""
        ids = [adapter for adapter, _ in chosen.applied]
        if ids:
            self._users.update(ids)
            job.add_done_callback(lambda _: self._release(ids))

    def _release(self, ids: Sequence[str]) -> None:
        self._users.subtract(ids)
        for adapter in ids:
            if self._users[adapter] <= 0:
                del self._users[adapter]
                retired = self._retired.pop(adapter, None)
                if retired is not None:
                    task = asyncio.ensure_future(self._drop(retired))
                    self._dropping.add(task)
                    task.add_done_callback(self._dropping.discard)

    # Changes ----------------------------------------------------------------------------------------------------------

    async def load(
        self,
        source: str,
        name: str | None = None,
        scale: float = 1.0,
        **options: Unpack[LoadOptions],
    ) -> LoraReceipt:
        """Bind a file on every worker that holds its target. Raises AdapterError or ClusterError; then none has it."""
        name = name or PurePath(source).stem
        use = LoraUse(name, scale)
        alpha = options.get("alpha")
        if alpha is not None:
            checked_alpha(alpha, "lora alpha")
        async with self._lock:
            if name in self._state.loaded:
                raise AdapterError(
                    f"lora {name}: expected a new name, found it loaded. Unload it first, or give another."
                )
            self._refuse_fused(f"loading {name}")
            content = await asyncio.to_thread(read_adapter, source)
            order = InstallAdapter(
                id=f"{name}#{next(self._numbers)}",
                name=name,
                source=source,
                sha256=content.sha256,
                target=self._target(content, options.get("target")),
                config=content.config,
                alpha=alpha,
                allow_unmatched=options.get("allow_unmatched", False),
            )
            receipts = await self._install(order, content)
            first = next(iter(receipts.values()))
            receipt = replace(first, workers=tuple(receipts))
            different = next((worker for worker, other in receipts.items() if other != first), None)
            if different is not None:
                await self._everywhere(list(receipts), DropAdapter(order.id))
                raise AdapterError(f"lora {name}: expected all workers to bind it alike, found {different} to differ.")
            logger.info("%s", receipt)
            state = self._state
            standing = state.standing
            if options.get("active", True):
                standing = tuple(sorted((*standing, use), key=lambda item: item.name))
            self._state = replace(state, loaded={**state.loaded, name: Loaded(order, receipt)}, standing=standing)
            return receipt

    async def use(self, uses: Sequence[LoraUse]) -> None:
        """What requests that name none use from now on. Raises InvalidRequest for a name that is not loaded."""
        async with self._lock:
            state = self._state
            for use in uses:
                if use.name not in state.loaded:
                    raise InvalidRequest(
                        f"lora: expected a loaded adapter ({', '.join(sorted(state.loaded)) or 'none is'}), found "
                        f"{use.name!r}. Load it first.",
                        field="lora",
                    )
            self._refuse_fused("changing the adapters in use")
            _check_rivals([state.loaded[use.name].receipt for use in uses if use.scale != 0.0])
            self._state = replace(state, standing=tuple(uses))

    async def fuse(self) -> None:
        """Write the standing adapters into the weights of every worker, or of none. No result changes."""
        async with self._lock:
            state = self._state
            acting = tuple(use for use in state.standing if use.scale != 0.0)
            self._refuse_fused("fusing")
            if not acting:
                raise AdapterError("lora: expected adapters in use to fuse, found none. Load or set some first.")
            order = FuseAdapters(tuple((state.loaded[use.name].id, use.scale) for use in acting))
            await self._everywhere_or_back(order, FuseAdapters(()))
            self._state = replace(state, fused=acting)

    async def unfuse(self) -> None:
        """Bring the weights of every worker back as they were loaded; the adapters stay in use."""
        async with self._lock:
            state = self._state
            if state.fused is None:
                raise AdapterError("lora: expected fused adapters, found none fused.")
            back = FuseAdapters(tuple((state.loaded[use.name].id, use.scale) for use in state.fused))
            await self._everywhere_or_back(FuseAdapters(()), back)
            self._state = replace(state, fused=None)

    async def unload(self, name: str) -> None:
        """Forget an adapter. Requests that were admitted with it keep it until they have ended."""
        async with self._lock:
            state = self._state
            found = state.loaded.get(name)
            if found is None:
                raise AdapterError(
                    f"lora {name}: expected a loaded adapter ({', '.join(sorted(state.loaded)) or 'none is'}), found none of "
                    "that name."
                )
            if any(use.name == name for use in state.fused or ()):
                self._refuse_fused(f"unloading {name}")
            self._state = replace(
                state,
                loaded={other: loaded for other, loaded in state.loaded.items() if other != name},
                standing=tuple(use for use in state.standing if use.name != name),
            )
            if self._users[found.id]:
                self._retired[found.id] = found
            else:
                await self._drop(found)

    def listed(self) -> tuple[LoraInfo, ...]:
        """Every loaded adapter, by name."""
        state = self._state
        scales = {use.name: use.scale for use in state.standing}
        fused = {use.name for use in state.fused or ()}
        return tuple(
            LoraInfo(name, scales.get(name), name in fused, loaded.receipt)
            for name, loaded in sorted(state.loaded.items())
        )

    # Workers ----------------------------------------------------------------------------------------------------------

    async def restore(self, worker: WorkerInfo) -> None:
        """Give a restarted worker what the others hold, before it serves. Raises AdapterError or ClusterError."""
        async with self._lock:
            state, held = self._state, self._components(worker)
            for loaded in (*state.loaded.values(), *self._retired.values()):
                if loaded.target in held:
                    content = await asyncio.to_thread(read_adapter, loaded.order.source)
                    if content.sha256 != loaded.order.sha256:
                        raise AdapterError(
                            f"lora {loaded.order.name}: expected {loaded.order.source} as it was loaded (sha256 "
                            f"{loaded.order.sha256[:12]}), found it changed. Put the file back, or unload the adapter."
                        )
                    shared = await self._backend.share(content.content)
                    await self._backend.adapt(worker.name, loaded.order, shared, self._load_timeout)
            if state.fused is not None and held:
                ids = tuple((state.loaded[use.name].id, use.scale) for use in state.fused)
                await self._backend.adapt(worker.name, FuseAdapters(ids), None, self._load_timeout)

    def _components(self, worker: WorkerInfo) -> set[str]:
        if Stage.DENOISE not in worker.stages:
            return set()
        return {self._component_of[workflow] for workflow in worker.workflows if workflow in self._component_of}

    def _target(self, content: AdapterContent, asked: str | None) -> str:
        served = list(dict.fromkeys(self._component_of.values()))
        return target_of(content.source, content.names(served), asked, served)

    async def _workers(self, target: str | None) -> list[str]:
        """Those that hold the target (or any), without those lost or restarting: they get everything before they serve again."""
        lost = {report.worker for report in await self._backend.health() if report.state in ("lost", "restarting")}
        held = [(worker.name, self._components(worker)) for worker in self._backend.workers if worker.name not in lost]
        names = [name for name, components in held if (target in components if target else components)]
        if not names:
            raise ClusterError(
                f"lora: expected a worker that holds {target or 'a transformer'}, found none up. Wait for it."
            )
        return names

    async def _install(self, order: InstallAdapter, content: AdapterContent) -> dict[str, LoraReceipt]:
        workers = await self._workers(order.target)
        shared = await self._backend.share(content.content)
        try:
            answers = await self._all(workers, order, shared, self._load_timeout)
        except BaseException:
            await asyncio.shield(self._everywhere(workers, DropAdapter(order.id)))
            raise
        return {worker: receipt for worker, receipt in answers.items() if receipt is not None}

    async def _everywhere_or_back(self, order: FuseAdapters, back: FuseAdapters) -> None:
        workers = await self._workers(None)
        try:
            await self._all(workers, order, None, self._stage_timeout)
        except BaseException:
            await asyncio.shield(self._everywhere(workers, back))
            raise

    async def _all(
        self, workers: Sequence[str], order: AdapterOrder, content: Any, timeout: float
    ) -> dict[str, LoraReceipt | None]:
        """The answers of all, once all have answered. Raises the first error among them."""
        answers = await asyncio.gather(
            *(self._backend.adapt(worker, order, content, timeout) for worker in workers), return_exceptions=True
        )
        if failures := [answer for answer in answers if isinstance(answer, BaseException)]:
            answers.clear()  # this frame is in the traceback of the error, and must not hold it in turn
            raise bare(failures.pop(0))
        return {name: each for name, each in zip(workers, answers, strict=True) if not isinstance(each, BaseException)}

    async def _everywhere(self, workers: Sequence[str], order: AdapterOrder) -> None:
        """Carry out on whoever is there; a worker that is not gets what holds then before it serves again."""
        timeout = self._stage_timeout if isinstance(order, FuseAdapters) else self._load_timeout
        work: list[Coroutine[Any, Any, Any]] = [self._backend.adapt(name, order, None, timeout) for name in workers]
        for worker, answer in zip(workers, await asyncio.gather(*work, return_exceptions=True), strict=True):
            if isinstance(answer, SplitreelError):
                logger.warning("lora: %s on %s: %s", type(order).__name__, worker, answer)

    async def _drop(self, loaded: Loaded) -> None:
        await self._everywhere(loaded.receipt.workers, DropAdapter(loaded.id))

    def _refuse_fused(self, what: str) -> None:
        if self._state.fused is not None:
            raise AdapterError(
                f"lora: expected no fused adapters for {what}, found {_shown(self._state.fused)} in the weights. Take them "
                "out first (session.lora.unfuse())."
            )


def _check_rivals(receipts: Sequence[LoraReceipt]) -> None:
    """Two adapters that both replace a parameter: one of them would be without effect."""
    seen: dict[tuple[str, str], str] = {}
    for receipt in receipts:
        for parameter in receipt.replaced:
            other = seen.setdefault((receipt.target, parameter), receipt.name)
            if other != receipt.name:
                raise InvalidRequest(
                    f"lora: expected one adapter that replaces {parameter}, found {other!r} and {receipt.name!r}. Use one.",
                    field="lora",
                )


def _shown(uses: Sequence[LoraUse]) -> str:
    return ", ".join(f"{use.name}={use.scale:g}" for use in uses) or "none"
