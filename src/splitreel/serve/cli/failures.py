"""Errors as people read them: one plain line, more with -vv; and the exit code that each one means."""

from __future__ import annotations

import json
import logging
import sys
import traceback

from splitreel.errors import AdapterError, CheckpointError, ClusterError, ConfigError, InvalidRequest, SplitreelError
from splitreel.serve.cli.codes import DEPLOYMENT, REQUEST_FAILED, USAGE


class Refused(SplitreelError):
    """Wrong usage that only shows once all options are seen."""


class UsageError(Refused):
    """An option or argument that the command line does not have, or cannot read."""


def exit_code_of(error: BaseException) -> int:
    """The exit code of an error that ends the command."""
    if isinstance(error, Refused | ConfigError | InvalidRequest | AdapterError):
        return USAGE
    if isinstance(error, CheckpointError | ClusterError):
        return DEPLOYMENT
    return REQUEST_FAILED


def explain(error: BaseException, *, where: str = "") -> None:
    """Print `error: message` on stderr, with `where` before the message; with -vv where it came from as well."""
    print(f"error: {f'{where}: ' if where else ''}{message_of(error)}", file=sys.stderr)
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        remote = error.details.get("remote_traceback") if isinstance(error, SplitreelError) else None
        print(remote or "".join(traceback.format_exception(error)), file=sys.stderr)


def as_json(error: BaseException) -> str:
    """An error that ends a command, as one line of JSON."""
    return json.dumps({"error": {"type": type(error).__name__, "message": message_of(error)}})


def message_of(error: BaseException) -> str:
    """What an error says; the type's name comes along where it is not one of ours."""
    if isinstance(error, SplitreelError):
        return error.message
    return f"{type(error).__name__}: {error}. Run again with -vv to see where, and please report it."
