"""What is read from a file is what diffusers reads from it, bit for bit."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3Ref2VASetupStep
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import resolve_canvas_size
from diffusers.modular_pipelines.minimax_h3.references import MiniMaxH3AudioReference, MiniMaxH3VideoReference
from diffusers.utils import load_image
from PIL import Image

from splitreel.media import read_image, read_sound, read_video

CANVAS = (32, 96, 96 * 128)  # multiple, short edge, most pixels
WHERE = "references[0]"


def canvas(width: int, height: int) -> tuple[int, int]:
    size: tuple[int, int] = resolve_canvas_size(width, height, *CANVAS)
    return size


def make_video(path: Path, rate: Fraction, codecs: tuple[str, str | None], rotation: int = 0) -> Path:
    """40 moving frames of noise, 96 x 64, with noise for sound."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (64, 96, 3), dtype=np.uint8)
    with av.open(str(path), "w") as output:
        video: Any = output.add_stream(codecs[0], rate=rate)
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        if rotation:
            video.set_display_rotation(rotation)
        audio: Any = output.add_stream(codecs[1], rate=48_000, layout="stereo") if codecs[1] else None
        for index in range(40):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, 3 * index, axis=1), format="rgb24")
            frame.pts, frame.time_base = index, 1 / rate
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
        if audio is not None:
            samples = (0.1 * rng.standard_normal((2, int(40 * 48_000 / rate)))).astype(np.float32)
            sound = av.AudioFrame.from_ndarray(samples, format="fltp", layout="stereo")
            sound.sample_rate, sound.pts = 48_000, 0
            output.mux(audio.encode(sound))
            output.mux(audio.encode(None))
    return path


def compare(path: Path, max_frames: int) -> None:
    """Frames and soundtrack of one file, read both ways and cut at `max_frames` of 24 per second."""
    reference = MiniMaxH3VideoReference.from_file(path)
    expected = MiniMaxH3Ref2VASetupStep._normalize_video_condition(
        reference.frames, float(reference.fps), max_frames, *CANVAS, 24.0
    )
    clip = read_video(path, WHERE, max_frames=max_frames, canvas=canvas)
    assert np.array_equal(clip.frames, expected)
    if reference.audio is None:
        assert clip.sound is None
        return
    assert clip.sound is not None
    assert clip.sound.sample_rate == reference.sample_rate
    cut = reference.audio.numpy()[:, : int(max_frames / 24 * reference.sample_rate)]
    assert np.array_equal(clip.sound.waveform, cut)
    alone = MiniMaxH3AudioReference.from_file(path)
    sound = read_sound(path, WHERE, max_seconds=67)
    assert sound.sample_rate == alone.sample_rate
    assert np.array_equal(sound.waveform, alone.audio.numpy())


@pytest.mark.parametrize("max_frames", [20, 1000])
@pytest.mark.parametrize("rate", ["24", "30", "12", "60", "30000/1001", "24000/1001"])
def test_constant_rates(tmp_path: Path, rate: str, max_frames: int) -> None:
    compare(make_video(tmp_path / "clip.mp4", Fraction(rate), ("libx264", "aac")), max_frames)


@pytest.mark.parametrize(
    ("name", "codecs"),
    [
        ("clip.mkv", ("libx264", "libopus")),
        ("clip.webm", ("libvpx", "libopus")),
        ("clip.mov", ("mpeg4", "pcm_s16le")),
        ("clip.avi", ("mpeg4", "libmp3lame")),
        ("clip.ts", ("libx264", "aac")),
        ("clip.mp4", ("libx264", None)),
    ],
)
@pytest.mark.parametrize("rate", ["30", "24000/1001"])
def test_containers(tmp_path: Path, name: str, codecs: tuple[str, str | None], rate: str) -> None:
    compare(make_video(tmp_path / name, Fraction(rate), codecs), 25)


@pytest.mark.parametrize("rotation", [90, 180, -90])
def test_rotation(tmp_path: Path, rotation: int) -> None:
    compare(make_video(tmp_path / "clip.mp4", Fraction(24), ("libx264", "aac"), rotation), 20)


@pytest.mark.parametrize("fps", [24.0, 30.0, 12.0, 60.0, 29.97])
def test_frames_in_memory(fps: float) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (50, 16, 24, 3), dtype=np.uint8)
    expected = MiniMaxH3Ref2VASetupStep._normalize_video_condition(frames, fps, 33, *CANVAS, 24.0)
    assert np.array_equal(read_video(frames, WHERE, max_frames=33, source_fps=fps, canvas=canvas).frames, expected)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK"])
def test_pictures(tmp_path: Path, mode: str) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (24, 36, 4), dtype=np.uint8)).convert("RGB").convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(rng.integers(0, 256, (24, 36), dtype=np.uint8)))
    path = tmp_path / ("picture.tiff" if mode == "CMYK" else "picture.png")
    image.save(path)
    assert np.array_equal(read_image(path, WHERE), np.asarray(load_image(str(path))))
    exif = Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        image.convert("RGB").save(tmp_path / "turned.jpg", exif=exif)
        turned = load_image(str(tmp_path / "turned.jpg"))
        assert np.array_equal(read_image(tmp_path / "turned.jpg", WHERE), np.asarray(turned))
