"""Decode as a program: latents in, a film out, its pictures chunk by chunk.

diffusers' video block decodes the whole film to float32 before anyone sees a frame: 1.5 GB for 5 s at 1344×768, several
times over. Here each chunk becomes what the request asked for while the next one is decoded. The arithmetic is diffusers',
element by element; the parity tests compare the films bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from splitreel.errors import InvalidPayload
from splitreel.h3.films import film_maker
from splitreel.h3.geometry import Geometry, GeometryPipeline
from splitreel.h3.limits import FPS
from splitreel.h3.payloads import FILM, SCHEMA, denoise_counts
from splitreel.h3.programs import Watches, carried
from splitreel.roles.control import StageControl
from splitreel.wire import Header, Payload


class DecodeProgram:
    """Latents → film, in the form that the request asked for."""

    def __init__(self, pipeline: GeometryPipeline, vae: Any, watches: Watches) -> None:
        """`pipeline` has diffusers' block for the sound alone."""
        self._pipeline = pipeline
        self._vae = vae
        self._watches = watches

    def __call__(self, payload: Payload, control: StageControl) -> Payload:
        values = payload.header.values
        latents = payload.tensors["latents"]
        assert isinstance(latents, Tensor)
        state = self._pipeline(audio_latents=payload.tensors["audio_latents"])
        sound, sample_rate = state.get("audio")[0], int(state.get("sampling_rate"))
        _check("sound", sound)
        calls = decoder_calls(self._vae, self._pipeline.geometry, latents.shape)
        with film_maker(values["output"], values["num_frames"], sound, sample_rate) as film:
            with self._watches.decoder.reporting(control, calls):
                for chunk in self._chunks(latents):
                    _check("video", chunk)
                    film.add(chunk)
            with control.span("encode_file"):
                tensors = film.finish()
        header = payload.header
        return Payload(
            Header(
                request_id=header.request_id,
                workflow=header.workflow,
                kind=FILM,
                schema=SCHEMA,
                geometry=header.geometry,
                values={
                    **carried(values),
                    **denoise_counts(values),
                    "fps": FPS,
                    "sample_rate": sample_rate,
                },
                trace=header.trace,
            ),
            tensors,
        )

    def _chunks(self, latents: Tensor) -> Iterator[Tensor]:
        """(f, 3, H, W) float32 in [0, 1]: denormalised before and after the VAE as diffusers' `decode.video` does."""
        device, config = latents.device, self._vae.config
        mean, std = (_column(numbers, device) for numbers in (config.latents_mean, config.latents_std))
        pixel_mean, pixel_std = (
            _column(numbers, device) for numbers in (self._pipeline.pixel_mean, self._pipeline.pixel_std)
        )
        for chunk in decoded_chunks(self._vae, latents * std + mean):
            yield (chunk.float() * pixel_std + pixel_mean).clamp(0, 1)[0].transpose(0, 1)


def decoded_chunks(vae: Any, latents: Tensor) -> Iterator[Tensor]:
    """What `vae.decode(latents)` would give, (1, 3, f, H, W) pieces in order, each as soon as it is final.

    The loop of diffusers' `AutoencoderKLMiniMaxH3._decode`; a piece is final once its beginning was blended with the end
    of the clip before. Latents that are no whole number of chunks (none of ours) are decoded in one piece.
    """
    chunk, drop = vae.tokens_chunk_size, vae.config.token_drop
    num_tokens = latents.shape[2] + drop
    if num_tokens % chunk:
        yield vae.decode(latents, return_dict=False)[0]
        return
    latents = latents.to(next(vae.post_quant_conv.parameters()).dtype)
    frames = chunk * vae.temporal_compression_ratio
    overlap: Tensor | None = None
    for index in range(num_tokens // chunk - int(drop > 0)):
        start = index * chunk
        clip = vae._decode_clip(latents[:, :, start : start + chunk + vae.token_overlap])
        piece = clip[:, :, :frames][:, :, vae.frame_pre_padding :]
        if overlap is not None:
            piece = vae._blend(overlap, piece, vae.frame_overlap, dim=-3)
        yield piece
        if drop > 0:
            overlap = clip[:, :, frames : 2 * frames][:, :, vae.frame_pre_padding :]
    if overlap is not None:
        yield overlap


def decoder_calls(vae: Any, geometry: Geometry, shape: torch.Size) -> int:
    """How often the VAE's decoder runs for latents (1, C, T, h, w): temporal chunks times spatial tiles."""
    chunks = max(1, (shape[2] - 2) // geometry.latents_per_chunk)
    if not vae.use_tiling:
        return chunks
    rows = _tiles(shape[3] * geometry.spatial_ratio, vae.tile_sample_min_height, vae.tile_sample_min_overlap_height)
    columns = _tiles(shape[4] * geometry.spatial_ratio, vae.tile_sample_min_width, vae.tile_sample_min_overlap_width)
    return chunks * rows * columns


def _tiles(length: int, tile: int, overlap: int) -> int:
    return 1 if tile >= length else -(-(length - overlap) // (tile - overlap))


def _column(numbers: Any, device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device).view(1, -1, 1, 1, 1)


def _check(name: str, tensor: Tensor) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidPayload(f"decoded {name}: expected finite values, found NaN or infinity.", field=name)
