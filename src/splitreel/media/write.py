"""Writing a film: H.264 and AAC in an mp4, streamed, whole or not at all.

Both streams start at 0. What the AAC encoder needs before the first sample (its priming of 1024 samples, and a lead-in
of ours) is declared in the edit list, so a player drops it and a click at sample 0 is heard at 0.
"""

from __future__ import annotations

import io
import math
import os
import shutil
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self, overload

import av
import av.error
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation

from splitreel.errors import ConfigError
from splitreel.media.data import Clip, Sound
from splitreel.media.files import PathLike, refuse
from splitreel.media.target import check_encoders, create_partial
from splitreel.words import plainly

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import OutputContainer
    from av.video.stream import VideoStream
    from numpy.typing import NDArray

AAC_FRAME = 1024
X264_PRESETS = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow")
AAC_RATES = (7350, 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000)

# x264's output depends on its number of threads; left to itself it takes that of the machine, and the same film would
# be other bytes elsewhere.
_X264_THREADS = 4
# libav's AAC encoder spoils the first frames after digital silence: of 12 chords that set in at sample 0, peak 0.6 and
# 32 kHz, the error of the first 2,048 samples was 0.27 in the median and 2.7 at worst, an audible pop. With the sound
# mirrored before its start, and that lead-in cut off by the edit list, 0.006 and 0.02 (at 192 kbit/s 0.04 and 0.13).
_LEAD_IN = 2 * AAC_FRAME
_AAC_BITS = 256_000
_BT709 = 1
# Mean error of a picture through yuv420p and back, of 255: 0.59 with this, 0.90 with PyAV's bilinear default.
_CHROMA = Interpolation.BICUBIC | Interpolation.ACCURATE_RND


def exact_rate(fps: float) -> Fraction:
    """The frame rate that a rounded number means: 24 is 24, 23.976 is 24000/1001, 12.5 is 25/2."""
    if fps == round(fps):
        return Fraction(round(fps))
    ntsc = Fraction(round(fps * 1.001) * 1000, 1001)
    return ntsc if abs(float(ntsc) - fps) < 1e-5 * fps else Fraction(fps).limit_denominator(1001)


class FilmWriter:
    """Writes one mp4 as frames and sound arrive; a context manager, in which an error discards the file.

    A path appears complete or not at all: the file grows under a hidden name beside it. A binary stream gets the
    finished file at `close`. `sample_rate=None` makes a silent film (no audio stream). Raises InvalidRequest for sizes,
    rates and arrays that cannot be written, ConfigError when the target cannot be.
    """

    def __init__(
        self,
        target: PathLike | BinaryIO,
        *,
        width: int,
        height: int,
        fps: float = 24.0,
        sample_rate: int | None,
        crf: int = 18,
        preset: str = "medium",
    ) -> None:
        if width < 2 or height < 2 or width % 2 or height % 2:
            refuse("frames", "an even width and height (yuv420p halves both)", f"{width} x {height}", "Crop or pad.")
        if not math.isfinite(fps) or not 0 < fps <= 1000:
            refuse("fps", "a frame rate up to 1000", repr(fps), "The film's own is 24.")
        if sample_rate is not None and sample_rate not in AAC_RATES:
            refuse("sound", f"a sample rate that AAC has ({_listed(AAC_RATES)})", repr(sample_rate), "Resample it.")
        if not 0 <= crf <= 51:
            refuse("crf", "0 to 51", repr(crf), "18 looks like the original, each 6 more halve the file.")
        if preset not in X264_PRESETS:
            refuse("preset", f"one of {_listed(X264_PRESETS)}", repr(preset), "Slower ones make smaller files.")
        self._size = (height, width)
        self._rate = exact_rate(fps)
        self._sample_rate = sample_rate
        self._frames = self._samples = 0
        self._begun = np.empty((2, 0), np.float32)  # the sound until there is enough of it to mirror
        check_encoders()
        self._target = Path(target) if isinstance(target, str | os.PathLike) else target
        self._partial = create_partial(self._target if isinstance(self._target, Path) else None)
        try:
            self._container: OutputContainer | None = av.open(
                f"file:{self._partial}",
                "w",
                format="mp4",
                options={"movflags": "+faststart", "movie_timescale": str(self._ticks())},
            )
            self._video = self._add_video(crf, preset)
            self._audio = self._add_audio() if sample_rate is not None else None
        except av.error.FFmpegError as error:
            self.discard()
            raise ConfigError(
                f"{self._name}: expected to begin a film, found {plainly(error, self._partial)}. Check the disk."
            ) from error
        except BaseException:
            self.discard()
            raise

    def _ticks(self) -> int:
        """Ticks per second in which the edit lists count: of whole samples and frames, where 1000 would round up."""
        exact = math.lcm(self._sample_rate or 1000, self._rate.numerator)
        return exact if exact < 2**31 else self._sample_rate or 1000

    def _add_video(self, crf: int, preset: str) -> VideoStream:
        assert self._container is not None
        stream = self._container.add_stream("libx264", rate=self._rate, options={"crf": str(crf), "preset": preset})
        stream.height, stream.width = self._size
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.thread_count = _X264_THREADS
        context.color_primaries = context.color_trc = context.colorspace = _BT709
        context.color_range = int(ColorRange.MPEG)
        return stream

    def _add_audio(self) -> AudioStream:
        assert self._container is not None
        stream = self._container.add_stream("aac", rate=self._sample_rate, layout="stereo")
        stream.bit_rate = _AAC_BITS
        return stream

    def write_frames(self, frames: NDArray[np.uint8]) -> None:
        """Append uint8 RGB (n, H, W, 3) frames."""
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[1:] != (*self._size, 3):
            height, width = self._size
            refuse(
                "frames",
                f"uint8 (n, {height}, {width}, 3)",
                f"{frames.dtype} {frames.shape}",
                "Scale to 0..255 and put the channels last.",
            )
        for pixels in frames:
            rgb = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame = rgb.reformat(
                format="yuv420p",
                dst_colorspace=Colorspace.ITU709,
                dst_color_range=ColorRange.MPEG,
                interpolation=_CHROMA,
                threads=1,
            )
            frame.pts, frame.time_base = self._frames, 1 / self._rate
            self._frames += 1
            self._mux(self._video, frame)

    def write_sound(self, waveform: NDArray[np.float32]) -> None:
        """Append float32 (2, n) samples; those outside [-1, 1] are clipped."""
        if self._audio is None:
            refuse("sound", "no sound, as this film was begun", "samples", "Pass sample_rate to FilmWriter.")
        if waveform.dtype != np.float32 or waveform.ndim != 2 or waveform.shape[0] != 2:
            refuse("sound", "float32 (2, n) samples", f"{waveform.dtype} {waveform.shape}", "Repeat a mono channel.")
        if not np.isfinite(waveform).all():
            refuse("sound", "finite samples", "NaN or infinity", "The sound is broken; nothing was written.")
        if waveform.shape[1] == 0:
            return
        samples = np.clip(waveform, -1.0, 1.0)
        before, self._samples = self._samples, self._samples + samples.shape[1]
        if before >= _LEAD_IN:
            self._mux_sound(samples, before)
            return
        self._begun = np.concatenate([self._begun, samples], axis=1)
        if self._samples >= _LEAD_IN:
            self._mux_beginning()

    def _mux_beginning(self) -> None:
        self._mux_sound(np.pad(self._begun, ((0, 0), (_LEAD_IN, 0)), mode="symmetric"), -_LEAD_IN)

    def _mux_sound(self, samples: NDArray[np.float32], start: int) -> None:
        assert self._audio is not None
        assert self._sample_rate is not None
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout="stereo")
        frame.sample_rate = self._sample_rate
        frame.pts, frame.time_base = start, Fraction(1, self._sample_rate)
        self._mux(self._audio, frame)

    def _mux(self, stream: VideoStream | AudioStream, frame: av.VideoFrame | av.AudioFrame | None) -> None:
        if self._container is None:
            raise ConfigError("FilmWriter: expected an open film, found a closed one. Begin a new one.")
        try:
            self._container.mux(stream.encode(frame))
        except av.error.FFmpegError as error:
            raise ConfigError(
                f"{self._name}: expected to write the film, found {plainly(error, self._partial)}. Check the disk."
            ) from error

    @property
    def _name(self) -> str:
        return str(self._target) if isinstance(self._target, Path) else "stream"

    def close(self) -> None:
        """Finish the file and put it in place. Raises InvalidRequest when picture and sound differ in length."""
        if self._container is None:
            return
        try:
            if not self._frames:
                refuse("frames", "at least one frame", "none", "Write frames before closing.")
            if self._sample_rate is not None:
                check_lengths(self._frames, self._rate, self._samples, self._sample_rate)
            self._mux(self._video, None)
            if self._audio is not None:
                if 0 < self._samples < _LEAD_IN:
                    self._mux_beginning()
                self._mux(self._audio, None)
            container, self._container = self._container, None
            container.close()
            if isinstance(self._target, Path):
                self._partial.replace(self._target)
            else:
                with self._partial.open("rb") as finished:
                    shutil.copyfileobj(finished, self._target)
        except OSError as error:
            raise ConfigError(
                f"{self._name}: expected to write the film, found {plainly(error, self._partial)}. Check the disk."
            ) from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Drop what was written; harmless after `close`."""
        container = getattr(self, "_container", None)
        self._container = None
        try:
            if container is not None:
                container.close()
        except (av.error.FFmpegError, OSError):
            pass
        finally:
            self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


@overload
def write_film(target: PathLike, clip: Clip, *, crf: int = ..., preset: str = ...) -> Path: ...
@overload
def write_film(target: BinaryIO, clip: Clip, *, crf: int = ..., preset: str = ...) -> BinaryIO: ...
def write_film(target: PathLike | BinaryIO, clip: Clip, *, crf: int = 18, preset: str = "medium") -> Path | BinaryIO:
    """Write a clip as mp4 (H.264 yuv420p, AAC stereo) and return the target.

    Missing folders are made. A mono sound becomes stereo. Raises InvalidRequest for frames or sound that cannot be
    written, and when their lengths differ by more than one video frame and one AAC frame.
    """
    frames, sound = clip.frames, clip.sound
    if frames.ndim != 4 or 0 in frames.shape:
        refuse("frames", "uint8 (F, H, W, 3), at least one", f"{frames.dtype} {frames.shape}", "Send frames.")
    if sound is not None:
        check_lengths(len(frames), exact_rate(clip.fps), sound.waveform.shape[-1], sound.sample_rate)
    stereo = None if sound is None else _stereo(sound)
    with FilmWriter(
        target,
        width=frames.shape[2],
        height=frames.shape[1],
        fps=clip.fps,
        sample_rate=None if sound is None else sound.sample_rate,
        crf=crf,
        preset=preset,
    ) as film:
        # A second of each in turn, so that a player need not seek between them.
        step = max(1, round(clip.fps))
        for start in range(0, len(frames), step):
            film.write_frames(frames[start : start + step])
            if sound is not None and stereo is not None:
                begin, end = (round(at / clip.fps * sound.sample_rate) for at in (start, start + step))
                film.write_sound(stereo[:, begin : None if start + step >= len(frames) else end])
    return Path(target) if isinstance(target, str | os.PathLike) else target


def film_bytes(clip: Clip, *, crf: int = 18, preset: str = "medium") -> bytes:
    """The mp4 of a clip as bytes; see `write_film`."""
    buffer = io.BytesIO()
    write_film(buffer, clip, crf=crf, preset=preset)
    return buffer.getvalue()


def check_lengths(frames: int, fps: Fraction, samples: int, sample_rate: int) -> None:
    """Raise InvalidRequest when picture and sound differ by more than one video frame and one AAC frame."""
    picture, sound = frames / fps, Fraction(samples, sample_rate)
    if abs(picture - sound) > 1 / fps + Fraction(AAC_FRAME, sample_rate):
        refuse(
            "sound",
            f"the length of the picture ({float(picture):.3f} s, {frames} frames at {float(fps):g})",
            f"{float(sound):.3f} s ({samples} samples at {sample_rate})",
            "Cut or pad the sound, or check the two rates.",
        )


def _stereo(sound: Sound) -> NDArray[np.float32]:
    waveform = sound.waveform
    if waveform.ndim != 2 or waveform.shape[0] not in (1, 2):
        refuse("sound", "a (1 or 2, samples) waveform", str(waveform.shape), "Mix it down to stereo.")
    waveform = waveform.astype(np.float32, copy=False)
    return waveform if waveform.shape[0] == 2 else np.repeat(waveform, 2, axis=0)


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values))
