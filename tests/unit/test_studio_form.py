"""The studio's form: what the page sends becomes a request or words; a job's settings make the same film again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from splitreel.config import parse_config
from splitreel.errors import ConfigError, InvalidRequest
from splitreel.lora import LoraUse
from splitreel.serve.jobs.folder import JobFolder
from splitreel.serve.jobs.view import JobView
from splitreel.serve.studio import shown
from splitreel.serve.studio.form import Form, form_of, request_of
from splitreel.serve.studio.mount import mount_studio
from splitreel.serve.studio.uploads import Uploads, kind_of
from timed_h3 import settings


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Uploads:
    for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED"):
        monkeypatch.setenv(name, "")
    made = Uploads(tmp_path / "uploads", parse_config(settings(tmp_path)).serve)
    made.open()
    return made


def view(request: dict[str, Any], num_frames: int = 124) -> JobView:
    """A completed job."""
    made = {"width": 64, "height": 32, "seconds": num_frames / 24, "steps": 50, "seed": 2**60 + 1, "workflow": "t2va"}
    plain = {"prompt": "<img src=x onerror=alert(1)>", "width": None, "steps": None, **request}
    times = {"created": 1.0, "started": 1.0, "ended": 2.0, "deadline": None}
    made["warnings"] = ["<b>rounded</b>"]
    return JobView(
        "video_1", "", "completed", **times, priority=0, request=plain, effective=made, progress=100, attempts=1
    )


def test_a_form_becomes_a_request(uploads: Uploads) -> None:
    form = Form(prompt="A lake", size=" 832×480 ", seconds="6.5", steps="20", seed=str(2**62 + 1), priority=3.0)
    request = request_of(form, uploads)
    assert (request.width, request.height, request.seconds, request.steps) == (832, 480, 6.5, 20)
    assert (request.seed, request.priority) == (2**62 + 1, 3)
    plain = request_of(Form(prompt="A lake"), uploads)
    assert (plain.width, plain.seconds, plain.steps, plain.seed, plain.lora) == (None, None, None, None, None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": " "}, "prompt: expected a text"),
        ({"prompt": None}, "prompt: expected a text"),
        ({"prompt": "x" * 40_000}, "prompt: expected at most 32000"),
        ({"size": "wide"}, "size: expected WIDTHxHEIGHT"),
        ({"size": "9" * 30 + "x1"}, "size: expected WIDTHxHEIGHT"),
        ({"seconds": "nan"}, "length: expected a number"),
        ({"seconds": {"a": 1}}, "length: expected a number"),
        ({"steps": "1.5"}, "steps: expected a whole number"),
        ({"steps": "1"}, "steps: expected 2 or more"),
        ({"seed": "-1"}, "seed: expected a whole number from 0"),
        ({"seed": "9" * 40}, "seed: expected a whole number"),
        ({"references": "x"}, "references: expected a list"),
        ({"references": [{"path": "/etc/hostname"}]}, "references: expected files"),
        ({"references": [{"path": "/etc/hostname", "kind": "image"}]}, "upload: expected a file"),
        ({"first": {"path": "/etc/hostname"}}, "upload: expected a file"),
        ({"lora": ["a"], "lora_scale": "inf"}, "lora scale: expected a number"),
    ],
)
def test_what_is_wrong_is_said(uploads: Uploads, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        request_of(Form(**{"prompt": "A lake", **fields}), uploads)


def test_only_uploads_are_files(uploads: Uploads, tmp_path: Path) -> None:
    own = uploads.root / "a.png"
    own.write_bytes(b"x")
    (uploads.root / "link").symlink_to("/etc/hostname")
    uploads.check([{"a": [{"path": str(own)}]}, 3, None, "text"])
    for path in (str(uploads.root), f"{uploads.root}/link", f"{uploads.root}/../x", "http://a/x", "a.png", 3, None):
        with pytest.raises(InvalidRequest):
            uploads.check([{"a": [{"path": path}]}])


@pytest.mark.parametrize("num_frames", range(124, 346, 17))
def test_the_length_that_is_filled_in_makes_the_same_film(uploads: Uploads, tmp_path: Path, num_frames: int) -> None:
    form = form_of(view({}, num_frames), JobFolder(tmp_path / "jobs"), uploads)
    request = request_of(form, uploads)
    assert request.seconds is not None
    assert num_frames - 1 < request.seconds * 24 <= num_frames
    assert (request.seed, request.steps) == (2**60 + 1, 50)


def test_media_that_are_gone_are_left_out(uploads: Uploads, tmp_path: Path) -> None:
    entries = [{"kind": "image", "file": "reference-0"}, {"kind": "audio", "file": "reference-1"}]
    folder = JobFolder(tmp_path / "jobs")
    folder.inputs("video_1").mkdir(parents=True)
    (folder.inputs("video_1") / "reference-1").write_bytes(b"sound")
    form = form_of(view({"image": "image", "references": entries}), folder, uploads)
    assert form.first is None
    assert [entry["kind"] for entry in form.references] == ["audio"]
    assert request_of(form, uploads).workflow == "ref2va"


def test_no_adapters_is_a_choice_of_its_own(uploads: Uploads, tmp_path: Path) -> None:
    """Nothing chosen is the server's own adapters; none is none; both is a mistake."""
    folder = JobFolder(tmp_path / "jobs")
    assert request_of(Form(prompt="A lake"), uploads).lora is None
    assert request_of(Form(prompt="A lake", lora=[""]), uploads).lora == ()
    assert request_of(Form(prompt="A lake", lora=["none"]), uploads).lora == (LoraUse("none", 1.0),), "a name like any"
    with pytest.raises(InvalidRequest, match="lora: expected none or adapters, found none and turbo"):
        request_of(Form(prompt="A lake", lora=["", "turbo"]), uploads)
    chosen: tuple[tuple[Any, Any], ...] = (
        (None, None),
        ([], ()),
        ([{"name": "a", "scale": 2.0}], (LoraUse("a", 2.0),)),
    )
    for lora, again in chosen:
        assert request_of(form_of(view({"lora": lora}), folder, uploads), uploads).lora == again


def test_what_clients_wrote_is_escaped() -> None:
    item = view({})
    pages = (shown.film(item, traced=True), shown.history([item], "", more=True), shown.notice("<b>", "error"))
    listed = shown.references([{"kind": "image", "orig_name": "<b>.png"}])
    for text in (*pages, listed):
        assert "<b>" not in text.replace("<b>0", "")
        assert "<img src=x" not in text


def test_kinds_by_name() -> None:
    assert [kind_of(name) for name in ("a.PNG", "b.mp4", "c.wav")] == ["image", "video", "audio"]
    with pytest.raises(InvalidRequest, match="pictures, clips and sounds"):
        kind_of("notes.txt")


def test_wanted_and_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Service:
        config = parse_config(settings(tmp_path, studio=True))

    service: Any = Service()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"serve\.studio: expected the page's package"):
        mount_studio(None, service)  # type: ignore[arg-type]
    Service.config = parse_config(settings(tmp_path, studio=None))
    assert not mount_studio(None, service)  # type: ignore[arg-type]
