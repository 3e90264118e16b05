"""Keeps two notes to developers off the terminal that come with the import of torchao, wherever it is imported.

torchao marks enums in a way that torch 2.14 calls deprecated, and diffusers 0.42 looks for classes that torchao has dropped.
Neither concerns who runs a model. transformers and diffusers import torchao unasked, from many places; so the import
itself is watched, and only while those modules run their two messages become debug lines. Errors pass.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from splitreel.imports import around
from splitreel.observe.logs import get_logger

logger = get_logger(__name__)

WATCHED = ("torchao", "diffusers.quantizers.torchao.torchao_quantizer")
# Logger, and how its message is known.
KNOWN = {
    "torch.utils._pytree": "register_constant() on Enum subclasses is deprecated",
    "diffusers.quantizers.torchao.torchao_quantizer": "Unable to import `torchao` Tensor objects",
}


def watch_imports() -> None:
    """From now on torchao is imported without its notes. Changes no logger until then; a second call does nothing."""
    around(lambda name: name in WATCHED, _known_as_debug)


@contextlib.contextmanager
def _known_as_debug() -> Iterator[None]:
    def keep(record: logging.LogRecord) -> bool:
        known = KNOWN[record.name] in str(record.msg)
        if known:
            logger.debug("%s: %s", record.name, record.getMessage())
        return not known

    loggers = [logging.getLogger(name) for name in KNOWN]
    for each in loggers:
        each.addFilter(keep)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(keep)
