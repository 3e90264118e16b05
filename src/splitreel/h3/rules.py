"""The model's rules for a request, checked on the driver against the checkpoint's geometry before anything is sent.

They are diffusers' rules, applied to all three workflows alike, with messages that give the nearest legal values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from diffusers.modular_pipelines.minimax_h3.modular_pipeline import resolve_canvas_size

from splitreel.errors import InvalidRequest
from splitreel.h3.geometry import Geometry
from splitreel.h3.limits import FPS
from splitreel.request import GenerateRequest

MAX_REFERENCES = {"image": 9, "video": 3, "audio": 3}
MAX_REFERENCES_IN_ALL = 12
# The conditioner reads a reference video at 2 frames per second and merges sampled frames in pairs, so two of them are
# needed: frames 0 and 12 of the 24 fps grid (diffusers' MiniMaxH3Ref2VATextEncoderStep, Qwen3-VL's temporal patch).
MIN_REFERENCE_FRAMES = 13


def check_workflow(request: GenerateRequest, workflows: Sequence[str]) -> str:
    """The request's workflow. Raises InvalidRequest when this deployment does not serve it."""
    if request.references and (request.image is not None or request.last_image is not None):
        raise InvalidRequest(
            "references, image: expected keyframes (fl2va) or references (ref2va), found both. Leave one out.",
            field="references",
        )
    if request.workflow not in workflows:
        inputs = {"t2va": "no keyframes and no references", "fl2va": "image or last_image", "ref2va": "references"}
        raise InvalidRequest(
            f"workflow: this deployment serves {' and '.join(workflows)} ({'; '.join(inputs[name] for name in workflows)}), "
            f"found a request with {inputs[request.workflow]}, which is {request.workflow}. Change the inputs, or "
            "model.workflow in the config.",
            field="workflow",
        )
    return request.workflow


def settle_num_frames(request: GenerateRequest, geometry: Geometry) -> tuple[int, tuple[str, ...]]:
    """The frame count that will be made, and what was rounded."""
    if request.seconds is not None:
        # More is refused all the same, and multiplied out may be more than a float holds.
        asked = math.ceil(round(min(max(request.seconds, -1e6), 1e6) * FPS, 6))
        field, shown = "seconds", f"{request.seconds:g}"
    elif request.num_frames is not None:
        asked, field, shown = request.num_frames, "num_frames", str(request.num_frames)
    else:
        return geometry.legal_num_frames()[0], ()
    return geometry.limits.settle_num_frames(asked, field, shown)


def settle_canvas(
    request: GenerateRequest, geometry: Geometry, first_size: tuple[int, int] | None
) -> tuple[int, int, tuple[str, ...]]:
    """Height and width that will be made. `first_size`: (width, height) of the first keyframe, if there is one."""
    multiple = geometry.canvas_multiple
    if request.height is None or request.width is None:
        shape = first_size or (16, 9)
        try:
            height, width = resolve_canvas_size(
                *shape, multiple, geometry.canvas_short_edge, geometry.canvas_max_pixels
            )
        except ValueError:
            raise InvalidRequest(
                f"image: expected a picture between 1:4 and 4:1, found {shape[0]}x{shape[1]}. Crop it, or give height and "
                "width.",
                field="image",
            ) from None
        return height, width, _stretched(first_size, height, width, "the canvas has whole steps of " + str(multiple))
    height, width = request.height, request.width
    geometry.limits.check_canvas(height, width)
    return height, width, _stretched(first_size, height, width, "leave height and width out to come nearer")


def _stretched(first_size: tuple[int, int] | None, height: int, width: int, why: str) -> tuple[str, ...]:
    """A note when the first keyframe changes its shape by more than 3 %."""
    if first_size is None:
        return ()
    off = abs(first_size[0] / first_size[1] / (width / height) - 1)
    if off <= 0.03:
        return ()
    size = f"{first_size[0]}x{first_size[1]}"
    return (f"the first keyframe ({size}) is stretched onto {width}x{height}, {off:.0%} off its shape; {why}",)


def check_references(request: GenerateRequest) -> None:
    """Counts per kind and in all. Raises InvalidRequest that says which limit."""
    kinds = [reference.kind for reference in request.references]
    for kind, limit in MAX_REFERENCES.items():
        if kinds.count(kind) > limit:
            raise InvalidRequest(
                f"references: expected at most {limit} of kind {kind}, found {kinds.count(kind)}.", field="references"
            )
    if len(kinds) > MAX_REFERENCES_IN_ALL:
        raise InvalidRequest(
            f"references: expected at most {MAX_REFERENCES_IN_ALL} in all, found {len(kinds)}.", field="references"
        )
    if kinds and set(kinds) == {"audio"}:
        raise InvalidRequest(
            "references: expected a picture or a video beside sound, found sound alone. The model cannot condition on "
            "sound only.",
            field="references",
        )
