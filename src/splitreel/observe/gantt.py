"""A Gantt picture of the pipeline: a lane per worker, a bar per stage and hop, a tick per step, a colour per kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from splitreel.observe.report import aligned, by_request
from splitreel.observe.spans import SpanRecord
from splitreel.observe.timings import STAGES
from splitreel.words import counted

_SCALE = 2  # pixels per unit: text stays sharp on dense displays
_WIDTH, _LANE, _TOP, _LEFT, _RIGHT, _BOTTOM = 1200, 58, 64, 190, 24, 84
_COLOURS = {
    "encode": "#4c78a8",
    "denoise": "#e0902f",
    "decode": "#3f9b6e",
    "hop.wait": "#d8d8d8",
    "hop.fetch": "#b279a2",
    "hop.materialize": "#7a4988",
    "save": "#8c6d4f",
}
_LABELS = {
    "hop.wait": "hop.wait (producer not done)",
    "hop.fetch": "hop.fetch (into the store)",
    "hop.materialize": "hop.materialize (to the device)",
}
_FAILED, _INK, _FAINT = "#c0272d", "#222222", "#e6e6e6"


def heading(requests: int, seconds: float) -> str:
    """What stands above the picture unless a title is given."""
    return f"{counted(requests, 'request')} in {seconds:.2f} s"


def gantt(spans: Sequence[SpanRecord], *, title: str = "") -> Image.Image:
    """The picture; loading is left out, and the axis begins with the first request."""
    shown = [span for span in aligned(spans) if span.request_id]
    zero = min((span.start for span in shown), default=0.0)
    length = max((span.end for span in shown), default=1.0) - zero or 1.0
    bars = [span for span in shown if span.name in _COLOURS]
    lanes = _lanes(bars)
    height = _TOP + _LANE * max(1, len(lanes)) + _BOTTOM
    image = Image.new("RGB", (_WIDTH * _SCALE, height * _SCALE), "white")
    canvas = _Canvas(ImageDraw.Draw(image))
    numbers = {request: index for index, request in enumerate(by_request(shown), 1)}
    canvas.text((_LEFT, 14), title or heading(len(numbers), length), size=15)
    canvas.text((_LEFT, 36), "bars carry the number of the request, ticks are steps and chunks", size=11, ink="#666666")

    def x(moment: float) -> float:
        return _LEFT + (moment - zero) / length * (_WIDTH - _LEFT - _RIGHT)

    floor = _TOP + _LANE * len(lanes)
    for mark in _marks(length):
        canvas.line((x(zero + mark), _TOP - 4, x(zero + mark), floor), _FAINT)
        canvas.text((x(zero + mark), floor + 4), f"{mark:g} s", size=11, centre=True)
    for lane, (worker, node) in enumerate(lanes):
        top = _TOP + _LANE * lane
        canvas.line((16, top, _WIDTH - _RIGHT, top), _FAINT)
        canvas.text((16, top + 12), worker, size=14)
        canvas.text((16, top + 32), node, size=11, ink="#666666")
        own = [span for span in bars if (span.worker, span.node) == (worker, node)]
        for span in sorted(own, key=lambda item: item.start):
            box = (x(span.start), top + 10, max(x(span.end), x(span.start) + 1), top + _LANE - 10)
            canvas.box(box, _COLOURS[span.name], outline=None if span.status == "ok" else _FAILED)
            if span.name in STAGES:
                canvas.label(box, f"{numbers[span.request_id]}" + ("" if span.status == "ok" else f" {span.status}"))
        for part in shown:
            if (part.worker, part.node) == (worker, node) and part.name in ("denoise.step", "decode.chunk"):
                canvas.line((x(part.end), top + _LANE - 16, x(part.end), top + _LANE - 10), "white")
    _legend(canvas, floor + 30, any(span.status != "ok" for span in bars))
    return image


def save_gantt(spans: Sequence[SpanRecord], path: Path, *, title: str = "") -> None:
    """Write the picture as a PNG. Raises OSError."""
    gantt(spans, title=title).save(path, format="PNG")


class _Canvas:
    """Draws in units of which `_SCALE` pixels make one."""

    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self._draw = draw
        self._fonts: dict[int, ImageFont.FreeTypeFont | ImageFont.ImageFont] = {}

    def _font(self, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        if size not in self._fonts:
            self._fonts[size] = ImageFont.load_default(size * _SCALE)
        return self._fonts[size]

    def width(self, text: str, size: int) -> float:
        return self._draw.textlength(text, font=self._font(size)) / _SCALE

    def text(self, at: tuple[float, float], text: str, *, size: int, ink: str = _INK, centre: bool = False) -> None:
        left = at[0] - self.width(text, size) / 2 if centre else at[0]
        self._draw.text((left * _SCALE, at[1] * _SCALE), text, fill=ink, font=self._font(size))

    def line(self, ends: tuple[float, float, float, float], colour: str) -> None:
        self._draw.line([value * _SCALE for value in ends], fill=colour, width=_SCALE)

    def box(self, corners: tuple[float, float, float, float], colour: str, outline: str | None = None) -> None:
        """A filled box; a white edge parts it from its neighbour where it is wide enough to have one."""
        edge = outline or ("white" if corners[2] - corners[0] > 4 else None)
        width = 3 * _SCALE if outline else _SCALE // 2 if edge else 0
        self._draw.rectangle([value * _SCALE for value in corners], fill=colour, outline=edge, width=width)

    def label(self, corners: tuple[float, float, float, float], text: str) -> None:
        """White text in the middle of a bar that has room for it."""
        if self.width(text, 13) + 4 <= corners[2] - corners[0]:
            self.text(
                ((corners[0] + corners[2]) / 2, (corners[1] + corners[3]) / 2 - 9),
                text,
                size=13,
                ink="white",
                centre=True,
            )


def _lanes(bars: Sequence[SpanRecord]) -> list[tuple[str, str]]:
    """Workers in the order of the stages that they hold, the driver last."""
    order = {name: index for index, name in enumerate(STAGES)}
    first: dict[tuple[str, str], int] = {}
    for span in bars:
        key = (span.worker, span.node)
        rank = len(order) if span.worker == "driver" else order.get(span.name, len(order) - 1)
        first[key] = min(first.get(key, rank), rank)
    return sorted(first, key=lambda key: (key[0] == "driver", first[key], key))


def _marks(length: float) -> list[float]:
    """About ten round moments."""
    rough = length / 10
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [round(index * step, 9) for index in range(int(length / step) + 1)]


def _legend(canvas: _Canvas, top: float, failed: bool) -> None:
    left: float = _LEFT
    entries = [(_LABELS.get(name, name), colour) for name, colour in _COLOURS.items()]
    if failed:
        entries.append(("failed or cancelled", _FAILED))
    for label, colour in entries:
        needed = 22 + canvas.width(label, 12) + 18
        if left + needed > _WIDTH - _RIGHT:
            left, top = _LEFT, top + 24
        canvas.box((left, top, left + 14, top + 14), colour)
        canvas.text((left + 20, top - 1), label, size=12)
        left += needed
