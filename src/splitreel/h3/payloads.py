"""What each stage takes in. A payload holds what the next stage cannot derive, and nothing else.

`submitted` (driver → encode): the prompt and prepared media. `encoded` (→ denoise): prompt states, tags, condition
latents. `denoised` (→ decode): latents. Noise, layout, positions and row indices are derived on the denoise side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from splitreel.h3.geometry import Geometry
from splitreel.h3.schema import SCHEMA as SCHEMA
from splitreel.request import Stage
from splitreel.wire import FieldSpec, PayloadSpec
from splitreel.wire.spec import FLOATS

KINDS = {Stage.ENCODE: "submitted", Stage.DENOISE: "encoded", Stage.DECODE: "denoised"}
FILM = "film"
# Of a film that several workers decode: the pictures of one share, for the worker that joins them.
PART = "film_part"

# What every stage needs to know about the request; everything else that it needs is in the tensors.
_REQUEST_VALUES: dict[str, type | tuple[type, ...]] = {
    "num_frames": int,
    "height": int,
    "width": int,
    "steps": int,
    "seed": int,
    "output": str,
    "lora": list,  # [id, scale] of each adapter that acts
}


_COUNTS = ("transformer_calls", "cached_steps", "sparse_attention_calls", "dense_attention_calls")


def denoise_counts(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the denoise stage counted, by the names of `Effective`; 0 where an older worker does not say."""
    return {name: int(values.get(name, 0)) for name in _COUNTS}


def payload_spec(stage: Stage, workflow: str, geometry: Geometry) -> PayloadSpec:
    """What `stage` of `workflow` takes in."""
    fields, values = {
        Stage.ENCODE: _submitted,
        Stage.DENOISE: _encoded,
        Stage.DECODE: _denoised,
    }[stage](workflow, geometry)
    return PayloadSpec(kind=KINDS[stage], schema=SCHEMA, fields=fields, values={**_REQUEST_VALUES, **values})


_Parts = tuple[tuple[FieldSpec, ...], dict[str, type | tuple[type, ...]]]


def _submitted(workflow: str, geometry: Geometry) -> _Parts:
    """Pictures (H, W, 3) RGB, clips (F, H, W, 3) at 24 fps on their own canvas, sounds (channels, samples)."""
    fields: tuple[FieldSpec, ...] = ()
    values: dict[str, type | tuple[type, ...]] = {"prompt": str}
    if workflow in ("fl2va", "ref2va"):
        fields = (FieldSpec("pictures", ("uint8",), (None, None, 3), repeated=True, optional=True),)
    if workflow == "fl2va":
        values["keyframe_anchors"] = list
    if workflow == "ref2va":
        fields += (
            FieldSpec("clips", ("uint8",), (None, None, None, 3), repeated=True, optional=True),
            FieldSpec("sounds", ("float32",), (None, None), repeated=True, finite=True, optional=True),
        )
        values["references"] = list
    return fields, values


def _encoded(workflow: str, geometry: Geometry) -> _Parts:
    fields: tuple[FieldSpec, ...] = (
        FieldSpec("prompt_embeds", FLOATS, (1, "text rows", geometry.text_dim), finite=True, on_device=True),
        FieldSpec("text_token_tags", ("int64",), ("text rows",)),
    )
    values: dict[str, type | tuple[type, ...]] = {}
    if workflow in ("fl2va", "ref2va"):
        dims = (1, geometry.latent_channels, None, None, None)
        fields += (FieldSpec("condition_latents", ("float32",), dims, repeated=True, finite=True),)
    if workflow == "fl2va":
        values["keyframe_anchors"] = list
    if workflow == "ref2va":
        rows = (None, geometry.audio_channels)
        fields += (FieldSpec("audio_condition_latents", ("float32",), rows, repeated=True, finite=True),)
        values["references"] = list
    return fields, values


def _denoised(workflow: str, geometry: Geometry) -> _Parts:
    return (
        FieldSpec(
            "latents", ("float32",), (1, geometry.latent_channels, None, None, None), finite=True, on_device=True
        ),
        FieldSpec("audio_latents", ("float32",), (2, geometry.audio_channels, None), finite=True, on_device=True),
    ), {"transformer_calls": int}
