"""The finished film: made on the decode worker in the form asked for, read back on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splitreel.errors import InvalidPayload
from splitreel.h3.geometry import FPS
from splitreel.h3.payloads import FILM
from splitreel.media import Clip, Sound, film_bytes
from splitreel.wire import Payload


def film_tensors(video: Tensor, sound: Tensor, *, output: str, sample_rate: int) -> dict[str, Tensor]:
    """`video` (F, 3, H, W) float in [0, 1], `sound` (2, N) float → the fields of the film payload.

    uint8 pixels are rounded as diffusers' own conversions round them.
    """
    waveform = sound.to(torch.float32).cpu().contiguous()
    if output == "tensor":
        return {"tensor": video.to(torch.float32).cpu().contiguous(), "waveform": waveform}
    frames = (video * 255.0).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().contiguous()
    if output == "frames":
        return {"frames": frames, "waveform": waveform}
    clip = Clip(
        frames=frames.numpy(), fps=float(FPS), sound=Sound(fit(waveform.numpy(), len(frames), sample_rate), sample_rate)
    )
    return {"mp4": torch.frombuffer(bytearray(film_bytes(clip)), dtype=torch.uint8)}


def fit(waveform: np.ndarray[Any, np.dtype[np.float32]], num_frames: int, sample_rate: int) -> Any:
    """Cut the sound to the picture. The audio VAE makes whole latents, so it may run over by up to half a latent (12 ms)."""
    return waveform[:, : round(num_frames / FPS * sample_rate)]


def film_contents(payload: Payload) -> Mapping[str, Any]:
    """The fields of `GenerateResult` that a film payload fills."""
    if payload.header.kind != FILM:
        raise InvalidPayload(f"kind: expected {FILM}, found {payload.header.kind}.", field="kind")
    arrays = {name: tensor.numpy() for name, tensor in payload.named_tensors()}
    if "mp4" in arrays:
        return {"video_bytes": arrays["mp4"].tobytes()}
    return arrays
