"""The session of a server: opened in the background, watched while it serves, given up when a role stays away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

from splitreel.config import Config
from splitreel.engine.backend import WorkerHealth
from splitreel.errors import SplitreelError
from splitreel.observe.logs import get_logger
from splitreel.observe.progress import LoadProgress
from splitreel.request import Stage
from splitreel.roles.definition import ModelDefinition
from splitreel.serve.jobs.view import Condition
from splitreel.session import Session
from splitreel.session_aio import AsyncSession

logger = get_logger(__name__)

_HEALTH_SECONDS = 5.0


class Deployment:
    """Whether jobs can be made now, and the session that makes them. Belongs to one loop."""

    def __init__(self, config: Config, model: ModelDefinition | None, on_change: Callable[[], None]) -> None:
        self.config = config
        self.condition: Condition = "loading"
        self.detail = "the roles are being placed"
        self.session: Session | None = None
        self.workers: Sequence[WorkerHealth] = ()
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self._model = model
        self._on_change = on_change
        self._changed = asyncio.Event()

    async def open(self) -> Session | None:
        """Place and load. None when that failed: then `failure` says why."""
        loop = asyncio.get_running_loop()

        def on_load(progress: LoadProgress) -> None:  # on the engine's thread
            words = f"{progress.worker}: {progress.component}, {progress.done} of {progress.total}"
            loop.call_soon_threadsafe(self.set, "loading", words)

        try:
            session = await AsyncSession.open(self.config, on_load=on_load, model=self._model)
        except Exception as error:
            self.fail(error)
            return None
        self.session = session
        self.workers = await session.aio.health()
        self.set("ready", "every role is resident")
        return session

    async def watch(self) -> None:
        """Ask the workers, for ever; ends when some stage had none for `serve.give_up_after`."""
        assert self.session is not None
        away_since: float | None = None
        while True:
            await asyncio.sleep(_HEALTH_SECONDS)
            self.workers = await self.session.aio.health()
            missing = missing_stages(self.config, self.workers)
            if not missing:
                away_since = None
                self.set("ready", "every role is resident")
                continue
            now = time.monotonic()
            away_since = away_since if away_since is not None else now
            words = f"no worker for {', '.join(missing)} since {now - away_since:.0f} s"
            self.set("degraded", words)
            if now - away_since > self.config.serve.give_up_after:
                self.fail(SplitreelError(f"serve.give_up_after: {words}. See the log for why; start the server again."))
                return

    async def close(self) -> None:
        """End the session, if there is one. Safe to call again."""
        session, self.session = self.session, None
        if session is not None:
            await session.aio.close()

    def set(self, condition: Condition, detail: str) -> None:
        """Say how things are; nothing comes after draining, and a failure stays one until then."""
        if self.condition == "draining" or (self.condition == "failed" and condition != "draining"):
            return
        if condition != self.condition:
            logger.info("service: %s (%s)", condition, detail)
        self.condition, self.detail = condition, detail
        self._changed.set()
        self._on_change()

    async def changes(self) -> AsyncIterator[tuple[Condition, str]]:
        """Condition and detail now and whenever they change, for one listener; the latest only."""
        while True:
            self._changed.clear()
            yield self.condition, self.detail
            await self._changed.wait()

    def fail(self, error: BaseException) -> None:
        """The service cannot go on."""
        self.set("failed", str(error))
        self.failure = self.failure or error
        self.failed.set()


def missing_stages(config: Config, workers: Sequence[WorkerHealth]) -> list[str]:
    """Stages that no worker is ready for, such as `denoise`, or `denoise of ref2va` when other workflows have one."""
    ready = {worker.role for worker in workers if worker.state == "ready"}
    found = []
    for stage in Stage:
        holders = {name: role for name, role in config.roles.items() if stage in config.stages_of(name)}
        away = [
            workflow
            for workflow in config.model.workflows
            if not any(
                name in ready and workflow in (role.workflows or config.model.workflows)
                for name, role in holders.items()
            )
        ]
        if len(away) == len(config.model.workflows):
            found.append(str(stage))
        else:
            found.extend(f"{stage} of {workflow}" for workflow in away)
    return found
