"""Logs that say which request, role and node they are about. Nothing is configured when this is imported.

Loggers made by `get_logger` give every record the attributes `request_id`, `role` and `node`, empty where they do not
apply, so that any handler's format may name them: `%(request_id)s`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_ABOUT: ContextVar[dict[str, str]] = ContextVar("splitreel_about")
_NOTHING = {"request_id": "", "role": "", "node": ""}

FORMAT = "%(asctime)s %(levelname)s %(name)s%(place)s: %(message)s"


@contextmanager
def about(request_id: str, role: str = "", node: str = "") -> Iterator[None]:
    """Whatever is logged inside is about this request, in this role, on this node."""
    token = _ABOUT.set({"request_id": request_id, "role": role, "node": node})
    try:
        yield
    finally:
        _ABOUT.reset(token)


class _Located(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        given = kwargs.get("extra") or {}
        return msg, {**kwargs, "extra": {**_NOTHING, **_ABOUT.get({}), **given}}


def get_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """The logger of a module; `extra={"request_id": ...}` overrides what `about` says."""
    return _Located(logging.getLogger(name))


class PlaceFilter(logging.Filter):
    """For a handler: gives records of any library what `FORMAT` names, and the part `place`, such as ` [dit, r1]`."""

    def filter(self, record: logging.LogRecord) -> bool:
        known = _ABOUT.get({})
        for name in _NOTHING:
            if not hasattr(record, name):
                setattr(record, name, known.get(name, ""))
        parts = [value for value in (getattr(record, name) for name in ("node", "role", "request_id")) if value]
        record.place = f" [{', '.join(parts)}]" if parts else ""
        return True


def set_up_worker_log() -> None:
    """For a process that is ours alone: to stderr, which Ray keeps in a file of the node.

    Stages are logged at DEBUG, which `SPLITREEL_LOG_LEVEL=DEBUG` in a role's `env` shows.
    """
    handler = logging.StreamHandler()
    handler.addFilter(PlaceFilter())
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.basicConfig(level=os.environ.get("SPLITREEL_LOG_LEVEL", "INFO").upper(), handlers=[handler])
