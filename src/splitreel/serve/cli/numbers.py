"""Numbers of options: finite and within what can be computed with."""

from __future__ import annotations

import math

from splitreel.serve.cli.failures import Refused


def within(option: str, value: float, what: str, least: float, most: float) -> float:
    """The value. Raises Refused for NaN, infinity and what is out of range. `what`: for example `requests per hour`."""
    if not (math.isfinite(value) and least <= value <= most):
        raise Refused(f"{option}: expected {what} from {least:g} to {most:g}, found {value:g}. Give one of these.")
    return value
