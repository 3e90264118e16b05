"""A request's media: read and bounded on the driver, rebuilt for diffusers' blocks on the encode worker.

There is one preprocessing path. The driver decodes (so that unreadable media are refused before anything is sent),
puts clips onto the 24 fps grid and their own canvas exactly as diffusers would, and cuts them to the film's length;
frames that already are there flow through diffusers' blocks untouched. Everything else (resampling sound, resizing
pictures, stereo from mono) is left to the blocks on the encode worker.

Policy: a picture's EXIF orientation is applied, then it becomes RGB; alpha is dropped, not composited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from diffusers.modular_pipelines.minimax_h3 import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3VideoReference,
)
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import resolve_canvas_size
from PIL import Image

from splitreel.config.presets import DEFAULT_STEPS
from splitreel.errors import InvalidPayload, InvalidRequest
from splitreel.h3.geometry import Geometry
from splitreel.h3.limits import FPS
from splitreel.h3.payloads import KINDS, SCHEMA
from splitreel.h3.rules import (
    MIN_REFERENCE_FRAMES,
    check_references,
    check_workflow,
    settle_canvas,
    settle_num_frames,
)
from splitreel.media import Clip, read_image, read_sound, read_video
from splitreel.request import AudioReference, Effective, GenerateRequest, ImageReference, Stage, VideoReference
from splitreel.wire import Header, Payload


def prepare(
    request: GenerateRequest, geometry: Geometry, workflows: Sequence[str], default_steps: int = DEFAULT_STEPS
) -> tuple[Effective, Payload]:
    """Check a request and make the payload for the encode stage. Raises InvalidRequest; sends nothing."""
    steps = request.steps if request.steps is not None else default_steps
    workflow = check_workflow(request, workflows)
    check_references(request)
    request = request.with_seed()
    assert request.seed is not None
    num_frames, notes = settle_num_frames(request, geometry)
    pictures, first_size = _keyframes(request)
    height, width, canvas_notes = settle_canvas(request, geometry, first_size)
    values: dict[str, Any] = {
        "prompt": request.prompt,
        "num_frames": num_frames,
        "height": height,
        "width": width,
        "steps": steps,
        "seed": request.seed,
        "output": request.output,
        "lora": [],  # the session knows under which ids a request's adapters are loaded
    }
    tensors: dict[str, Any] = {}
    if workflow == "fl2va":
        tensors["pictures"] = pictures
        values["keyframe_anchors"] = [
            anchor for anchor, source in (("first", request.image), ("last", request.last_image)) if source is not None
        ]
    if workflow == "ref2va":
        tensors, values["references"] = _references(request, geometry, num_frames)
    effective = Effective(
        workflow=workflow,
        num_frames=num_frames,
        fps=float(FPS),
        height=height,
        width=width,
        steps=steps,
        transformer_calls=steps - 1,
        seed=request.seed,
        sample_rate=geometry.sample_rate,
        warnings=(*notes, *canvas_notes),
    )
    header = Header(request.request_id, workflow, KINDS[Stage.ENCODE], SCHEMA, geometry.fingerprint, values)
    return effective, Payload(header, tensors)


def _keyframes(request: GenerateRequest) -> tuple[list[torch.Tensor], tuple[int, int] | None]:
    pictures = []
    first_size = None
    for name in ("image", "last_image"):
        source = getattr(request, name)
        if source is None:
            continue
        pixels = read_image(source, name)
        if first_size is None:
            first_size = (pixels.shape[1], pixels.shape[0])
        pictures.append(torch.from_numpy(np.require(pixels, requirements=["C", "W"])))
    return pictures, first_size


def _references(request: GenerateRequest, geometry: Geometry, num_frames: int) -> tuple[dict[str, Any], list[Any]]:
    pictures: list[torch.Tensor] = []
    clips: list[torch.Tensor] = []
    sounds: list[torch.Tensor] = []
    described: list[dict[str, Any]] = []
    for index, reference in enumerate(request.references):
        where = f"references[{index}]"
        match reference:
            case ImageReference():
                pixels = read_image(reference.source, where)
                _check_aspect(pixels.shape[1], pixels.shape[0], where)
                pictures.append(torch.from_numpy(np.require(pixels, requirements=["C", "W"])))
                described.append({"kind": "image"})
            case VideoReference():
                clip = _read_clip(reference, geometry, num_frames, where)
                clips.append(torch.from_numpy(np.require(clip.frames, requirements=["C", "W"])))
                entry: dict[str, Any] = {"kind": "video"}
                if clip.sound is not None:
                    entry["sample_rate"] = clip.sound.sample_rate
                    sounds.append(torch.from_numpy(np.require(clip.sound.waveform, requirements=["C", "W"])))
                described.append(entry)
            case AudioReference():
                sound = read_sound(reference.source, where, max_seconds=num_frames / FPS)
                sounds.append(torch.from_numpy(np.require(sound.waveform, requirements=["C", "W"])))
                described.append({"kind": "audio", "sample_rate": sound.sample_rate})
    tensors = {name: items for name, items in (("pictures", pictures), ("clips", clips), ("sounds", sounds)) if items}
    return tensors, described


def _read_clip(reference: VideoReference, geometry: Geometry, num_frames: int, where: str) -> Clip:
    def canvas(width: int, height: int) -> tuple[int, int]:
        _check_aspect(width, height, where)
        size: tuple[int, int] = resolve_canvas_size(
            width, height, geometry.canvas_multiple, geometry.canvas_short_edge, geometry.canvas_max_pixels
        )
        return size

    source: Any = reference.source
    if isinstance(source, np.ndarray):
        if reference.fps is None:
            raise InvalidRequest(
                f"{where}: expected fps beside frames given as an array, found none. A wrong rate would change the speed.",
                field=where,
            )
        source = Clip(frames=source, fps=reference.fps, sound=reference.sound)
    elif reference.sound is not None:
        raise InvalidRequest(
            f"{where}: expected sound only beside frames given as an array, found a file.", field=where
        )
    clip = read_video(source, where, max_frames=num_frames, fps=float(FPS), canvas=canvas, source_fps=reference.fps)
    if len(clip.frames) < MIN_REFERENCE_FRAMES:
        raise InvalidRequest(
            f"{where}: expected a clip of at least {MIN_REFERENCE_FRAMES / FPS:.2f} seconds ({MIN_REFERENCE_FRAMES} frames "
            f"at {FPS} fps), found {len(clip.frames) / FPS:.2f} seconds. The conditioner reads it at 2 frames per second "
            "and needs two.",
            field=where,
        )
    return clip


def _check_aspect(width: int, height: int, where: str) -> None:
    if width > 4 * height or height > 4 * width:
        raise InvalidRequest(f"{where}: expected a shape between 1:4 and 4:1, found {width}x{height}.", field=where)


def encode_inputs(payload: Payload, geometry: Geometry) -> dict[str, Any]:
    """The inputs of the encode blocks, rebuilt on the worker."""
    values = payload.header.values
    inputs: dict[str, Any] = {"prompt": values["prompt"]}
    workflow = payload.header.workflow
    if workflow == "t2va":
        return inputs
    inputs |= {"height": values["height"], "width": values["width"]}
    pictures = iter(_tensors(payload, "pictures"))
    if workflow == "fl2va":
        for anchor in values["keyframe_anchors"]:
            inputs["image" if anchor == "first" else "last_image"] = Image.fromarray(next(pictures).numpy())
        return inputs
    clips, sounds = iter(_tensors(payload, "clips")), iter(_tensors(payload, "sounds"))
    references: list[Any] = []
    try:
        for entry in values["references"]:
            rate = entry.get("sample_rate")
            match entry["kind"]:
                case "image":
                    references.append(MiniMaxH3ImageReference(image=Image.fromarray(next(pictures).numpy())))
                case "video":
                    sound = next(sounds) if rate is not None else None
                    frames = next(clips).numpy()
                    references.append(
                        MiniMaxH3VideoReference(frames=frames, fps=float(FPS), audio=sound, sample_rate=rate)
                    )
                case "audio":
                    references.append(MiniMaxH3AudioReference(audio=next(sounds), sample_rate=rate))
    except StopIteration:
        raise InvalidPayload("references: expected a tensor for each, found fewer.", field="references") from None
    return {**inputs, "references": references, "num_frames": values["num_frames"]}


def _tensors(payload: Payload, name: str) -> list[torch.Tensor]:
    value = payload.tensors.get(name, [])
    return [value] if isinstance(value, torch.Tensor) else list(value)
