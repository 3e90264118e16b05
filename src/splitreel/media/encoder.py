"""An mp4 encoded in a thread of its own, while its pictures are still being made."""

from __future__ import annotations

import io
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from splitreel.media.write import FilmWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A chunk being encoded and one waiting: more would hold frames for nothing, fewer would let the maker of them wait.
_AHEAD = 2


class FilmEncoder:
    """Takes frames and sound as they come; `finish` gives the file's bytes. End it with `finish` or `discard`.

    An error of the encoder is raised by the next call.
    """

    def __init__(self, *, width: int, height: int, fps: float, sample_rate: int | None) -> None:
        self._buffer = io.BytesIO()
        self._film = FilmWriter(self._buffer, width=width, height=height, fps=fps, sample_rate=sample_rate)
        self._thread = ThreadPoolExecutor(1, "splitreel-encoder")
        self._under_way: list[Future[None]] = []

    def write(self, frames: NDArray[np.uint8], waveform: NDArray[np.float32]) -> None:
        """Append uint8 RGB (n, H, W, 3) frames and the float32 (2, m) samples beside them; waits when two are ahead."""
        while len(self._under_way) >= _AHEAD:
            self._under_way.pop(0).result()
        self._under_way.append(self._thread.submit(self._write, frames, waveform))

    def _write(self, frames: NDArray[np.uint8], waveform: NDArray[np.float32]) -> None:
        self._film.write_frames(frames)
        if waveform.size:
            self._film.write_sound(waveform)

    def finish(self, waveform: NDArray[np.float32]) -> bytes:
        """Append the last samples, wait for the encoder, and return the mp4."""
        try:
            for part in self._under_way:
                part.result()
            if waveform.size:
                self._film.write_sound(waveform)
            self._film.close()
        finally:
            self.discard()
        return self._buffer.getvalue()

    def discard(self) -> None:
        """Stop, and drop what is not finished; harmless after `finish`."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._film.discard()
