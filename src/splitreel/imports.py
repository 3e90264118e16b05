"""Contexts in which chosen modules of others are run as they are imported; and one that lets the garbage collector rest.

The import of torch and diffusers makes half a million objects that stay. As they grow in number the collector goes
through all of them eight times: a third of the import's CPU time (9 to 14 of 29 to 36 s on a slow machine, by
`gc.callbacks`), in every worker that starts.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import ModuleType

_Context = Callable[[], contextlib.AbstractContextManager[None]]

# Each module has one of its own; other loaders may be shared, and what is set on them would hold for other modules too.
_OWN_LOADER = (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader)

# With all that is below them; each takes from half a second to several.
LARGE = ("torch", "torchvision", "torchao", "diffusers", "transformers", "accelerate", "peft", "sympy")


def around(chosen: Callable[[str], bool], context: _Context) -> None:
    """From now on each module whose full name is `chosen` is run inside `context()`. A second call with the same does nothing."""
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _Around)), None)
    if finder is None:
        finder = _Around()
        sys.meta_path.insert(0, finder)
    finder.contexts.setdefault(context, chosen)


def rest_while_large_ones_load() -> None:
    """Let no garbage be collected while LARGE packages are imported."""
    around(lambda name: name.partition(".")[0] in LARGE, _resting)


class _Around(importlib.abc.MetaPathFinder):
    """Finds nothing itself: has the other finders look, and wraps how the module that they found is run."""

    def __init__(self) -> None:
        self.contexts: dict[_Context, Callable[[str], bool]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        contexts = [context for context, chosen in self.contexts.items() if chosen(fullname)]
        if not contexts:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((each for each in others if each is not None), None)
        if spec is not None and isinstance(spec.loader, _OWN_LOADER):
            run = spec.loader.exec_module

            def run_inside(module: ModuleType) -> None:
                with contextlib.ExitStack() as entered:
                    for context in contexts:
                        entered.enter_context(context())
                    run(module)

            spec.loader.exec_module = run_inside  # type: ignore[method-assign]
        return spec


class _Rest:
    """How many imports the collector rests for, over all threads, and whether it worked before the first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.imports = 0
        self.worked = False


_REST = _Rest()


@contextlib.contextmanager
def _resting() -> Iterator[None]:
    with _REST.lock:
        if not _REST.imports:
            _REST.worked = gc.isenabled()
            gc.disable()
        _REST.imports += 1
    try:
        yield
    finally:
        with _REST.lock:
            _REST.imports -= 1
            if not _REST.imports and _REST.worked:
                gc.enable()
