"""What the API says of a video and of what is wrong: in the client's words, with everything that decided a film."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest
from diffusers import MiniMaxH3Transformer3DModel

from lora_files import make_factors, tensors_of, write
from servers import body, png, served, serving
from splitreel.config import parse_config
from splitreel.h3.tiny import cached_tiny
from timed_h3 import TimedH3, settings

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("jobs")) as at:
        yield at


def data_url(width: int = 96, height: int = 48) -> str:
    return "data:image/png;base64," + base64.b64encode(png(width, height)).decode()


@pytest.mark.parametrize(
    "video_id",
    [
        "nonsense",
        "video_" + "0" * 23,
        "video_" + "g" * 24,
        "' OR '1'='1",
        "video_\0",
        "x" * 4000,
        "video_\u0661" * 3,
        "0",
    ],
)
def test_what_is_the_id_of_no_video_is_not_found(client: openai.OpenAI, http: httpx.Client, video_id: str) -> None:
    for ask in (client.videos.retrieve, client.videos.delete, client.videos.download_content):
        with pytest.raises(openai.NotFoundError, match="expected the id of one of your videos") as caught:
            ask(video_id)
        assert caught.value.code == "job_not_found"
    with pytest.raises(openai.NotFoundError):
        client.videos.list(after=video_id)
    for path in ("trace", "events"):
        assert http.get(f"/v1/videos/{quote(video_id)}/{path}").status_code == 404
    assert http.post(f"/v1/videos/{quote(video_id)}/cancel").status_code == 404


URL = {"url": "data:image/png;base64,bm8gcGljdHVyZQ=="}  # no picture


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"size": "100x50"},
            "size",
            "size: expected multiples of 32, found 100 wide, 50 high. Nearest: 96 wide, 64 high",
        ),
        ({"size": "2048x32"}, "size", "size: expected an aspect ratio"),
        ({"seconds": []}, "seconds", "seconds: "),
        ({"seconds": "6", "num_frames": 200}, "seconds", "either num_frames or seconds"),
        ({"num_frames": 7}, "num_frames", "num_frames: expected 124 to 345"),
        ({"input_reference": URL}, "input_reference", "input_reference: expected"),
        ({"keyframes": {"first": URL}}, "keyframes.first", "keyframes.first: expected"),
        ({"keyframes": {"last": URL}}, "keyframes.last", "keyframes.last: expected"),
        ({"keyframes": {"last": {}}}, "keyframes.last", "exactly one of url"),
        ({"references": [{"kind": "image", **URL}]}, "references[0]", "references[0]: expected"),
        ({"references": [{"kind": "film", **URL}]}, "references[0].kind", "references[0].kind: "),
        ({"lora": ["x"]}, "lora", "lora: expected a loaded adapter"),
        ({"prompt": " "}, "prompt", "prompt: expected a text"),
    ],
)
def test_an_error_names_what_the_client_sent(
    http: httpx.Client, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = http.post("/v1/videos", json=body(**fields))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"], error


def test_names_where_a_guide_is_the_first_of_the_references(tmp_path: Path) -> None:
    """On a server without keyframes `input_reference` is put before the references; errors count as the client did."""
    plain = settings(tmp_path)
    config = parse_config({**plain, "model": {"path": "tiny", "workflow": ["t2va", "ref2va"]}})
    with serving(config, TimedH3()) as (address, _), httpx.Client(base_url=address, timeout=30) as http:
        good = {"url": data_url()}
        for fields, param in (
            ({"input_reference": URL}, "input_reference"),
            ({"input_reference": good, "references": [{"kind": "image", **URL}]}, "references[0]"),
            ({"keyframes": {"first": good}}, "keyframes"),
        ):
            error = http.post("/v1/videos", json=body(**fields)).json()["error"]
            assert error["param"] == param, error
        assert "image or last_image" not in error["message"]


def test_a_form_takes_adapters_as_json_text(client: openai.OpenAI, http: httpx.Client) -> None:
    """OpenAI's client sends a form, and leaves an empty list out of it."""
    made = client.videos.create(prompt="A lake.", extra_body={"lora": json.dumps([]), "steps": 2})
    assert (made.model_extra or {})["lora"] == []
    for value in ("turbo", "", '["turbo"'):
        answer = http.post("/v1/videos", data={"prompt": "A lake.", "lora": value}, files={"steps": (None, "2")})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "lora")
        assert 'expected JSON text in a form, such as [{"name": "turbo", "scale": 0.8}], found' in error["message"]
        assert "json.dumps" in error["message"]


def test_what_decided_a_video_is_shown(tmp_path: Path) -> None:
    """Adapters of the config or of the request, keyframes, references, deadline: on the released blocks, made tiny."""
    transformer = MiniMaxH3Transformer3DModel.from_pretrained(str(cached_tiny()), subfolder="transformer")
    path = write(tmp_path / "turbo.safetensors", tensors_of(make_factors(transformer)))
    plain = settings(tmp_path / "jobs")
    role = {"device": "cpu", "dtype": "float32", "threads": 1}
    roles = {"encoder_decoder": role, "dit": role}
    config = parse_config({**plain, "roles": roles, "lora": {"turbo": {"path": str(path), "scale": 0.5}}})
    url = {"url": data_url()}
    with serving(config) as (address, _), httpx.Client(base_url=address, timeout=60) as http:

        def shown(**fields: Any) -> dict[str, Any]:
            video = http.post("/v1/videos", json=body(steps=2, **fields)).json()
            found: dict[str, Any] = http.get(f"/v1/videos/{video['id']}").json()
            http.post(f"/v1/videos/{video['id']}/cancel")
            assert found["lora"] == video["lora"]
            return found

        assert shown()["lora"] == [{"name": "turbo", "scale": 0.5}], "the server's own"
        assert shown(lora=[])["lora"] == []
        assert shown(lora=[{"name": "turbo", "scale": -1}])["lora"] == [{"name": "turbo", "scale": -1.0}]
        video = shown(keyframes={"last": url}, priority=3, deadline=600, seed=9)
        assert (video["keyframes"], video["references"], video["seed"]) == (["last"], [], 9)
        assert (video["priority"], video["deadline_at"]) == (3, pytest.approx(video["created_at"] + 600, abs=1))
        video = shown(references=[{"kind": "image", **url}], num_frames=141)
        assert (video["keyframes"], video["references"]) == ([], [{"kind": "image", "fps": None}])
        assert (video["num_frames"], video["deadline_at"]) == (141, None)
