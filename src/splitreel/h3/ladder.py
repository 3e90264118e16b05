"""A preset's schedule: the shifts that a checkpoint must have, and the noise levels that a distilled one was trained at."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import MiniMaxH3Scheduler

from splitreel.config import ScheduleSpec
from splitreel.errors import CheckpointError
from splitreel.observe.logs import get_logger

logger = get_logger(__name__)


class LadderScheduler(MiniMaxH3Scheduler):  # type: ignore[misc]
    """diffusers' scheduler with fixed noise levels where a request has one step for each, and a zero."""

    def set_rungs(self, rungs: tuple[int, ...]) -> LadderScheduler:
        """Noise levels of 1000, falling, before the shift and without the zero."""
        self._rungs = rungs
        return self

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: Any = None,
        sigmas: list[float] | torch.Tensor | None = None,
    ) -> None:
        """As in diffusers, but for `num_inference_steps` of the rungs and a zero."""
        if sigmas is None and num_inference_steps == len(self._rungs) + 1:
            levels = torch.tensor([*self._rungs, 0], dtype=torch.float64) / 1000
            sigmas = (self.shift * levels / (1 + (self.shift - 1) * levels)).float()
        elif sigmas is None:
            logger.warning(
                "%s steps: this checkpoint was distilled for %d; a uniform schedule of another length is no substitute",
                num_inference_steps,
                len(self._rungs) + 1,
            )
        super().set_timesteps(num_inference_steps, device=device, sigmas=sigmas)


def scheduled(name: str, scheduler: Any, schedule: ScheduleSpec | None, file: str) -> Any:
    """The scheduler that a component called `name` is used as. Raises CheckpointError when its shift is not the preset's."""
    if schedule is None or name not in ("scheduler", "audio_scheduler"):
        return scheduler
    expected = schedule.video_shift if name == "scheduler" else schedule.audio_shift
    if scheduler.shift != expected:
        raise CheckpointError(
            f"model.preset: expected the {name} of {schedule.preset} with shift {expected:g}, found {scheduler.shift:g} in "
            f"{file}. Choose the preset of this checkpoint, or none.",
            component=name,
            file=file,
        )
    if not schedule.rungs:
        return scheduler
    return LadderScheduler(shift=scheduler.shift).set_rungs(schedule.rungs)
