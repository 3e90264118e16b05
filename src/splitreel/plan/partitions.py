"""Which roles, and how many of each, keep the transformer busiest: every partition driven by the real scheduler."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from splitreel.config import STAGES_OF_ROLE
from splitreel.plan.layouts import SATURATED, Figures, Layout, Setting, hop_into, obstacle
from splitreel.plan.simulate import Hand, simulate
from splitreel.request import Stage

# Two roles, then three; the last two let a further worker take one of the stages off the encoder/decoder.
PARTITIONS = (
    ("encoder_decoder", "dit"),
    ("encoder", "dit_decoder"),
    ("encoder_dit", "decoder"),
    ("encoder", "dit", "decoder"),
    ("encoder_decoder", "dit", "decoder"),
    ("encoder_decoder", "dit", "encoder"),
)
EQUAL = 0.02  # films per hour that differ by less are called equal


@dataclass(frozen=True)
class Share:
    """What a partition gives with a full queue. `dit_busy`: the share of time in which a worker with the transformer
    denoises, on average over them. `counts`: workers by role. `obstacle`: why it cannot be, or empty.
    """

    counts: dict[str, int]
    machines: int
    dit_busy: float
    per_hour: float
    obstacle: str = ""

    @property
    def name(self) -> str:
        """For example `2 encoder_decoder + 1 dit`."""
        return " + ".join(f"{count} {role}" for role, count in self.counts.items())

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"name": self.name, **asdict(self)}


def shares(setting: Setting, machines: int) -> list[Share]:
    """Each partition of exactly so many machines, with as many workers of each role as make most films."""
    return [_share(setting, _best(setting, roles, machines)) for roles in PARTITIONS if len(roles) <= machines]


def _best(setting: Setting, roles: Sequence[str], machines: int) -> dict[str, int]:
    """How many of each role: the most films per second, then the fewest workers with the transformer."""

    def rank(counts: dict[str, int]) -> tuple[float, int]:
        dits = sum(count for role, count in counts.items() if Stage.DENOISE in STAGES_OF_ROLE[role])
        return round(bound(setting, counts), 12), -dits

    return max(_counts(roles, machines), key=rank)


def _counts(roles: Sequence[str], machines: int) -> Iterator[dict[str, int]]:
    for cuts in itertools.combinations(range(1, machines), len(roles) - 1):
        edges = (0, *cuts, machines)
        yield {role: edges[index + 1] - edges[index] for index, role in enumerate(roles)}


def bound(setting: Setting, counts: dict[str, int]) -> float:
    """Films per second at most: for any set of stages, the workers that hold one of them do no more than their time."""
    least = math.inf
    for size in range(1, len(Stage) + 1):
        for stages in itertools.combinations(Stage, size):
            seconds = sum(setting.times.of(stage) for stage in stages)
            able = sum(count for role, count in counts.items() if set(stages) & set(STAGES_OF_ROLE[role]))
            least = min(least, able / seconds if seconds else math.inf)
    return least


def _share(setting: Setting, counts: dict[str, int]) -> Share:
    machines = sum(counts.values())
    why = obstacle(setting, *(STAGES_OF_ROLE[role] for role in counts))
    if why:
        return Share(counts, machines, 0.0, 0.0, why)
    hands = _hands(setting, counts)
    per_hour = simulate([hands], SATURATED, backlog=8 * machines).per_hour
    dits = sum(Stage.DENOISE in hand.seconds for hand in hands)
    busy = per_hour / 3600 * setting.times.denoise / dits
    return Share(counts, machines, min(1.0, busy), per_hour)


def _hands(setting: Setting, counts: dict[str, int]) -> list[Hand]:
    return [
        Hand(
            f"{role} {index + 1}",
            {stage: setting.times.of(stage) + _hop(setting, stage, role) for stage in STAGES_OF_ROLE[role]},
        )
        for role, count in counts.items()
        for index in range(count)
    ]


def beyond(setting: Setting, found: Sequence[Share], compared: Sequence[Figures]) -> list[Layout]:
    """For each number of machines the partition that makes most films, as a layout, where it beats the splits compared."""
    better = []
    for machines in sorted({each.machines for each in found}):
        best = max((each for each in found if each.machines == machines), key=lambda each: each.per_hour)
        splits = [each for each in compared if each.machines == machines and "independent" not in each.name]
        known = max((each.per_hour for each in splits), default=0.0)
        if best.per_hour > known * (1 + EQUAL):
            better.append(Layout(f"split, {best.name}", machines, (tuple(_hands(setting, best.counts)),)))
    return better


def _hop(setting: Setting, stage: Stage, role: str) -> float:
    """Seconds of the hop into a stage; none where the stage before may be in the same role."""
    return 0.0 if stage.previous in (None, *STAGES_OF_ROLE[role]) else hop_into(setting, stage)


def advice(found: Sequence[Share]) -> list[str]:
    """For each number of machines: the partition to take, the others beside it, and whether a third role pays."""
    lines = []
    for machines in sorted({each.machines for each in found}):
        here = [each for each in found if each.machines == machines]
        able = [each for each in here if not each.obstacle]
        if not able:
            lines.append(f"{machines} machines: no partition is possible: {here[0].name}: {here[0].obstacle}.")
            continue
        most = max(each.per_hour for each in able)
        # Of those that make as many films, the one whose transformers rest least; then the one of fewer roles.
        best = max(
            (each for each in able if each.per_hour >= most * (1 - EQUAL)),
            key=lambda each: (round(each.dit_busy, 2), -len(each.counts)),
        )
        busiest = max(able, key=lambda each: (round(each.dit_busy, 2), each is best, each.per_hour))
        others = ", ".join(
            f"{each.name} {each.dit_busy:.0%} ({each.per_hour:.1f})"
            for each in sorted(able, key=lambda each: -each.per_hour)
            if each not in (best, busiest)
        )
        said = f"{machines} machines: {busiest.name} keeps the transformer busiest, {busiest.dit_busy:.0%} of the time"
        if busiest is best:
            said += f", and makes most films, {best.per_hour:.1f} per hour"
        else:
            said += (
                f", but {best.name}, {best.dit_busy:.0%}, makes more films, {best.per_hour:.1f} per hour against "
                f"{busiest.per_hour:.1f}: take that"
            )
        lines.append(said + (f". The others: {others}." if others else "."))
        if machines > 2:
            lines.append(f"{machines} machines: {_third(able)}")
    return lines


def _third(able: Sequence[Share]) -> str:
    two = max((each for each in able if len(each.counts) == 2), key=lambda each: each.per_hour, default=None)
    three = max((each for each in able if len(each.counts) == 3), key=lambda each: each.per_hour, default=None)
    if three is None:
        return "a third role is not possible."
    if two is None:
        return f"only a third role fits: {three.name}."
    change = three.per_hour / two.per_hour - 1
    says = "a third role pays" if change > EQUAL else "a third role does not pay"
    return f"{says}: {three.name} {three.per_hour:.1f} films per hour, {two.name} {two.per_hour:.1f} ({change:+.0%})."
