"""How long and how large a film may be: the rules that need no checkpoint open and no library imported.

Requests are checked by them (`rules`), and so is what a plan is asked about. The numbers are fixed in diffusers' code for
every checkpoint (modular_pipelines/minimax_h3/modular_pipeline.py); tests/contract/test_plan_facts.py compares them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from splitreel.errors import InvalidRequest

FPS = 24
MIN_SECONDS, MAX_SECONDS = 5.0, 15.0
MIN_ASPECT, MAX_ASPECT = 1 / 4, 4.0
CANVAS_MAX_PIXELS = 768 * 1344
# Above this an explicit size is taken for a typing error: four times the release's largest canvas.
MAX_CANVAS_PIXELS = 4 * CANVAS_MAX_PIXELS


@dataclass(frozen=True)
class Limits:
    """Of one checkpoint. `canvas_multiple`: of height and width; `frames_per_chunk` frames become `latents_per_chunk` latent
    frames; `canvas_max_pixels`: what the model was trained for. Defaults are the release's.
    """

    canvas_multiple: int = 32
    frames_per_chunk: int = 17
    latents_per_chunk: int = 5
    canvas_max_pixels: int = CANVAS_MAX_PIXELS

    def align_num_frames(self, num_frames: int) -> int:
        """The next `frames_per_chunk * n + latents_per_chunk`, which is what the video VAE can decode."""
        return num_frames + (self.latents_per_chunk - num_frames) % self.frames_per_chunk

    def legal_num_frames(self) -> range:
        """Every frame count that can be generated, from 5 to 15 seconds: 124, 141, ... 345 in the release."""
        first = self.align_num_frames(math.ceil(MIN_SECONDS * FPS))
        return range(first, int(MAX_SECONDS * FPS) + 1, self.frames_per_chunk)

    def settle_num_frames(self, asked: int, field: str, shown: str) -> tuple[int, tuple[str, ...]]:
        """The frame count that will be made of `asked`, and what was rounded. `field`, `shown`: what the user gave, in
        whichever unit. Raises InvalidRequest.
        """
        legal = self.legal_num_frames()
        rule = f"{self.frames_per_chunk} n + {self.latents_per_chunk}"
        settled = self.align_num_frames(asked) if asked > 0 else asked
        if settled not in legal:
            nearest = min(legal, key=lambda count: abs(count - asked))
            near = 0 < asked < 2 * legal[-1]
            rounded = f", which rounds up to {settled} frames or {settled / FPS:.3f} s" if near else ""
            raise InvalidRequest(
                f"{field}: expected {legal[0]} to {legal[-1]} frames of the form {rule} ({legal[0]}, {legal[1]}, ... "
                f"{legal[-1]}), that is {legal[0] / FPS:.3f} to {legal[-1] / FPS:.3f} s at {FPS} fps, found {shown}{rounded}. "
                f"Nearest: {nearest} frames ({nearest / FPS:.3f} s).",
                field=field,
            )
        if settled != asked:
            note = f"{field} {shown} was rounded up to {settled} frames ({settled / FPS:.3f} s): the video VAE needs {rule}"
            return settled, (note,)
        return settled, ()

    def check_canvas(self, height: int, width: int) -> None:
        """Raise InvalidRequest for a canvas that cannot be made."""
        multiple = self.canvas_multiple
        if max(height, width) > MAX_CANVAS_PIXELS:
            raise InvalidRequest(
                f"height, width: expected at most {MAX_CANVAS_PIXELS} pixels, found a side of more than that. Name fewer.",
                field="height, width",
            )
        if height <= 0 or width <= 0 or height % multiple or width % multiple:
            near_height, near_width = (max(multiple, round(value / multiple) * multiple) for value in (height, width))
            raise InvalidRequest(
                f"height, width: expected multiples of {multiple}, found {width} wide, {height} high. Nearest: {near_width} "
                f"wide, {near_height} high.",
                field="height, width",
            )
        if not MIN_ASPECT <= width / height <= MAX_ASPECT:
            raise InvalidRequest(
                f"height, width: expected an aspect ratio between 1:4 and 4:1, found {width / height:.2f}:1 ({width} wide, "
                f"{height} high).",
                field="height, width",
            )
        if height * width > MAX_CANVAS_PIXELS:
            raise InvalidRequest(
                f"height, width: expected at most {MAX_CANVAS_PIXELS} pixels, found {height * width} ({width} wide, {height} "
                f"high). The model was trained for up to {self.canvas_max_pixels}.",
                field="height, width",
            )
