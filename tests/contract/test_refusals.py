"""Bad requests are refused on the driver, with the field, the rule and a way out, before any stage has run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from samples import Samples, moving, picture, tone, write_wav
from splitreel import (
    AudioReference,
    GenerateRequest,
    ImageReference,
    InvalidRequest,
    Session,
    Sound,
    VideoReference,
)
from splitreel.h3.geometry import Geometry
from splitreel.h3.media import prepare

RELEASED = Geometry(16, 24, 17, 5, 32000, 32, (1, 2, 2), 5120, 768, 768 * 1344, 2048)
OTHER = Geometry(8, 16, 22, 6, 24000, 20, (1, 3, 3), 64, 72, 72 * 120, 72)
ALL = ("t2va", "fl2va", "ref2va")

Build = Callable[[Samples, Path], dict[str, Any]]


def plain(**fields: Any) -> Build:
    return lambda samples, folder: fields


def empty_file(folder: Path, name: str) -> Path:
    (folder / name).write_bytes(b"")
    return folder / name


def text_file(folder: Path, name: str) -> Path:
    (folder / name).write_text("this is no media file\n" * 50)
    return folder / name


# name, fields of the request, and what the message must say.
TABLE: list[tuple[str, Build, str]] = [
    ("prompt empty", plain(prompt=" "), "prompt: expected a text that is not empty"),
    ("prompt list", plain(prompt=["a", "b"]), "prompt: expected one string, found 'list'. One request makes one film"),
    ("steps 1", plain(steps=1), "steps: expected 2 or more, found 1. Steps are sigma points: N points make N - 1"),
    ("steps text", plain(steps="5"), "steps: expected a whole number, found '5'"),
    ("seed negative", plain(seed=-1), "seed: expected a whole number from 0 to 2**63 - 1, found -1"),
    ("seed fraction", plain(seed=1.5), "seed: expected a whole number"),
    ("frames 107", plain(num_frames=107), "num_frames: expected 124 to 345 frames of the form 17 n + 5 (124, 141, ... 345), that is 5.167 to 14.375 s at 24 fps, found 107, which rounds up to 107 frames or 4.458 s"),
    ("frames 346", plain(num_frames=346), "found 346, which rounds up to 362 frames or 15.083 s. Nearest: 345 frames (14.375 s)"),
    ("frames 0", plain(num_frames=0), "Nearest: 124 frames (5.167 s)"),
    ("seconds beyond counting", plain(seconds=1e308), "seconds: expected 124 to 345 frames of the form 17 n + 5 (124, 141, ... 345), that is 5.167 to 14.375 s at 24 fps, found 1e+308. Nearest: 345 frames"),
    ("seconds below counting", plain(seconds=-1e308), "found -1e+308. Nearest: 124 frames"),
    ("frames beyond counting", plain(num_frames=10**320), "000. Nearest: 345 frames"),
    ("height beyond counting", plain(height=10**320, width=32), "height, width: expected at most 4128768 pixels, found a side of more than that"),
    ("seconds 15", plain(seconds=15), "that is 5.167 to 14.375 s at 24 fps, found 15, which rounds up to 362 frames or 15.083 s"),
    ("seconds and frames", plain(seconds=6, num_frames=124), "seconds: expected either num_frames or seconds"),
    ("height alone", plain(height=480), "height, width: expected both or neither, found '480 x None'"),
    ("canvas off grid", plain(height=500, width=832), "expected multiples of 32, found 832 wide, 500 high. Nearest: 832 wide, 512 high"),
    ("canvas too flat", plain(height=32, width=1344), "expected an aspect ratio between 1:4 and 4:1, found 42.00:1"),
    ("canvas too big", plain(height=32000, width=32000), "expected at most 4128768 pixels, found 1024000000 (32000 wide"),
    ("canvas zero", plain(height=0, width=0), "expected multiples of 32, found 0 wide, 0 high"),
    ("output", plain(output="gif"), "output: expected one of mp4, frames, tensor, found 'gif'"),
    ("keyframes and references", lambda s, f: {"image": s.first, "references": [ImageReference(s.last)]}, "references, image: expected keyframes (fl2va) or references (ref2va), found both"),
    ("image missing", lambda s, f: {"image": f / "no.png"}, "image: expected"),
    ("image empty", lambda s, f: {"image": empty_file(f, "e.png")}, "image: expected"),
    ("image is text", lambda s, f: {"last_image": text_file(f, "t.png")}, "last_image: expected"),
    ("image 1:5", lambda s, f: {"image": picture(f / "thin.png", 100, 500, seed=1)}, "image: expected a picture between 1:4 and 4:1, found 100x500"),
    ("reference image 1:5", lambda s, f: {"references": [ImageReference(picture(f / "thin.png", 20, 100, seed=1))]}, "references[0]: expected a shape between 1:4 and 4:1"),
    ("reference not one", plain(references=["cat.png"]), "references[0]: expected an ImageReference, VideoReference or AudioReference, found 'str'"),
    ("sound alone", lambda s, f: {"references": [AudioReference(s.mono)]}, "expected a picture or a video beside sound, found sound alone"),
    ("10 images", lambda s, f: {"references": [ImageReference(s.first)] * 10}, "references: expected at most 9 of kind image, found 10"),
    ("4 videos", lambda s, f: {"references": [VideoReference(s.clip)] * 4}, "references: expected at most 3 of kind video, found 4"),
    ("4 sounds", lambda s, f: {"references": [ImageReference(s.first)] + [AudioReference(s.mono)] * 4}, "references: expected at most 3 of kind audio, found 4"),
    ("13 in all", lambda s, f: {"references": [ImageReference(s.first)] * 7 + [VideoReference(s.clip)] * 3 + [AudioReference(s.mono)] * 3}, "references: expected at most 12 in all, found 13"),
    ("six channels", lambda s, f: {"references": [ImageReference(s.first), AudioReference(write_wav(f / "six.wav", tone((300.0,) * 6, 1, 8000)))]}, "references[1]: expected 1 or 2 channels, found 6"),
    ("video without a picture", lambda s, f: {"references": [VideoReference(s.mono)]}, "references[0]: expected"),
    ("video is text", lambda s, f: {"references": [VideoReference(text_file(f, "t.mp4"))]}, "references[0]: expected"),
    ("video too short", lambda s, f: {"references": [VideoReference(moving(4, 64, 128), fps=60.0)]}, "references[0]: expected a clip of at least 0.54 seconds"),
    ("frames without rate", lambda s, f: {"references": [VideoReference(moving(30, 64, 128))]}, "references[0]: expected fps beside frames given as an array"),
    ("sound without samples", lambda s, f: {"references": [ImageReference(s.first), AudioReference(Sound(np.zeros((1, 0), np.float32), 32000))]}, "references[1]: expected"),
    ("sound with NaN", lambda s, f: {"references": [ImageReference(s.first), AudioReference(Sound(np.full((1, 9), np.nan, np.float32), 32000))]}, "references[1]: expected finite samples"),
    ("sound without rate", lambda s, f: {"references": [ImageReference(s.first), AudioReference(Sound(np.zeros((1, 9), np.float32), 0))]}, "references[1]: expected a sample rate"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "build", "message"), TABLE, ids=[row[0] for row in TABLE])
def test_bad_requests(name: str, build: Build, message: str, samples: Samples, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prepare(GenerateRequest(**{"prompt": "A lake.", **build(samples, tmp_path)}), RELEASED, ALL)
    assert message in str(caught.value)
    assert caught.value.field


@pytest.mark.parametrize("name", ["guidance_scale", "negative_prompt", "refrences"])
def test_unknown_inputs_list_the_accepted_ones(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}: not an input of a request. Accepted: .*references"):
        GenerateRequest.from_dict({"prompt": "A lake.", name: 7})
    with pytest.raises(TypeError):
        GenerateRequest(prompt="A lake.", **{name: 7})


@pytest.mark.parametrize("served", ALL)
def test_the_wrong_workflow_names_what_is_served(served: str, samples: Samples) -> None:
    requests = {
        "t2va": GenerateRequest(prompt="A lake."),
        "fl2va": GenerateRequest(prompt="A lake.", last_image=samples.last),
        "ref2va": GenerateRequest(prompt="A lake.", references=[ImageReference(samples.first)]),
    }
    for workflow, request in requests.items():
        assert request.workflow == workflow
        if workflow == served:
            prepare(request, RELEASED, [served])
        else:
            with pytest.raises(InvalidRequest, match=f"this deployment serves {served} .* which is {workflow}"):
                prepare(request, RELEASED, [served])


def test_a_refused_request_reaches_no_worker(session: Session, samples: Samples) -> None:
    before = [worker.stages_done for worker in session.health()]
    with pytest.raises(InvalidRequest):
        session.generate(GenerateRequest(prompt="A lake.", num_frames=50))
    with pytest.raises(InvalidRequest):
        session.generate(GenerateRequest(prompt="A lake.", references=[AudioReference(samples.mono)]))
    assert [worker.stages_done for worker in session.health()] == before


def settled(geometry: Geometry = RELEASED, **fields: Any) -> Any:
    return prepare(GenerateRequest(prompt="A lake.", **fields), geometry, ALL)[0]


def test_what_is_rounded_is_said() -> None:
    assert settled().num_frames == 124
    assert settled(num_frames=124).warnings == ()
    for asked in (108, 123):
        effective = settled(num_frames=asked)
        assert effective.num_frames == 124
        assert effective.warnings == (
            f"num_frames {asked} was rounded up to 124 frames (5.167 s): the video VAE needs 17 n + 5",
        )
    assert settled(seconds=6).num_frames == 158
    assert settled(num_frames=345).seconds == 14.375
    assert settled(OTHER).num_frames == 138
    assert settled(OTHER, seconds=14.9).num_frames == 358


def test_the_default_canvas_follows_the_first_keyframe(samples: Samples, tmp_path: Path) -> None:
    portrait = picture(tmp_path / "portrait.png", 736, 992, seed=1)
    follows = settled(image=portrait)
    assert abs(follows.height / follows.width - 992 / 736) < 0.03
    assert follows.warnings == ()
    stretched = settled(image=portrait, height=768, width=1344)
    assert "stretched onto 1344x768" in stretched.warnings[0]
    assert (settled().height, settled().width) == (768, 1344)


def test_exif_orientation_is_applied_and_alpha_dropped(tmp_path: Path) -> None:
    upright = Image.fromarray(moving(1, 40, 80)[0])
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: display rotated by 90 degrees
    upright.save(tmp_path / "turned.jpg", exif=exif)
    _, payload = prepare(GenerateRequest(prompt="A lake.", image=tmp_path / "turned.jpg"), RELEASED, ALL)
    assert payload.tensors["pictures"][0].shape == (80, 40, 3)
    transparent = np.dstack([moving(1, 40, 80)[0], np.zeros((40, 80), np.uint8)])
    Image.fromarray(transparent).save(tmp_path / "clear.png")
    _, payload = prepare(GenerateRequest(prompt="A lake.", image=tmp_path / "clear.png"), RELEASED, ALL)
    np.testing.assert_array_equal(payload.tensors["pictures"][0].numpy(), moving(1, 40, 80)[0])


@pytest.mark.parametrize(("source_fps", "frames", "expected"), [(60.0, 60, 24), (12.0, 24, 48), (29.97, 60, 48)])
def test_clips_are_put_on_24_fps_from_their_true_rate(source_fps: float, frames: int, expected: int) -> None:
    request = GenerateRequest(prompt="A lake.", references=[VideoReference(moving(frames, 64, 128), fps=source_fps)])
    _, payload = prepare(request, RELEASED, ALL)
    assert payload.tensors["clips"][0].shape[0] == expected


@pytest.mark.parametrize("frames", [361, 375])
def test_a_clip_a_little_too_long_is_cut_to_the_film(frames: int) -> None:
    sound = tone((300.0, 300.0), 15.04, 32000)
    request = GenerateRequest(
        prompt="A lake.", references=[VideoReference(moving(frames, 32, 64), fps=24.0, sound=sound)], num_frames=345
    )
    _, payload = prepare(request, RELEASED, ALL)
    assert payload.tensors["clips"][0].shape[0] == 345
    assert payload.tensors["sounds"][0].shape[1] == 345 * 32000 // 24


@pytest.mark.parametrize("rate", [24000, 44100, 48000])
def test_the_pitch_of_a_reference_sound_is_kept(rate: int, samples: Samples, tmp_path: Path) -> None:
    """The rate travels with the samples, and diffusers resamples from it: 1 kHz stays 1 kHz."""
    from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3Ref2VASetupStep

    from splitreel.h3.media import encode_inputs

    wav = write_wav(tmp_path / "tone.wav", tone((1000.0,), 1.0, rate))
    request = GenerateRequest(prompt="A lake.", references=[ImageReference(samples.first), AudioReference(wav)])
    _, payload = prepare(request, RELEASED, ALL)
    reference = encode_inputs(payload, RELEASED)["references"][1]
    waveform = MiniMaxH3Ref2VASetupStep._normalize_audio_condition(
        reference.audio, reference.sample_rate, RELEASED.sample_rate, max_duration=5
    ).numpy()
    assert waveform.shape == (2, 32000)
    assert abs(int(np.abs(np.fft.rfft(waveform[0])).argmax()) - 1000) <= 1


def test_twelve_references_of_three_kinds_are_served(samples: Samples) -> None:
    """Each kind has its own limit, a clip's own sound counts to none of them, and twelve in all are fine."""
    references = [
        *[ImageReference(samples.first)] * 6,
        *[VideoReference(samples.clip)] * 3,
        *[AudioReference(samples.mono)] * 3,
    ]
    _, payload = prepare(GenerateRequest(prompt="A lake.", references=references), RELEASED, ALL)
    assert {name: len(value) for name, value in payload.tensors.items()} == {"pictures": 6, "clips": 3, "sounds": 6}
    long = tone((300.0,), 15.0, 8000)
    request = GenerateRequest(
        prompt="A lake.",
        references=[ImageReference(samples.first), VideoReference(samples.clip), AudioReference(long)],
    )
    prepare(request, RELEASED, ALL)
