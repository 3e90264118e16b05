"""The sweep as a picture: waiting time over request rate, one panel per number of machines. Drawn with PIL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from splitreel.errors import ConfigError
from splitreel.plan.layouts import Figures
from splitreel.words import plainly

PANEL_WIDTH, PANEL_HEIGHT = 560, 380
_MARGIN = {"left": 78, "right": 20, "top": 44, "bottom": 128}
# Told apart by people who do not see red and green (Okabe and Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_INK, _GRID, _PAPER = "#222222", "#dddddd", "#ffffff"


def draw_sweep(rows: Sequence[Figures], path: Path, title: str) -> None:
    """Write the PNG. `rows`: one per layout and rate, those that cannot serve the rate without `p95`."""
    counts = sorted({row.machines for row in rows})
    columns = min(2, len(counts))
    lines = math.ceil(len(counts) / columns)
    image = Image.new("RGB", (columns * PANEL_WIDTH, 50 + lines * PANEL_HEIGHT), _PAPER)
    pen = ImageDraw.Draw(image)
    pen.text((20, 14), title, fill=_INK, font=_font(18))
    rates = sorted({row.rate for row in rows if row.rate is not None})
    served = [row.p95 for row in rows if row.p95 is not None]
    top = _nice(max(served, default=1.0) / 60)
    for index, machines in enumerate(counts):
        at = (index % columns * PANEL_WIDTH, 50 + index // columns * PANEL_HEIGHT)
        _panel(pen, at, [row for row in rows if row.machines == machines], _nice(rates[-1]), top)
    try:
        image.save(path, format="PNG")
    except OSError as error:
        raise ConfigError(
            f"--sweep: expected a place to write {path}, found {plainly(error, path)}. Choose another one."
        ) from error


def _panel(pen: ImageDraw.ImageDraw, at: tuple[int, int], rows: Sequence[Figures], most: float, top: float) -> None:
    left, upper = at[0] + _MARGIN["left"], at[1] + _MARGIN["top"]
    width = PANEL_WIDTH - _MARGIN["left"] - _MARGIN["right"]
    height = PANEL_HEIGHT - _MARGIN["top"] - _MARGIN["bottom"]

    def place(rate: float, minutes: float) -> tuple[float, float]:
        return left + rate / most * width, upper + height - minutes / top * height

    machines = rows[0].machines
    title = f"{machines} machine{'s' if machines > 1 else ''}: minutes within which 95 % of films are there"
    pen.text((left, at[1] + 14), title, fill=_INK, font=_font(15))
    for step in range(5):
        minutes, rate = top * step / 4, most * step / 4
        _, y = place(0, minutes)
        x, _ = place(rate, 0)
        pen.line([(left, y), (left + width, y)], fill=_GRID)
        pen.text((left - 8, y), f"{minutes:g}", fill=_INK, font=_font(12), anchor="rm")
        pen.text((x, upper + height + 6), f"{rate:g}", fill=_INK, font=_font(12), anchor="mt")
    pen.line([(left, upper), (left, upper + height), (left + width, upper + height)], fill=_INK, width=2)
    pen.text((left + width / 2, upper + height + 24), "requests per hour", fill=_INK, font=_font(13), anchor="mt")
    for index, name in enumerate(dict.fromkeys(row.name for row in rows)):
        colour = _COLOURS[index % len(_COLOURS)]
        own = [row for row in rows if row.name == name]
        points = [place(row.rate, row.p95 / 60) for row in own if row.rate is not None and row.p95 is not None]
        if len(points) > 1:
            pen.line(points, fill=colour, width=3, joint="curve")
        for x, y in points:
            pen.ellipse([x - 4, y - 4, x + 4, y + 4], fill=colour)
        says = own[0].obstacle or f"up to {own[0].per_hour:.1f} per hour, {own[0].alone:.0f} s alone"
        key = upper + height + 46 + index * 19
        pen.rectangle([left, key + 3, left + 14, key + 13], fill=colour)
        pen.text((left + 22, key), f"{name}: {says}", fill=_INK, font=_font(13))


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _nice(value: float) -> float:
    """The next of 1, 2, 4, 6, 8, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value - 1e-12)
