"""Checkpoints' settings by name: what a request and a role get that say nothing themselves.

Data alone; that a checkpoint has the shifts that its preset says is checked where its schedulers are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from splitreel.config.slices import ScheduleSpec, VsaSpec

DEFAULT_STEPS = 50


@dataclass(frozen=True)
class Preset:
    """`steps` of a request, the checkpoint's `schedule`, and the sparse attention that it was trained with."""

    steps: int
    schedule: ScheduleSpec
    vsa: VsaSpec | None = None


# Steps are sigma points, one more than transformer calls. What the two FastH3 checkpoints were trained with is said in
# FastVideo's docs/inference/fasth3-distilled.md and examples/inference/basic/basic_fasth3.py.
PRESETS: dict[str, Preset] = {
    "h3": Preset(DEFAULT_STEPS, ScheduleSpec("h3", 12.0, 3.0)),
    "fasth3-4step": Preset(5, ScheduleSpec("fasth3-4step", 12.0, 3.0), VsaSpec(tile=64, sparsity=0.9)),
    # Distilled at these noise levels only (of 1000, before the shift); a uniform grid of nine points is not the same.
    "fasth3-8step-v2": Preset(
        9,
        ScheduleSpec("fasth3-8step-v2", 10.0, 3.0, rungs=(999, 874, 749, 624, 500, 375, 250, 125)),
        VsaSpec(tile=64, sparsity=0.8),
    ),
}
