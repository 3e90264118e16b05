"""A plan as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from splitreel.plan.layouts import Figures
from splitreel.plan.memory import Forecast, Load, describe_layout, shown
from splitreel.plan.partitions import Share
from splitreel.request import Stage


def memory_text(found: Forecast) -> str:
    """Machine by machine, then what travels, then the verdict with its ways out."""
    film = found.film
    lines = [
        f"Film: {film.num_frames} frames at {film.width}x{film.height}, {film.text_rows} rows of prompt "
        f"({film.rows(found.sizes.dims):,} rows in the transformer)",
        f"Sizes: {found.sizes.source}",
        "",
    ]
    for load in found.loads:
        lines += _machine(load)
    lines += [
        f"Travels: encode → denoise {shown(film.encoded_bytes(found.sizes.dims))}, denoise → decode "
        f"{shown(film.denoised_bytes(found.sizes.dims))}",
        "",
    ]
    tight = [load for load in found.loads if load.verdict == "tight"]
    if found.fits:
        lines.append(f"It fits: {describe_layout(found)}.")
        lines += [
            f"Tight: {load.machine.name} has {shown(load.room)} to spare. Activations are estimates; start with smaller films."
            for load in tight
        ]
    else:
        lines.append("It does not fit:")
        lines += [f"  {line}" for line in shortfalls(found)]
        lines += ["Ways out:", *(f"  - {way}" for way in found.ways_out)]
    return "\n".join(lines)


def shortfalls(found: Forecast) -> list[str]:
    """One line per machine that is short: by how much, and what takes most."""
    lines = []
    for load in found.loads:
        if load.room < 0:
            held = {name: size for need in load.needs for name, size in need.weights.items()}
            largest = max(held, key=lambda name: held[name])
            roles = " and ".join(need.worker.role for need in load.needs)
            lines.append(
                f"{load.machine.name}: {roles}: expected {shown(load.needed)} of memory, found {shown(load.usable)} of "
                f"{shown(load.machine.bytes)} usable: {shown(-load.room)} short. The largest part is {largest}, "
                f"{shown(held[largest])}."
            )
    return lines


def _machine(load: Load) -> Iterator[str]:
    kind = ", unified" if load.machine.unified else ""
    yield f"{load.machine.name} ({shown(load.machine.bytes)}{kind}; {shown(load.usable)} for models)"
    for need in load.needs:
        served = ", ".join(need.worker.workflows)
        yield f"  {need.worker.role} ({', '.join(need.worker.stages)}; {served})"
        for name, size in need.weights.items():
            yield f"    {name:<18}{shown(size):>10}"
        stage = max(need.activations, key=lambda name: need.activations[name])
        yield f"    {f'while it {stage}s':<18}{shown(need.activations[stage]):>10}"
    if load.needs:
        yield f"  {'together':<20}{shown(load.needed):>10}  {load.verdict}, {shown(abs(load.room))} " + (
            "short" if load.room < 0 else "to spare"
        )
    else:
        yield "  no role: nothing of this model fits here"
    yield ""


def memory_json(found: Forecast) -> dict[str, Any]:
    """The forecast as plain data; bytes as numbers."""
    film, dims = found.film, found.sizes.dims
    return {
        "fits": found.fits,
        "sizes": found.sizes.source,
        "film": {
            "height": film.height,
            "width": film.width,
            "num_frames": film.num_frames,
            "text_rows": film.text_rows,
            "rows": film.rows(dims),
            "encoded_bytes": film.encoded_bytes(dims),
            "denoised_bytes": film.denoised_bytes(dims),
            "activation_bytes": {stage.value: film.activation_bytes(stage, dims) for stage in Stage},
        },
        "machines": [
            {
                "name": load.machine.name,
                "bytes": load.machine.bytes,
                "unified": load.machine.unified,
                "usable_bytes": load.usable,
                "needed_bytes": load.needed,
                "room_bytes": load.room,
                "verdict": load.verdict,
                "workers": [
                    {
                        "role": need.worker.role,
                        "workflows": list(need.worker.workflows),
                        "weights": need.weights,
                        "activations": need.activations,
                    }
                    for need in load.needs
                ],
            }
            for load in found.loads
        ],
        "shortfalls": shortfalls(found),
        "ways_out": list(found.ways_out),
    }


_COLUMNS = ("layout", "machines", "films/h", "per machine", "alone", "mean", "95 %", "busiest")


def figures_text(found: Sequence[Figures], verdicts: Sequence[str]) -> str:
    """A table of layouts and a sentence per number of machines."""
    rate = found[0].rate if found else None
    at = f" Waiting at {rate:g} requests per hour, which arrive at random." if rate else ""
    rows = [_COLUMNS, *(_row(each) for each in found)]
    if rate is None:
        rows = [(*row[:5], row[7]) for row in rows]
    return "\n".join(
        [f"Throughput with a full queue; alone: one film and nothing else.{at}", "", *_table(rows), "", *verdicts]
    )


def shares_text(found: Sequence[Share], advice: Sequence[str]) -> str:
    """A table of partitions and what to take."""
    rows = [("partition", "machines", "films/h", "DiT busy")]
    for each in found:
        numbers = (each.obstacle, "-") if each.obstacle else (f"{each.per_hour:.1f}", f"{each.dit_busy:.0%}")
        rows.append((each.name, str(each.machines), *numbers))
    return "\n".join([*_table(rows), "", *advice])


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns, the first to the left and the others to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _row(each: Figures) -> tuple[str, ...]:
    if each.obstacle:
        return (each.name, str(each.machines), "-", "-", "-", "-", "-", each.obstacle)

    def seconds(value: float | None) -> str:
        return "too much" if value is None else f"{value:.0f} s"

    return (
        each.name,
        str(each.machines),
        f"{each.per_hour:.1f}",
        f"{each.per_hour / each.machines:.1f}",
        seconds(each.alone),
        seconds(each.mean),
        seconds(each.p95),
        each.busiest,
    )


def figures_csv(found: Sequence[Figures]) -> str:
    """One line per layout and rate; empty where a layout cannot serve the rate."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        (
            "layout",
            "machines",
            "obstacle",
            "films_per_hour",
            "alone_s",
            "rate_per_hour",
            "latency_mean_s",
            "latency_p95_s",
        )
    )
    for each in found:
        numbers = ("", "") if each.obstacle else (f"{each.per_hour:.3f}", f"{each.alone:.2f}")
        waits = tuple("" if value is None else f"{value:.2f}" for value in (each.mean, each.p95))
        rate = "" if each.rate is None else f"{each.rate:g}"
        writer.writerow((each.name, each.machines, each.obstacle, *numbers, rate, *waits))
    return out.getvalue()
