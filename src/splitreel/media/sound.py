"""Reading sound: at its own rate and with its own channels, as far as asked and no further."""

from __future__ import annotations

from typing import TYPE_CHECKING

import av
import av.audio.resampler
import av.container
import numpy as np

from splitreel.media.data import Sound
from splitreel.media.files import PathLike, open_media, refuse

if TYPE_CHECKING:
    from av.audio.stream import AudioStream

_EXPECTED = "a file with sound, mono or stereo"


def read_sound(source: PathLike | Sound, where: str, *, max_seconds: float) -> Sound:
    """The first `max_seconds` of a sound: float32 (1 or 2, samples) at its native rate; mono stays mono.

    `source`: a path of an audio file, of a video (its soundtrack is taken), or a `Sound`. Decoding stops at the cut,
    so a long file costs no more than a short one. Raises InvalidRequest with `field=where` for an unreadable file,
    no or an empty sound stream, more than two channels, an implausible rate, and samples that are not finite.
    """
    if isinstance(source, Sound):
        return check_sound(source, where, max_seconds=max_seconds)
    with open_media(source, where, _EXPECTED) as container:
        if not container.streams.audio:
            refuse(where, _EXPECTED, f"no sound in {str(source)!r}", "Name a file that has a sound track.")
        return decode_sound(container, container.streams.audio[0], where, str(source), max_seconds=max_seconds)


def check_sound(sound: Sound, where: str, *, max_seconds: float) -> Sound:
    """The same sound as float32, cut at `max_seconds`; raises InvalidRequest if it is none."""
    rate = sound.sample_rate
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not 0 < rate <= 768_000:
        refuse(where, "a sample rate in whole samples per second", repr(rate), "Pass the rate of the waveform.")
    waveform = np.asarray(sound.waveform)
    if waveform.ndim != 2 or waveform.dtype.kind != "f":
        refuse(
            where,
            "a float (channels, samples) waveform",
            f"{waveform.dtype} {waveform.shape}",
            "Add the channel axis; divide 16-bit samples by 32768.",
        )
    _check_channels(waveform.shape[0], where, "the waveform")
    waveform = waveform[:, : int(max_seconds * int(rate))].astype(np.float32, copy=False)
    _check_samples(waveform, where, "the waveform")
    return Sound(np.ascontiguousarray(waveform), int(rate))


def decode_sound(
    container: av.container.InputContainer, stream: AudioStream, where: str, name: str, *, max_seconds: float
) -> Sound:
    """Decode one stream of an open container from where it stands, `max_seconds` at most.

    As diffusers decodes: the samples that the decoder gives, one after the other, whatever their timestamps.
    """
    rate = int(stream.codec_context.sample_rate or 0)
    if rate <= 0:
        refuse(where, _EXPECTED, f"{name!r}, which states no sample rate", "Convert it to wav.")
    _check_channels(stream.codec_context.channels, where, repr(name))
    limit = int(max_seconds * rate)
    # A change of format only: planar float, the stream's own layout and rate.
    resampler = av.audio.resampler.AudioResampler(format="fltp", layout=stream.layout, rate=rate)
    chunks: list[np.ndarray] = []
    held = 0
    for frame in container.decode(stream):
        for part in resampler.resample(frame):
            chunks.append(part.to_ndarray())
            held += chunks[-1].shape[-1]
        if held >= limit:
            break
    else:
        chunks += [part.to_ndarray() for part in resampler.resample(None)]
    waveform = np.concatenate(chunks, axis=-1) if chunks else np.zeros((1, 0))
    waveform = np.ascontiguousarray(waveform[:, :limit], dtype=np.float32)
    _check_samples(waveform, where, repr(name))
    return Sound(waveform, rate)


def _check_channels(channels: int, where: str, name: str) -> None:
    if channels not in (1, 2):
        refuse(where, "1 or 2 channels", f"{channels} in {name}", "Mix it down to stereo first.")


def _check_samples(waveform: np.ndarray, where: str, name: str) -> None:
    if waveform.shape[1] == 0:
        refuse(where, _EXPECTED, f"no samples in {name}", "The sound is empty; leave it out or send another.")
    if not np.isfinite(waveform).all():
        refuse(where, "finite samples", f"NaN or infinity in {name}", "Make the sound again.")
