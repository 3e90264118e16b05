"""Decode as a program: latents in, a film out, its pictures chunk by chunk.

diffusers' video block decodes the whole film to float32 before anyone sees a frame: 1.5 GB for 5 s at 1344×768, several
times over. Here each chunk becomes what the request asked for while the next one is decoded. The arithmetic is diffusers',
element by element; the parity tests compare the films bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from splitreel.errors import InvalidPayload
from splitreel.h3.films import as_asked, film_maker
from splitreel.h3.geometry import Geometry, GeometryPipeline
from splitreel.h3.limits import FPS
from splitreel.h3.payloads import FILM, PART, SCHEMA, denoise_counts
from splitreel.h3.programs import Watches, carried
from splitreel.roles.control import StageControl
from splitreel.share import Share
from splitreel.wire import Payload


class DecodeProgram:
    """Latents → film, in the form that the request asked for."""

    def __init__(self, pipeline: GeometryPipeline, vae: Any, watches: Watches) -> None:
        """`pipeline` has diffusers' block for the sound alone."""
        self._pipeline = pipeline
        self._vae = vae
        self._watches = watches

    def __call__(self, payload: Payload, control: StageControl) -> Payload:
        if control.share.index:
            return self._part(payload, control)
        values = payload.header.values
        latents = payload.tensors["latents"]
        assert isinstance(latents, Tensor)
        state = self._pipeline(audio_latents=payload.tensors["audio_latents"])
        sound, sample_rate = state.get("audio")[0], int(state.get("sampling_rate"))
        _check("sound", sound)
        clips, calls = num_clips(self._vae, latents), calls_per_clip(self._vae, self._pipeline.geometry, latents.shape)
        with film_maker(values["output"], values["num_frames"], sound, sample_rate) as film:
            with self._watches.decoder.reporting(control, clips * calls):
                for index in range(control.share.count):
                    own = Share(index, control.share.count).of(clips)
                    if not own:
                        continue
                    part = control.parts[index - 1]() if index else None
                    if part is None:
                        for pictures in self._pictures(latents, own, values["output"]):
                            film.add(pictures)
                        continue
                    self._watches.decoder.skip(len(own) * calls)
                    film_part, frames = part.tensors["pictures"], part.header.values["frames"]
                    assert isinstance(film_part, Tensor)
                    # In the chunks in which one worker alone would add them, so that an encoder sees the same.
                    for pictures in torch.split(film_part, frames):
                        control.check()
                        film.add(pictures)
            with control.span("encode_file"):
                tensors = film.finish()
        header = payload.header
        return Payload(
            replace(
                header,
                kind=FILM,
                schema=SCHEMA,
                values={
                    **carried(values),
                    **denoise_counts(values),
                    "fps": FPS,
                    "sample_rate": sample_rate,
                },
            ),
            tensors,
        )

    def _part(self, payload: Payload, control: StageControl) -> Payload:
        """The pictures of one share of the film's clips, and how many frames each chunk of them has."""
        header, latents = payload.header, payload.tensors["latents"]
        assert isinstance(latents, Tensor)
        own = control.share.of(num_clips(self._vae, latents))
        calls = calls_per_clip(self._vae, self._pipeline.geometry, latents.shape)
        made: list[Tensor] = []
        if own:
            with self._watches.decoder.reporting(control, (len(own) + 1) * calls):
                made = [pictures.cpu() for pictures in self._pictures(latents, own, header.values["output"])]
        return Payload(
            replace(header, kind=PART, schema=SCHEMA, values={"frames": [len(pictures) for pictures in made]}),
            {"pictures": torch.cat(made) if made else torch.empty(0)},
        )

    def _pictures(self, latents: Tensor, clips: range, output: str) -> Iterator[Tensor]:
        for chunk in self._chunks(latents, clips):
            _check("video", chunk)
            yield as_asked(chunk, output)

    def _chunks(self, latents: Tensor, clips: range) -> Iterator[Tensor]:
        """(f, 3, H, W) float32 in [0, 1]: denormalised before and after the VAE as diffusers' `decode.video` does."""
        device, config = latents.device, self._vae.config
        mean, std = (_column(numbers, device) for numbers in (config.latents_mean, config.latents_std))
        pixel_mean, pixel_std = (
            _column(numbers, device) for numbers in (self._pipeline.pixel_mean, self._pipeline.pixel_std)
        )
        for chunk in decoded_chunks(self._vae, latents * std + mean, clips):
            yield (chunk.float() * pixel_std + pixel_mean).clamp(0, 1)[0].transpose(0, 1)


def num_clips(vae: Any, latents: Tensor) -> int:
    """How many clips latents (1, C, T, h, w) are decoded in."""
    drop = vae.config.token_drop
    num_tokens = latents.shape[2] + drop
    return 1 if num_tokens % vae.tokens_chunk_size else num_tokens // vae.tokens_chunk_size - int(drop > 0)


def decoded_chunks(vae: Any, latents: Tensor, clips: range | None = None) -> Iterator[Tensor]:
    """What `vae.decode(latents)` would give, (1, 3, f, H, W) pieces in order, each as soon as it is final.

    Of `clips` alone, if given: a clip depends on the one before by its last frames, into which it is blended, so that one
    is decoded too. Clips are decoded apart, so the pieces are the same, bit for bit.

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
    count = num_clips(vae, latents)
    clips = range(count) if clips is None else clips
    for index in range(max(0, clips.start - int(drop > 0)), clips.stop):
        start = index * chunk
        clip = vae._decode_clip(latents[:, :, start : start + chunk + vae.token_overlap])
        if index in clips:
            piece = clip[:, :, :frames][:, :, vae.frame_pre_padding :]
            if overlap is not None:
                piece = vae._blend(overlap, piece, vae.frame_overlap, dim=-3)
            yield piece
        if drop > 0:
            overlap = clip[:, :, frames : 2 * frames][:, :, vae.frame_pre_padding :]
    if overlap is not None and clips.stop == count:
        yield overlap


def calls_per_clip(vae: Any, geometry: Geometry, shape: torch.Size) -> int:
    """How often the VAE's decoder runs for one clip of latents (1, C, T, h, w): once for each spatial tile."""
    if not vae.use_tiling:
        return 1
    rows = _tiles(shape[3] * geometry.spatial_ratio, vae.tile_sample_min_height, vae.tile_sample_min_overlap_height)
    columns = _tiles(shape[4] * geometry.spatial_ratio, vae.tile_sample_min_width, vae.tile_sample_min_overlap_width)
    return rows * columns


def _tiles(length: int, tile: int, overlap: int) -> int:
    return 1 if tile >= length else -(-(length - overlap) // (tile - overlap))


def _column(numbers: Any, device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device).view(1, -1, 1, 1, 1)


def _check(name: str, tensor: Tensor) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidPayload(f"decoded {name}: expected finite values, found NaN or infinity.", field=name)
