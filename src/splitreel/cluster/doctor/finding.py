"""What a check says, and how checks are run: each for itself, in bounded time, so that none hides another."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from splitreel.errors import SplitreelError

T = TypeVar("T")

DRIVER = "driver"
CHECK_S = 10.0  # for one check


class Status(StrEnum):
    """How a check went. `skip`: it does not apply, or could not be made because of another finding."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `check`: a stable id such as `ray.reachable`; `node`: an address, or `driver`; `remedy`: what
    to do, for warnings and failures; `role`: the worker that it concerns, if it concerns one.
    """

    check: str
    status: Status
    found: str
    remedy: str = ""
    node: str = ""
    role: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "status": self.status.value}


@dataclass(frozen=True)
class Report:
    """All findings, in the order of looking. `nodes`: host names by address."""

    findings: tuple[Finding, ...]
    seconds: float
    nodes: dict[str, str]

    def count(self, status: Status) -> int:
        """How many findings have a status."""
        return sum(finding.status is status for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "summary": {status.value: self.count(status) for status in Status},
            "seconds": round(self.seconds, 2),
            "nodes": self.nodes,
            "checks": [finding.to_dict() for finding in self.findings],
        }


# What one check looks at is its own business; it yields what it found, without the place.
Check = Callable[[Any], Iterable[Finding]]


def ok(check: str, found: str, **place: str) -> Finding:
    """A finding that all is well."""
    return Finding(check, Status.PASS, found, **place)


def warn(check: str, found: str, remedy: str, **place: str) -> Finding:
    """A finding that may become a failure, or makes things slow."""
    return Finding(check, Status.WARN, found, remedy, **place)


def fail(check: str, found: str, remedy: str, **place: str) -> Finding:
    """A finding that keeps films from being made."""
    return Finding(check, Status.FAIL, found, remedy, **place)


def skip(check: str, found: str, **place: str) -> Finding:
    """A check that was not made, and why."""
    return Finding(check, Status.SKIP, found, "", **place)


def of_error(check: str, error: BaseException, remedy: str = "", **place: str) -> Finding:
    """A failure in an error's own words, which end with what to do."""
    if not isinstance(error, SplitreelError):
        return fail(check, f"{type(error).__name__}: {error}", remedy or "See the cause that is named.", **place)
    found, own = split_message(error.message)
    return fail(check, found, own or remedy or "See the cause that is named.", **place)


def split_message(message: str) -> tuple[str, str]:
    """A message of ours as what was found and what to do: its last sentences, from the first that begins after "found".

    Full stops inside addresses and file names are followed by no blank.
    """
    matched = re.match(r"(.*?\bfound\b.*?[.\)])\s+(?=[A-Z])(.*)", message, re.DOTALL)
    return (matched[1].rstrip("."), matched[2]) if matched else (message.rstrip("."), "")


def bounded(work: Callable[[], T], timeout: float) -> T:
    """The outcome of some work, or TimeoutError. It goes on in a thread that keeps no process from ending."""
    outcome: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="splitreel-doctor", daemon=True)
    thread.start()
    thread.join(timeout)
    if not outcome:
        raise TimeoutError(f"no answer within {timeout:g} s")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def run_checks(
    checks: Sequence[tuple[str, Check]], context: Any, *, node: str, seconds: float, each: float = CHECK_S
) -> list[Finding]:
    """Run checks one after another within `seconds`, of which the first may take all and others `each`.

    What breaks or hangs is a finding.
    """
    deadline = time.monotonic() + seconds
    found: list[Finding] = []
    for index, (name, check) in enumerate(checks):
        left = min(each if index else seconds, deadline - time.monotonic())
        if left <= 0:
            found.append(warn(name, "not looked at: the checks before it took too long", "Run doctor again."))
            continue
        try:
            found += bounded(lambda check=check: list(check(context)), left)  # type: ignore[misc]
        except TimeoutError:
            found.append(warn(name, f"no answer within {left:.0f} s", "See what holds that machine up."))
        except Exception as error:
            found.append(warn(name, f"could not be looked at: {type(error).__name__}: {error}", "Please report it."))
    return [finding if finding.node else replace(finding, node=node) for finding in found]
