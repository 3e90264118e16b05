"""The two things the folder reads and writes: a sound and a clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Sound:
    """A waveform, float32 (channels, samples) nominally within [-1, 1], and its samples per second.

    Compares and hashes by identity: two arrays have no single truth value.
    """

    waveform: NDArray[np.float32]
    sample_rate: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return float(self.waveform.shape[-1] / self.sample_rate)


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames, uint8 RGB (F, H, W, 3), at a constant `fps`, and the sound that belongs to them.

    Compares and hashes by identity: two arrays have no single truth value.
    """

    frames: NDArray[np.uint8]
    fps: float
    sound: Sound | None = None

    @property
    def seconds(self) -> float:
        """Duration of the picture."""
        return len(self.frames) / self.fps
