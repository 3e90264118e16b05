"""Progress and stop inside a forward pass, by forward pre-hooks on modules that run many times per stage.

diffusers' blocks have no callbacks for layers or decoded tiles; torch's hooks are public and cost a few microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from splitreel.roles.control import StageControl


class ModuleWatch:
    """Counts calls of the watched modules and reports them to the control of the running stage, if any.

    With `spans` each call is a span of its own, such as `decode.chunk`.
    """

    def __init__(self, modules: Iterable[nn.Module], unit: str, *, spans: bool = False) -> None:
        self._unit = unit
        self._control: StageControl | None = None
        self._total = 0
        self._seen = 0
        for module in modules:
            module.register_forward_pre_hook(self._on_call)
            if spans:
                module.register_forward_hook(self._on_return)
        self._spans = spans

    @contextmanager
    def reporting(self, control: StageControl, total: int = 0) -> Iterator[None]:
        """Report to `control` while the block runs; with `total` 0 only its wish to stop is looked at."""
        self._control, self._total, self._seen = control, total, 0
        try:
            yield
            if total:
                control.step(self._unit, total, total)
        finally:
            self._control = None

    def skip(self, calls: int) -> None:
        """So many calls were made elsewhere."""
        self._seen += calls

    def _on_call(self, module: nn.Module, args: Any) -> None:
        control = self._control
        if control is None:
            return
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
