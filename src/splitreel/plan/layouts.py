"""Films per hour and latency of each way to use some machines, from stage times, and whether a split pays."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from splitreel.errors import ConfigError
from splitreel.h3.released import FilmSize
from splitreel.plan.memory import Machine
from splitreel.plan.simulate import Hand, Outcome, simulate
from splitreel.plan.sizes import Sizes, components_of
from splitreel.request import Stage
from splitreel.words import plainly

ENCODE, DENOISE, DECODE = Stage
SATURATED, OPEN = 240, 2000  # films per simulation, with a full queue and with arrivals at random
_ALONE_EVERY = 1e7  # seconds between films that never meet
_MOST_S = 1e6  # of one stage


@dataclass(frozen=True)
class Times:
    """Seconds of each stage with its components resident."""

    encode: float
    denoise: float
    decode: float

    def of(self, stage: Stage) -> float:
        """Seconds of one stage."""
        return float(getattr(self, stage.value))


@dataclass(frozen=True)
class Setting:
    """What all layouts share: stage times, sizes, the machine of which there are several, disk and network.

    `load_rate`: bytes per second from disk into memory; `link_rate`: bytes per second between machines; `machine`: None
    when all components of any role are taken to be resident.
    """

    times: Times
    sizes: Sizes
    film: FilmSize
    workflows: tuple[str, ...]
    machine: Machine | None = None
    dtype: str = "bfloat16"
    load_rate: float = 1e9
    link_rate: float = 1e9


@dataclass(frozen=True)
class Layout:
    """One way to use `machines` machines; `groups` as `simulate` takes them. `obstacle`: why it cannot be, or empty."""

    name: str
    machines: int
    groups: tuple[tuple[Hand, ...], ...]
    reloads: bool = False
    obstacle: str = ""


@dataclass(frozen=True)
class Figures:
    """What a layout gives. Seconds; the two at a rate are None when none was asked for or it is more than `per_hour`."""

    name: str
    machines: int
    reloads: bool
    obstacle: str
    per_hour: float
    alone: float
    rate: float | None
    mean: float | None
    p95: float | None
    busiest: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def parse_times(text: str) -> Times:
    """`encode=42,denoise=92,decode=94`, or a file of lines as `splitreel generate --json` prints them: their medians.

    Raises ConfigError.
    """
    if "=" not in text:
        return _times_of_file(Path(text))
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if name not in list(Stage) or not 0 <= seconds <= _MOST_S or name in found:
            raise ConfigError(
                f"--times: expected encode=SECONDS,denoise=SECONDS,decode=SECONDS, found {part.strip()!r}. Or give a file of "
                "receipts that splitreel generate --json printed."
            )
        found[name] = seconds
    missing = [stage.value for stage in Stage if stage.value not in found]
    if missing:
        raise ConfigError(
            f"--times: expected all three stages, found none for {', '.join(missing)}. Add {missing[0]}=SECONDS."
        )
    return _some(Times(**found))


def _some(times: Times) -> Times:
    if not any(times.of(stage) for stage in Stage):
        raise ConfigError("--times: expected a stage that takes more than 0 seconds, found none. Correct them.")
    return times


def _times_of_file(path: Path) -> Times:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--times: {path}: expected stage times (encode=S,denoise=S,decode=S) or a file of receipts, found "
            f"{plainly(error, path)}. "
            "Correct it, or check the path."
        ) from error
    seconds: dict[str, list[float]] = {stage.value: [] for stage in Stage}
    for number, line in enumerate(lines, start=1):
        try:
            receipt = json.loads(line)
            for each in receipt.get("stages", ()):
                seconds[each["stage"]].append(float(each["seconds"]))
                if not 0 <= seconds[each["stage"]][-1] <= _MOST_S:
                    raise ValueError(f"{each['seconds']} seconds")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"--times: {path} line {number}: expected a receipt of splitreel generate --json, found "
                f"{'another object' if isinstance(error, TypeError | AttributeError) else plainly(error)}. "
                "Give one JSON object per line."
            ) from error
    missing = [stage for stage, values in seconds.items() if not values]
    if missing:
        raise ConfigError(
            f"--times: {path}: expected the seconds of every stage, found none for {', '.join(missing)}. Use receipts of "
            "films that were made."
        )
    return _some(Times(**{stage: statistics.median(values) for stage, values in seconds.items()}))


def layouts(setting: Setting, machines: int) -> Iterator[Layout]:
    """The ways to use exactly so many machines."""
    if machines == 1:
        yield _independent(setting, 1)
        return
    yield _independent(setting, machines)
    yield _split(setting, 1, machines - 1)
    best = max(range(1, machines), key=lambda sides: (_bound(setting, sides, machines - sides), -sides))
    if best > 1:
        yield _split(setting, best, machines - best)
    if machines >= 3:
        yield _three(setting, machines - 2)


def _bound(setting: Setting, sides: int, dits: int) -> float:
    """Films per second at most."""
    side, dit = setting.times.encode + setting.times.decode, setting.times.denoise
    return min(sides / side if side else math.inf, dits / dit if dit else math.inf)


def _independent(setting: Setting, machines: int) -> Layout:
    needs = {
        stage: {
            name: setting.sizes.bytes_of(name, setting.dtype) for name in components_of((stage,), setting.workflows)
        }
        for stage in Stage
    }
    every: dict[str, int] = {}
    for components in needs.values():
        every |= components
    activations = max(setting.film.activation_bytes(stage, setting.sizes.dims) for stage in Stage)
    budget = None
    if setting.machine is not None:
        budget = setting.machine.usable(1) - activations - setting.machine.prompt_cache(tuple(Stage))
    reloads = budget is not None and sum(every.values()) > budget
    obstacle = ""
    if budget is not None:
        stage = max(Stage, key=lambda stage: sum(needs[stage].values()))
        if sum(needs[stage].values()) > budget:
            obstacle = f"{stage} alone does not fit"
    seconds = {stage: setting.times.of(stage) for stage in Stage}
    groups = tuple(
        (Hand(f"machine {index + 1}", seconds, needs if reloads else {}, budget, setting.load_rate),)
        for index in range(machines)
    )
    kind = "reloading" if reloads else "all resident"
    name = f"one machine, {kind}" if machines == 1 else f"{machines} independent, {kind}"
    return Layout(name, machines, groups, reloads, obstacle)


def _split(setting: Setting, sides: int, dits: int) -> Layout:
    decode = setting.times.decode + hop_into(setting, DECODE)
    denoise = setting.times.denoise + hop_into(setting, DENOISE)
    hands = [
        Hand(f"encoder_decoder {index + 1}", {ENCODE: setting.times.encode, DECODE: decode}) for index in range(sides)
    ]
    hands += [Hand(f"dit {index + 1}", {DENOISE: denoise}) for index in range(dits)]
    many = f"{sides} encoder_decoder + " if sides > 1 else ""
    name = "split" if sides == dits == 1 else f"split, {many}{dits} dit"
    return Layout(name, sides + dits, (tuple(hands),), obstacle=obstacle(setting, (ENCODE, DECODE), (DENOISE,)))


def _three(setting: Setting, dits: int) -> Layout:
    decode = setting.times.decode + hop_into(setting, DECODE)
    denoise = setting.times.denoise + hop_into(setting, DENOISE)
    hands = [Hand("encoder 1", {ENCODE: setting.times.encode}), Hand("decoder 1", {DECODE: decode})]
    hands += [Hand(f"dit {index + 1}", {DENOISE: denoise}) for index in range(dits)]
    name = f"three roles{f', {dits} dit' if dits > 1 else ''}"
    return Layout(name, 2 + dits, (tuple(hands),), obstacle=obstacle(setting, (ENCODE,), (DENOISE,), (DECODE,)))


def hop_into(setting: Setting, stage: Stage) -> float:
    """Seconds of the hop into denoise or decode."""
    film, dims = setting.film, setting.sizes.dims
    return (film.denoised_bytes(dims) if stage is DECODE else film.encoded_bytes(dims)) / setting.link_rate


def obstacle(setting: Setting, *roles: tuple[Stage, ...]) -> str:
    """Why roles of these stages, each on a machine of its own, do not fit; empty when they do."""
    if setting.machine is None:
        return ""
    for stages in roles:
        weights = sum(setting.sizes.bytes_of(name, setting.dtype) for name in components_of(stages, setting.workflows))
        activations = max(setting.film.activation_bytes(stage, setting.sizes.dims) for stage in stages)
        if weights + activations + setting.machine.prompt_cache(stages) > setting.machine.usable(1):
            return f"{' and '.join(stages)} do not fit" if len(stages) > 1 else f"{stages[0]} does not fit"
    return ""


def figures(layout: Layout, *, rate: float | None = None, seed: int = 7) -> Figures:
    """Simulate one layout: with a full queue, one film alone, and with `rate` films per hour at random."""
    if layout.obstacle:
        return Figures(
            layout.name, layout.machines, layout.reloads, layout.obstacle, 0.0, math.inf, rate, None, None, ""
        )
    workers = sum(len(group) for group in layout.groups)
    full = simulate(layout.groups, SATURATED, backlog=8 * workers)
    alone = simulate(layout.groups[:1], 4, every=_ALONE_EVERY).latency_last
    met: Outcome | None = None
    if rate is not None and rate < 0.98 * full.per_hour:
        met = simulate(layout.groups, OPEN, rate=rate / 3600, seed=seed)
    busiest = max(full.busy, key=lambda name: full.busy[name])
    return Figures(
        layout.name,
        layout.machines,
        layout.reloads,
        "",
        full.per_hour,
        alone,
        rate,
        met.latency_mean if met else None,
        met.latency_p95 if met else None,
        f"{busiest} {full.busy[busiest]:.0%}",
    )


def verdicts(found: Sequence[Figures]) -> list[str]:
    """For each number of machines: whether the best split makes more films per hour than as many machines alone."""
    lines = []
    for machines in sorted({each.machines for each in found if each.machines > 1}):
        here = [each for each in found if each.machines == machines]
        alone = next(each for each in here if "independent" in each.name)
        splits = [each for each in here if each is not alone and not each.obstacle]
        if not splits:
            why = next(each.obstacle for each in here if each is not alone)
            lines.append(f"{machines} machines: no split is possible: {why}.")
            continue
        best = max(splits, key=lambda each: each.per_hour)
        if alone.obstacle:
            lines.append(
                f"{machines} machines: only a split is possible, because on one machine {alone.obstacle}; {best.name} makes "
                f"{best.per_hour:.1f} films per hour."
            )
            continue
        change = best.per_hour / alone.per_hour - 1
        numbers = f"{best.name} {best.per_hour:.1f} films per hour, {alone.name} {alone.per_hour:.1f} ({change:+.0%})"
        latency = f"one film takes {best.alone:.0f} s against {alone.alone:.0f} s"
        pays = (
            "the split pays"
            if change > 0.02
            else "the split does not pay"
            if change < -0.02
            else "the split changes little"
        )
        if change <= 0.02 and best.alone < 0.95 * alone.alone:
            pays += " in films per hour; it does in waiting"
        lines.append(f"{machines} machines: {pays}: {numbers}; {latency}.")
    return lines
