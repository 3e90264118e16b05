"""Reading sound: at its own rate and with its own channels, as far as asked and no further."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from av.audio.resampler import AudioResampler

from splitreel.media.data import Sound
from splitreel.media.files import PathLike, check_complete, check_stream, open_media, refuse

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from numpy.typing import NDArray

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
        return decode_sound(container, container.streams.audio[0], where, repr(str(source)), max_seconds=max_seconds)


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


def decode_sound(container: InputContainer, stream: AudioStream, where: str, name: str, *, max_seconds: float) -> Sound:
    """Decode one stream of an open container from where it stands, `max_seconds` at most.

    As diffusers decodes: the samples that the decoder gives, one after the other, whatever their timestamps.
    """
    check_stream(stream, where, _EXPECTED, name)
    rate = int(stream.codec_context.sample_rate or 0)
    if rate <= 0:
        refuse(where, _EXPECTED, f"{name}, which states no sample rate", "Convert it to wav.")
    _check_channels(stream.codec_context.channels, where, name)
    limit = int(max_seconds * rate)
    chunks: list[NDArray[np.float32]] = []
    held = 0
    end: float | None = None
    # A change of format only: planar float, the stream's own layout and rate.
    resampler = AudioResampler(format="fltp", layout=stream.layout, rate=rate)
    for frame in container.decode(stream):
        if frame.sample_rate != rate or len(frame.layout.channels) != stream.codec_context.channels:
            refuse(where, "one rate and layout throughout", f"a change of either in {name}", "Convert it to wav.")
        chunks += [np.asarray(part.to_ndarray(), np.float32) for part in resampler.resample(frame)]
        held += frame.samples
        end = None if frame.time is None else frame.time + frame.samples / rate
        if held >= limit:
            break
    else:
        chunks += [np.asarray(part.to_ndarray(), np.float32) for part in resampler.resample(None)]
        if end is not None:
            check_complete(container, stream, end, where, _EXPECTED, name)
    if not chunks:
        refuse(where, _EXPECTED, f"no samples in {name}", "The sound is empty: leave it out or send another.")
    waveform = np.ascontiguousarray(np.concatenate(chunks, axis=-1)[:, :limit])
    _check_samples(waveform, where, name)
    return Sound(waveform, rate)


def _check_channels(channels: int, where: str, name: str) -> None:
    if channels not in (1, 2):
        refuse(where, "1 or 2 channels", f"{channels} in {name}", "Mix it down to stereo first.")


def _check_samples(waveform: NDArray[np.float32], where: str, name: str) -> None:
    if waveform.shape[1] == 0:
        refuse(where, _EXPECTED, f"no samples in {name}", "The sound is empty: leave it out or send another.")
    if not np.isfinite(waveform).all():
        refuse(where, "finite samples", f"NaN or infinity in {name}", "Make the sound again.")
