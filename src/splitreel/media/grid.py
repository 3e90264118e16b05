"""Frames of any rate onto a constant one: which grid slots each source frame fills.

Whole frames are dropped and repeated, nothing is blended. For a constant source rate the arithmetic is that of
diffusers: frame i starts at slot floor(i * target / rate + 0.5), each is held until the
next one starts, and the last until floor(n * target / rate + 0.5).
"""

from __future__ import annotations

import math


class Grid:
    """Gives the slots of one stream of frames, one frame at a time.

    `rate`: the source's stated frames per second, or None when only timestamps are known. `tick`: the resolution of
    its timestamps in seconds. A frame whose timestamp agrees with the stated rate, within the rounding of the
    container, counts as exactly on it; any other is placed by its timestamp.
    """

    def __init__(self, target: float, rate: float | None, tick: float = 0.0) -> None:
        self._rate = target if rate is None else rate
        self._scale = target / self._rate
        # Millisecond containers round both ends of an interval; a quarter of a frame keeps a dropped frame visible.
        self._tolerance = 0.0 if rate is None else min(max(1.1 * tick, 0.0011) * rate, 0.25)
        self._count = 0
        self._position = -1.0  # of the newest frame, in source frames
        self._step = 1.0  # how long it is held unless the next one says otherwise
        self._start: float | None = None

    def start_of(self, time: float | None, duration: float | None = None) -> int:
        """Slot where the next frame starts. `time`, `duration`: its timestamps in seconds, as far as known.

        A timestamp that does not grow is taken as absent; a frame without one follows the one before it.
        """
        position = self._position + self._step
        if time is not None:
            if self._start is None:
                self._start = time
            stated = (time - self._start) * self._rate
            if abs(stated - self._count) <= self._tolerance:
                position = float(self._count)
            elif stated > self._position:
                position = stated
        if position == self._count:
            self._step = 1.0
        elif duration:
            self._step = duration * self._rate
        elif self._count:
            self._step = position - self._position
        self._position = position
        self._count += 1
        return math.floor(position * self._scale + 0.5)

    def end(self) -> int:
        """Slot where the newest frame ends if it is the last."""
        return math.floor((self._position + self._step) * self._scale + 0.5)
