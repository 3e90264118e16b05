"""Ways out where a model does not fit: settings, other cuts, smaller films, more machines. Each is computed, and fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from splitreel.h3.released import FilmSize
from splitreel.plan.memory import (
    Machine,
    WorkerPlan,
    cuts,
    describe_layout,
    fitting_layouts,
    forecast,
    need_of,
    plain_worker,
    shown,
)
from splitreel.plan.sizes import Sizes, components_of
from splitreel.request import Stage

MOST_MACHINES = 4  # that are tried beside those given
Change = Callable[[WorkerPlan], WorkerPlan]


@dataclass(frozen=True)
class Setting:
    """A setting that makes a worker smaller; `change` returns the worker as it is where there is nothing to gain."""

    says: str
    change: Change


def ways_out(workers: Sequence[WorkerPlan], machines: Sequence[Machine], sizes: Sizes, film: FilmSize) -> Iterator[str]:
    """Sentences, what changes least first: settings of these workers, other cuts, smaller films, more machines."""
    workflows = tuple(dict.fromkeys(name for worker in workers for name in worker.workflows))
    settings = _settings(workflows)

    def fits(chosen: Sequence[Setting], film: FilmSize = film) -> bool:
        return forecast(_with(workers, chosen), machines, sizes, film, search=False).fits

    helps = [setting for setting in settings if _with(workers, [setting]) != list(workers)]
    alone = list(_least(helps, fits))
    yield from (_said(chosen) for chosen in alone)

    def layout(chosen: Sequence[Setting], more: Sequence[Machine] = ()) -> str | None:
        def change(worker: WorkerPlan) -> WorkerPlan:
            return _with([worker], chosen)[0]

        found = next(fitting_layouts([*machines, *more], sizes, film, workflows, "bfloat16", change), None)
        return describe_layout(found) if found is not None else None

    # A cut from scratch is in bfloat16, so that is no setting of it.
    makeshifts = [setting for setting in settings if setting is not _BFLOAT16]
    cut = _first(makeshifts, layout)
    least = min((len(chosen) for chosen in alone), default=len(settings) + 1)
    if cut is not None and (not cut[0] or len(cut[0]) < least):
        yield f"another cut: {cut[1]}{_with_settings(cut[0])}"
    for smaller in _smaller(film, sizes):
        if fits((), smaller):
            yield f"smaller films: up to {smaller.num_frames} frames at {smaller.width}x{smaller.height}"
            break
    if len(workflows) > 1:
        for workflow in workflows:
            single = [replace(worker, workflows=(workflow,)) for worker in workers]
            if forecast(single, machines, sizes, film, search=False).fits:
                yield f"one workflow at a time: model.workflow: {workflow}"
    if cut is not None and not cut[0]:
        return  # these machines are enough
    yield from _more_machines(machines, min(least, len(cut[0]) if cut is not None else least), makeshifts, layout)
    if cut is None and not alone:
        yield _larger(machines, workflows, sizes, film, makeshifts)


def _more_machines(
    machines: Sequence[Machine],
    least: int,
    settings: Sequence[Setting],
    layout: Callable[[Sequence[Setting], Sequence[Machine]], str | None],
) -> Iterator[str]:
    """As many more as do without some of the `least` settings that are needed now."""
    largest = max(machines, key=lambda machine: machine.usable(1))
    for count in range(1, MOST_MACHINES + 1):
        more = [replace(largest, name=f"{'one' if count == 1 else index + 1} more") for index in range(count)]
        found = _first(settings, lambda chosen, more=more: layout(chosen, more))  # type: ignore[misc]
        if found is not None and len(found[0]) < least:
            least = len(found[0])
            many = "one more machine" if count == 1 else f"{count} more machines"
            yield f"{many} of {shown(largest.bytes)}: {found[1]}{_with_settings(found[0])}"
        if least == 0:
            return


def _larger(
    machines: Sequence[Machine],
    workflows: Sequence[str],
    sizes: Sizes,
    film: FilmSize,
    settings: Sequence[Setting],
) -> str:
    def evenest(chosen: Sequence[Setting]) -> str:
        needs = [
            {role: need_of(_with([plain_worker(role, served)], chosen)[0], sizes, film).total for role, served in cut}
            for cut in cuts(workflows)
            if len(cut) <= max(2, len(machines))
        ]
        least = min(needs, key=lambda need: max(need.values()))
        return " and ".join(f"{shown(amount)} for {role}" for role, amount in least.items())

    return (
        f"larger machines: the evenest cut takes {evenest(())}; with tables and 8 bits {evenest(settings)}; "
        "a component is never split"
    )


# Settings -------------------------------------------------------------------------------------------------------------


def _bfloat16(worker: WorkerPlan) -> WorkerPlan:
    return replace(worker, dtypes=(("default", "bfloat16"),))


def _used(worker: WorkerPlan) -> WorkerPlan:
    return replace(worker, memory=replace(worker.memory, text_encoder="used"))


def _tables(worker: WorkerPlan) -> WorkerPlan:
    return replace(worker, memory=replace(worker.memory, adaln="tables")) if Stage.DENOISE in worker.stages else worker


def _in_8_bits(stage: Stage, prefix: str) -> Change:
    def change(worker: WorkerPlan) -> WorkerPlan:
        if stage not in worker.stages:
            return worker
        kinds = dict(worker.memory.quantization)
        names = [name for name in components_of((stage,), worker.workflows) if name.startswith(prefix)]
        kinds = dict.fromkeys(names, "int8") | kinds
        return replace(worker, memory=replace(worker.memory, quantization=tuple(sorted(kinds.items()))))

    return change


_BFLOAT16 = Setting("dtype: bfloat16 for every role", _bfloat16)
_USED = Setting("of the text encoder only what is read, with the same result: memory.text_encoder: used", _used)
_TABLES = Setting(
    "the transformer's AdaLN as tables, with the same result: memory.adaln: tables for the role that denoises", _tables
)


def _settings(workflows: Sequence[str]) -> list[Setting]:
    """All of them, those that change no result first."""
    transformers = components_of((Stage.DENOISE,), workflows)
    kinds = ", ".join(f"{name}: int8" for name in transformers)
    denoising = (
        f"the transformer in 8 bits, which changes results: memory.quantization: {{{kinds}}} for the role that denoises"
    )
    encoding = (
        "the text encoder in 8 bits, which changes results: memory.quantization: {text_encoder: int8} for the role "
        "that encodes"
    )
    return [
        _USED,
        _TABLES,
        _BFLOAT16,
        Setting(encoding, _in_8_bits(Stage.ENCODE, "text_encoder")),
        Setting(denoising, _in_8_bits(Stage.DENOISE, "transformer")),
    ]


def _with(workers: Sequence[WorkerPlan], chosen: Sequence[Setting]) -> list[WorkerPlan]:
    changed = list(workers)
    for setting in chosen:
        changed = [setting.change(worker) for worker in changed]
    return changed


def _combinations(settings: Sequence[Setting]) -> Iterator[tuple[Setting, ...]]:
    for size in range(len(settings) + 1):
        yield from itertools.combinations(settings, size)


def _least(settings: Sequence[Setting], fits: Callable[[Sequence[Setting]], bool]) -> Iterator[tuple[Setting, ...]]:
    """Each combination that fits and holds no smaller one that does."""
    found: list[set[str]] = []
    for chosen in _combinations(settings):
        names = {setting.says for setting in chosen}
        if any(smaller <= names for smaller in found) or not fits(chosen):
            continue
        found.append(names)
        yield chosen


def _first(
    settings: Sequence[Setting], layout: Callable[[Sequence[Setting]], str | None]
) -> tuple[tuple[Setting, ...], str] | None:
    """The smallest combination with which some layout fits, and that layout."""
    for chosen in _combinations(settings):
        found = layout(chosen)
        if found is not None:
            return chosen, found
    return None


def _said(chosen: Sequence[Setting]) -> str:
    return ("together: " if len(chosen) > 1 else "") + "; ".join(setting.says for setting in chosen)


def _with_settings(chosen: Sequence[Setting]) -> str:
    return f"; with {'; '.join(setting.says for setting in chosen)}" if chosen else ""


def _smaller(film: FilmSize, sizes: Sizes) -> Iterator[FilmSize]:
    """Smaller films, longest first at the same canvas, then at 832x480."""
    clip = sizes.dims.clip_length
    shorter = range(film.num_frames - clip, 5 * 24, -clip)
    for height, width in dict.fromkeys([(film.height, film.width), (480, 832)]):
        if height * width > film.height * film.width:
            continue
        counts = shorter if (height, width) == (film.height, film.width) else [film.num_frames, *shorter]
        yield from (replace(film, height=height, width=width, num_frames=count) for count in counts)
