"""`session.lora` and `session.aio.lora`: adapters as users change them. What a change means is in `engine.adapters`."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar, Unpack

from splitreel.engine.adapters import Adapters
from splitreel.errors import InvalidRequest
from splitreel.lora import LoadOptions, LoraInfo, LoraReceipt, LoraUse, as_uses

T = TypeVar("T")


class Wait(Protocol):
    """Runs a coroutine on the engine's loop and waits for it in the caller's thread."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


class HandOver(Protocol):
    """The same for another loop."""

    async def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


class SessionLora:
    """LoRA adapters of a session. A change holds for requests submitted after it, on all workers or on none.

    Every method raises AdapterError or ClusterError when nothing was changed, and InvalidRequest for a wrong name or scale.
    """

    def __init__(self, adapters: Callable[[], Adapters], wait: Wait) -> None:
        self._adapters = adapters
        self._wait = wait

    def load(
        self,
        source: str | os.PathLike[str],
        name: str | None = None,
        scale: float = 1.0,
        **options: Unpack[LoadOptions],
    ) -> LoraReceipt:
        """Load a safetensors file, a folder with one, or a hub id (`owner/name`, `hf://owner/name/file.safetensors`).

        `name`: what requests call it, by default the file's. `scale`: for requests that name no adapters. Options: see
        `LoadOptions`.
        """
        return self._wait(self._adapters().load(os.fspath(source), name, scale, **options))

    def set(self, names: str | Sequence[str], scales: float | Sequence[float] | None = None) -> None:
        """Use exactly these for requests that name none; `[]` for no adapters. Scales are 1 unless given."""
        self._wait(self._adapters().use(paired(names, scales)))

    def fuse(self) -> None:
        """Write the adapters in use into the weights: the same films, without the sum at each use.

        Waits for the stages under way. Until `unfuse`, requests may ask for nothing else.
        """
        self._wait(self._adapters().fuse())

    def unfuse(self) -> None:
        """Bring the weights back, bit for bit, by reading the checkpoint's files again."""
        self._wait(self._adapters().unfuse())

    def unload(self, name: str) -> None:
        """Forget an adapter; requests that were submitted with it keep it until they have ended."""
        self._wait(self._adapters().unload(name))

    def list(self) -> tuple[LoraInfo, ...]:
        """Every loaded adapter with its receipt."""
        return self._adapters().listed()


class AsyncSessionLora:
    """The same as coroutines, on any loop."""

    def __init__(self, adapters: Callable[[], Adapters], hand_over: HandOver) -> None:
        self._adapters = adapters
        self._hand_over = hand_over

    async def load(
        self,
        source: str | os.PathLike[str],
        name: str | None = None,
        scale: float = 1.0,
        **options: Unpack[LoadOptions],
    ) -> LoraReceipt:
        """As `SessionLora.load`."""
        return await self._hand_over(self._adapters().load(os.fspath(source), name, scale, **options))

    async def set(self, names: str | Sequence[str], scales: float | Sequence[float] | None = None) -> None:
        """As `SessionLora.set`."""
        await self._hand_over(self._adapters().use(paired(names, scales)))

    async def fuse(self) -> None:
        """As `SessionLora.fuse`."""
        await self._hand_over(self._adapters().fuse())

    async def unfuse(self) -> None:
        """As `SessionLora.unfuse`."""
        await self._hand_over(self._adapters().unfuse())

    async def unload(self, name: str) -> None:
        """As `SessionLora.unload`."""
        await self._hand_over(self._adapters().unload(name))

    async def list(self) -> tuple[LoraInfo, ...]:
        """As `SessionLora.list`."""
        return self._adapters().listed()


def paired(names: str | Sequence[str], scales: float | Sequence[float] | None) -> tuple[LoraUse, ...]:
    """Names with their scales. Raises InvalidRequest when there are not as many of both."""
    names = [names] if isinstance(names, str) else list(names)
    if scales is None:
        scales = [1.0] * len(names)
    scales = [scales] if isinstance(scales, int | float) else list(scales)
    if len(names) != len(scales):
        raise InvalidRequest(
            f"lora: expected a scale for each of {len(names)} names, found {len(scales)}. Leave scales out for 1.",
            field="lora",
        )
    return as_uses([LoraUse(name, scale) for name, scale in zip(names, scales, strict=True)])
