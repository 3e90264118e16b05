"""The finished film: made on the decode worker in the form asked for while it is decoded, read back on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from splitreel.errors import InvalidPayload
from splitreel.h3.limits import FPS
from splitreel.h3.payloads import FILM
from splitreel.media import FilmEncoder
from splitreel.wire import Payload


class FilmMaker(Protocol):
    """Takes the pictures of a film as they are decoded."""

    def add(self, pictures: Tensor) -> None:
        """Append a chunk's pictures as `as_asked` gives them."""
        ...

    def finish(self) -> dict[str, Tensor]:
        """The fields of the film payload."""
        ...


@contextmanager
def film_maker(output: str, num_frames: int, sound: Tensor, sample_rate: int) -> Iterator[FilmMaker]:
    """`sound` (2, N) float. Leaving with an error ends what runs beside the decoder."""
    waveform = sound.to(torch.float32).cpu().contiguous()
    if output == "mp4":
        maker = _Mp4(fit(waveform.numpy(), num_frames, sample_rate), sample_rate)
        try:
            yield maker
        finally:
            maker.discard()
    else:
        yield _Pictures(output, num_frames, waveform)


class _Pictures:
    """float32 (F, 3, H, W) for `tensor`, uint8 (F, H, W, 3) for `frames`: one array, filled chunk by chunk."""

    def __init__(self, output: str, num_frames: int, waveform: Tensor) -> None:
        self._name = output
        self._num_frames = num_frames
        self._waveform = waveform
        self._pictures: Tensor | None = None
        self._filled = 0

    def add(self, pictures: Tensor) -> None:
        if self._pictures is None:
            self._pictures = torch.empty((self._num_frames, *pictures.shape[1:]), dtype=pictures.dtype)
        self._pictures[self._filled : self._filled + len(pictures)] = pictures
        self._filled += len(pictures)

    def finish(self) -> dict[str, Tensor]:
        if self._pictures is None or self._filled != self._num_frames:
            raise InvalidPayload(
                f"decoded video: expected {self._num_frames} frames, found {self._filled}.", field="video"
            )
        return {self._name: self._pictures, "waveform": self._waveform}


class _Mp4:
    """H.264 and AAC, encoded in a thread while the next chunk is decoded."""

    def __init__(self, waveform: np.ndarray[Any, np.dtype[np.float32]], sample_rate: int) -> None:
        self._waveform = waveform
        self._sample_rate = sample_rate
        self._encoder: FilmEncoder | None = None
        self._frames = self._samples = 0

    def add(self, pictures: Tensor) -> None:
        pixels = pictures.cpu().numpy()
        if self._encoder is None:
            _, height, width, _ = pixels.shape
            self._encoder = FilmEncoder(width=width, height=height, fps=float(FPS), sample_rate=self._sample_rate)
        self._frames += len(pixels)
        until = round(self._frames / FPS * self._sample_rate)
        self._encoder.write(pixels, self._waveform[:, self._samples : until])
        self._samples = until

    def finish(self) -> dict[str, Tensor]:
        assert self._encoder is not None
        film = self._encoder.finish(self._waveform[:, self._samples :])
        return {"mp4": torch.frombuffer(bytearray(film), dtype=torch.uint8)}

    def discard(self) -> None:
        if self._encoder is not None:
            self._encoder.discard()


def as_asked(chunk: Tensor, output: str) -> Tensor:
    """(f, 3, H, W) float pictures in [0, 1] in the form in which they are kept, or written to a file."""
    return chunk if output == "tensor" else to_pixels(chunk)


def to_pixels(chunk: Tensor) -> Tensor:
    """(f, 3, H, W) float in [0, 1] → (f, H, W, 3) uint8, rounded as diffusers' own conversions round."""
    return (chunk * 255.0).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


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
