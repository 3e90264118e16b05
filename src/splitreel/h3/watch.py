"""Progress and stop inside a forward pass, by forward pre-hooks on modules that run many times per stage.

diffusers' blocks have no callbacks for layers or decoded tiles; torch's hooks are public and cost a few microseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from splitreel.roles.control import StageControl

# Calls whose kernels a CUDA device may have before it while the next is ordered: it never waits for orders, and a stop is
# noticed within three calls.
_AHEAD = 2


class ModuleWatch:
    """Counts calls of the watched modules and reports them to the control of the running stage, if any.

    With `spans` each call is a span of its own, such as `decode.chunk`.
    """

    def __init__(self, modules: Iterable[nn.Module], unit: str, *, spans: bool = False) -> None:
        self._unit = unit
        self._control: StageControl | None = None
        self._total = 0
        self._seen = 0
        self._pace: _Pace | None = None
        for module in modules:
            module.register_forward_pre_hook(self._on_call)
            if spans:
                module.register_forward_hook(self._on_return)
        self._spans = spans

    @contextmanager
    def reporting(self, control: StageControl, total: int = 0, *, pace: torch.device | None = None) -> Iterator[None]:
        """Report to `control` while the block runs; with `total` 0 only its wish to stop is looked at.

        `pace`: the device that computes, if calls are to be ordered only little before it gets to them.
        """
        self._control, self._total, self._seen = control, total, 0
        self._pace = _Pace(pace) if pace is not None and pace.type == "cuda" else None
        try:
            yield
            if total:
                control.step(self._unit, total, total)
        finally:
            self._control = self._pace = None

    def skip(self, calls: int) -> None:
        """So many calls were made elsewhere."""
        self._seen += calls

    def _on_call(self, module: nn.Module, args: Any) -> None:
        control = self._control
        if control is None:
            return
        if self._pace is not None:
            self._pace.keep()
        if self._total:
            control.step(self._unit, min(self._seen, self._total), self._total)
            self._seen += 1
        else:
            control.check()
        if self._spans:
            control.begin_part(self._unit, self._seen)

    def _on_return(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._control is not None:
            self._control.end_part()


class _Pace:
    """Keeps a thread from ordering much more than a CUDA device has done.

    Kernels are queued, up to a whole step of them: whoever looks at a stop while they are queued looks a step too early.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._marks: deque[torch.cuda.Event] = deque()

    def keep(self) -> None:
        """One more call is ordered; wait until the device is done with what came `_AHEAD` calls before it."""
        mark = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        mark.record(self._stream)
        self._marks.append(mark)
        if len(self._marks) > _AHEAD:
            self._marks.popleft().synchronize()


_WATCHES: WeakKeyDictionary[nn.Module, ModuleWatch] = WeakKeyDictionary()


def watched(owner: nn.Module, modules: Iterable[nn.Module], unit: str, *, spans: bool = False) -> ModuleWatch:
    """The watch on some modules of `owner`, which has no other: made once, for all programs that run them."""
    if owner not in _WATCHES:
        _WATCHES[owner] = ModuleWatch(modules, unit, spans=spans)
    return _WATCHES[owner]
