"""How benchmarks report: each prints one JSON object with its claims, their baselines measured in the same run.

A claim is a ratio with a target. `run_all.py` collects them into `results.json`, the README's table and a plot.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Claim:
    """`figure` is product by baseline; it is met at or below `target`, or at or above it when more is better."""

    number: int
    text: str
    baseline: str
    figure: float
    target: float
    more_is_better: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.figure >= self.target if self.more_is_better else self.figure <= self.target


def report(*claims: Claim, **facts: Any) -> None:
    """Print the claims and what is to be known about the run."""
    json.dump(
        {
            "claims": [{**asdict(claim), "figure": round(claim.figure, 4), "met": claim.met} for claim in claims],
            **facts,
            "load_average": round(os.getloadavg()[0], 2),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
        sys.stdout,
        indent=2,
    )
    print()


def in_turns(times: int, **runs: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds (or whatever each returns) of every run, in turns; which goes first takes turns too."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(times):
        order = list(runs) if index % 2 else list(reversed(runs))
        for name in order:
            found[name].append(runs[name]())
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles, for the details of a claim."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {"median": round(middle, 6), "quartile_1": round(low, 6), "quartile_3": round(high, 6)}


def ratio(product: Sequence[float], baseline: Sequence[float]) -> float:
    """Of the medians."""
    return statistics.median(product) / statistics.median(baseline)
