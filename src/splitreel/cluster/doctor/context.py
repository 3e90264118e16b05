"""What a node is told about itself before it looks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from splitreel.config import RoleSpec
from splitreel.request import Stage


@dataclass(frozen=True)
class RoleTask:
    """A worker that the config puts on the node: its name, its slice of the config, and its GPUs."""

    worker: str
    spec: RoleSpec
    gpus: float


@dataclass(frozen=True)
class Context:
    """A node as the driver sees it.

    `address`: as Ray knows it, or `driver`. `model`: where a ModelDefinition is, `module:name`; imported only by checks
    that need it, since that imports diffusers. `unified`: said by the user, None to find out. `store_bytes`: the capacity
    of Ray's object store there, 0 where there is none; `session_folder`: where Ray spills to. `schema`: the driver's
    version of payloads.
    """

    address: str
    hostname: str = ""
    tasks: tuple[RoleTask, ...] = ()
    model: str = ""
    unified: bool | None = None
    store_bytes: int = 0
    session_folder: str = ""
    schema: tuple[int, int] = (0, 0)

    @property
    def cuda_tasks(self) -> tuple[RoleTask, ...]:
        """The workers that compute on a GPU."""
        return tuple(task for task in self.tasks if task.spec.device.startswith("cuda"))

    @property
    def decodes(self) -> bool:
        """Whether films are encoded here."""
        return any(Stage.DECODE in task.spec.stages for task in self.tasks)

    @property
    def is_unified(self) -> bool:
        """Whether GPU and CPU share memory: as the user says, else as the device does."""
        return self.unified if self.unified is not None else bool(self.cuda_tasks) and _seen_unified()


@functools.cache
def _seen_unified() -> bool:
    from splitreel.roles.device import shares_memory

    return shares_memory()
