"""The API on a real socket, stages by the clock: OpenAI's own client, our additions, bounds, keys, and going away."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

import splitreel
from samples import Samples
from servers import body, png, served, until_ended, wait_for
from splitreel.media import film_facts
from splitreel.serve.http.keys import make_key
from timed_h3 import marked, plain_film

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("jobs"), model_names=["sora-2"]) as at:
        yield at


# OpenAI's client --------------------------------------------------------------------------------------------------------


def test_create_poll_download_list_delete(client: openai.OpenAI, tmp_path: Path) -> None:
    made = client.videos.create(prompt="A lake.", model="sora-2", size="128x64", extra_body={"steps": 4, "seed": 77})  # type: ignore[call-overload]
    assert (made.status, made.progress, made.object, made.size) == ("queued", 0, "video", "128x64")
    done = client.videos.poll(made.id, poll_interval_ms=30)
    assert (done.status, done.progress, done.error) == ("completed", 100, None)
    assert done.completed_at is not None
    assert done.expires_at == pytest.approx(done.completed_at + 7 * 86_400, abs=2)
    assert done.model_extra is not None
    assert (done.model_extra["seed"], done.model_extra["steps"], done.model_extra["num_frames"]) == (77, 4, 124)
    content = client.videos.download_content(done.id)
    content.write_to_file(tmp_path / "film.mp4")
    assert (tmp_path / "film.mp4").read_bytes() == plain_film() + marked(77)
    assert film_facts(tmp_path / "film.mp4").frames == 124
    thumbnail = client.videos.download_content(done.id, variant="thumbnail")
    assert Image.open(BytesIO(thumbnail.read())).format == "WEBP"
    sheet = Image.open(BytesIO(client.videos.download_content(done.id, variant="spritesheet").read()))
    assert (sheet.format, sheet.size) == ("JPEG", (256, 96)), "twelve frames of 64x32, four in a row"
    others = [client.videos.create(prompt=f"Lake {index}.", extra_body={"steps": 2}).id for index in range(4)]
    listed = [video.id for video in client.videos.list(limit=2)]
    assert listed[:5] == [*others[::-1], done.id], "the client follows the pages by itself"
    assert listed == [video.id for video in client.videos.list(order="asc")][::-1]
    for video_id in [*others, done.id]:
        client.videos.poll(video_id, poll_interval_ms=30)
        deleted = client.videos.delete(video_id)
        assert (deleted.deleted, deleted.object, deleted.id) == (True, "video.deleted", video_id)
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(done.id)


def test_pictures_clips_and_sounds(client: openai.OpenAI, http: httpx.Client, samples: Samples) -> None:
    first = client.videos.create_and_poll(
        prompt="The fog lifts.", input_reference=samples.first, poll_interval_ms=30, extra_body={"steps": 2}
    )
    assert first.status == "completed"
    assert (first.model_extra or {})["workflow"] == "fl2va"
    url = "data:image/png;base64," + base64.b64encode(png()).decode()
    # The client's own argument takes no {"image_url": ...}, though its types say so (3.57).
    by_url = client.videos.create(prompt="Fog.", extra_body={"steps": 2, "input_reference": {"image_url": url}})
    assert (by_url.model_extra or {})["workflow"] == "fl2va"
    # The client spells nested fields of a form keyframes[last][url].
    both = client.videos.create(
        prompt="Fog.",
        input_reference=("a.png", png(), "image/png"),
        extra_body={"steps": 2, "keyframes": {"last": {"url": url}}},
    )
    assert (both.model_extra or {})["workflow"] == "fl2va"
    references = [
        {"kind": "image", "url": url},
        {"kind": "video", "upload": "walk", "fps": 24},
        {"kind": "audio", "upload": "voice"},
    ]
    files = {
        "walk": ("walk.mp4", samples.clip.read_bytes(), "video/mp4"),
        "voice": ("voice.wav", samples.mono.read_bytes(), "audio/wav"),
    }
    form = {"prompt": "She walks.", "steps": "2", "references": json.dumps(references)}
    made = http.post("/v1/videos", data=form, files=files)
    assert made.status_code == 200, made.text
    assert made.json()["workflow"] == "ref2va"
    assert until_ended(http, made.json()["id"])["status"] == "completed"
    unused = http.post("/v1/videos", data={"prompt": "A lake."}, files={"walk": files["walk"]})
    assert "walk: expected files named input_reference" in unused.json()["error"]["message"]


def test_errors_are_the_clients_own_classes(client: openai.OpenAI, http: httpx.Client) -> None:
    with pytest.raises(openai.BadRequestError, match="seconds: expected 124 to 345 frames") as short:
        client.videos.create(prompt="A lake.", seconds="4")
    assert (short.value.code, short.value.param, short.value.type) == (
        "invalid_request",
        "seconds",
        "invalid_request_error",
    )
    with pytest.raises(openai.BadRequestError, match="negative_prompt: not a field of a video request"):
        client.videos.create(prompt="A lake.", extra_body={"negative_prompt": "fog"})
    with pytest.raises(openai.NotFoundError, match="model: expected sora-2 or tiny, found 'sora-9'"):
        client.videos.create(prompt="A lake.", model="sora-9")
    with pytest.raises(openai.NotFoundError, match="expected the id of one of your videos"):
        client.videos.retrieve("video_" + "0" * 24)
    long = client.videos.create(prompt="A lake.", extra_body={"steps": 1000})
    with pytest.raises(openai.ConflictError, match=r"expected a completed one, found it (queued|in_progress)") as early:
        client.videos.download_content(long.id)
    assert early.value.code == "not_finished"
    assert int(early.value.response.headers["retry-after"]) >= 1
    assert http.get(f"/v1/videos/{long.id}/trace").json()["error"]["code"] == "not_finished"
    wait_for(lambda: client.videos.retrieve(long.id).status == "in_progress", 20)
    with pytest.raises(openai.ConflictError, match="Cancel it first"):
        client.videos.delete(long.id)
    assert http.post(f"/v1/videos/{long.id}/cancel").status_code == 200
    ended = client.videos.poll(long.id, poll_interval_ms=30)
    assert ended.status == "failed"
    assert ended.error is not None
    assert ended.error.code == "cancelled"
    assert "denoise stopped after step" in ended.error.message
    with pytest.raises(openai.ConflictError, match=r"found it cancelled: .*denoise stopped after step") as never:
        client.videos.download_content(long.id)
    assert (never.value.code, never.value.response.headers["x-should-retry"]) == ("video_failed", "false")
    assert "retry-after" not in never.value.response.headers
    models = [model.id for model in client.models.list()]
    assert models == ["sora-2", "tiny"]
    assert client.models.retrieve("tiny").object == "model"


# What we add --------------------------------------------------------------------------------------------------------------


def test_events_tell_each_step_and_end_with_the_job(tmp_path: Path) -> None:
    """Steps that come faster than 20 a second are told together."""
    with (
        served(tmp_path, step_seconds=0.06) as address,
        httpx.Client(base_url=address, timeout=30) as http,
    ):
        until_ended(http, http.post("/v1/videos", json=body(steps=2)).json()["id"])  # before it there is no ETA
        video_id = http.post("/v1/videos", json=body(steps=30)).json()["id"]
        with http.stream("GET", f"/v1/videos/{video_id}/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answer.iter_lines() if line]
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        assert names[-1] == "completed"
        progress = [event["progress"] for event in events]
        assert progress == sorted(progress)
        steps = [(event["done"], event["total"]) for event in events if event["stage"] == "denoise"]
        assert len(steps) > 10
        assert {total for _, total in steps} == {29}
        assert any(event["eta"] for event in events if event["stage"] == "denoise")
        assert http.get("/v1/videos/video_000000000000000000000000/events").status_code == 404


def test_events_of_a_deleted_video_end(address: str, http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    running = [http.post("/v1/videos", json=body(steps=1000)).json()["id"] for _ in range(5)]
    waiting = http.post("/v1/videos", json=body(priority=-9)).json()["id"]
    with splitreel.Client(address) as client:
        events = client.events(waiting)
        assert next(events)["status"] == "queued"
        assert http.delete(f"/v1/videos/{waiting}").status_code == 200
        assert {event["status"] for event in events} <= {"queued"}, "and the stream is whole"
        with pytest.raises(splitreel.RequestError, match="expected the id of one of your videos"):
            next(client.events(waiting))
    for video_id in running:
        http.post(f"/v1/videos/{video_id}/cancel")
    for video_id in running:
        until_ended(http, video_id)
    assert "Traceback" not in caplog.text


def test_where_the_time_went(http: httpx.Client) -> None:
    video_id = http.post("/v1/videos", json=body(steps=5)).json()["id"]
    until_ended(http, video_id)
    trace = http.get(f"/v1/videos/{video_id}/trace").json()
    assert trace["status"] == "completed"
    parts = {part["part"]: part["seconds"] for part in trace["parts"]}
    assert parts["denoise"] >= 4 * 0.01
    assert {span["name"] for span in trace["spans"]} >= {"request", "encode", "denoise", "decode", "hop.materialize"}
    assert http.get(f"/v1/videos/{video_id}/trace", params={"format": "chrome"}).json()["traceEvents"]
    picture = http.get(f"/v1/videos/{video_id}/trace", params={"format": "gantt"})
    assert Image.open(BytesIO(picture.content)).format == "PNG"


def test_an_idempotency_key_makes_one_video(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "order-1"}
    answers = [http.post("/v1/videos", json=body(prompt="Once."), headers=headers).json()["id"] for _ in range(3)]
    assert len(set(answers)) == 1
    other = http.post("/v1/videos", json=body(prompt="Twice."), headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "key_reused")
    form = http.post("/v1/videos", data=body(prompt="Once."), files={"input_reference": png()}, headers=headers)
    assert form.status_code == 422, "other media are another request"


def test_a_deadline_fails_what_is_not_done_by_then(http: httpx.Client) -> None:
    made = http.post("/v1/videos", json=body(steps=1000, deadline=0.5)).json()
    ended = until_ended(http, made["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "deadline_exceeded")
    assert "within the 0.5 s that the request gave it" in ended["error"]["message"]


def test_a_client_that_goes_away_costs_no_job(address: str, http: httpx.Client) -> None:
    def gone() -> list[dict[str, Any]]:
        videos = http.get("/v1/videos", params={"limit": 100}).json()["data"]
        return [video for video in videos if video["prompt"] == "Gone."]

    content = json.dumps(body(prompt="Gone.", steps=30)).encode()
    head = (
        "POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode()
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(head + content[:10])
    with socket.create_connection(("127.0.0.1", port)) as whole:
        whole.sendall(head + content)
        wait_for(gone, 20)  # and leaves without reading the answer
    (video,) = gone()
    with http.stream("GET", f"/v1/videos/{video['id']}/events") as following:
        next(following.iter_lines())  # and stops to follow
    assert until_ended(http, video["id"])["status"] == "completed"
    assert len(gone()) == 1


def test_probes_and_figures(http: httpx.Client) -> None:
    assert http.get("/health").json()["status"] == "alive"
    ready = http.get("/ready").json()
    assert ready["status"] == "ready"
    assert {worker["role"] for worker in ready["workers"]} == {"encoder_decoder", "dit"}
    figures = http.get("/metrics").text
    assert 'splitreel_jobs{state="completed"}' in figures
    assert 'splitreel_http_answers_total{method="POST",status="200"}' in figures
    assert "splitreel_worker_busy_share" in figures
    headers = http.get("/v1/videos").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


# Bounds and keys ------------------------------------------------------------------------------------------------------------


def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    with (
        served(tmp_path, step_seconds=0.05, max_queued=2) as address,
        httpx.Client(base_url=address, timeout=30) as http,
    ):
        answers = [http.post("/v1/videos", json=body(steps=9)) for _ in range(12)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert {answer.status_code for answer in answers} == {200, 429}
        assert refused[0].json()["error"]["code"] == "queue_full"
        assert 1 <= int(refused[0].headers["retry-after"]) <= 60, "60 until a film was made"
        for answer in answers:
            if answer.status_code == 200:
                until_ended(http, answer.json()["id"])
        again = [http.post("/v1/videos", json=body(steps=9)) for _ in range(12)]
        assert int(next(a for a in again if a.status_code == 429).headers["retry-after"]) <= 2, (
            "films take half a second"
        )
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            for answer in again:
                if answer.status_code == 200:
                    until_ended(http, answer.json()["id"])
            fill = (http.post("/v1/videos", json=body(steps=90)).status_code for _ in range(30))
            assert 429 in fill
            with pytest.raises(openai.RateLimitError, match="expected room for one more video"):
                client.videos.create(prompt="A lake.")


def test_keys_separate_their_owners(tmp_path: Path) -> None:
    (ann, ann_digest), (bob, bob_digest) = make_key(), make_key()
    keys = [{"name": "ann", "sha256": ann_digest, "max_active": 1}, {"name": "bob", "sha256": bob_digest}]
    with served(tmp_path, step_seconds=0.02, keys=keys) as address:
        http = {
            name: httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=30)
            for name, key in (("ann", ann), ("bob", bob), ("none", ""), ("wrong", ann[:-1] + "!"))
        }
        for name in ("none", "wrong"):
            answer = http[name].get("/v1/videos")
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert http[name].get("/metrics").status_code == 401
            assert http[name].get("/health").status_code == 200
        assert http["none"].get("/", auth=("any", ann)).status_code == 404, "a browser sends the key as a password"
        assert http["none"].get("/").headers["www-authenticate"].startswith("Basic")
        twice = [("Authorization", f"Bearer {ann}"), ("Authorization", f"Bearer {bob}")]
        assert http["none"].get("/v1/videos", headers=twice).status_code == 401
        mine = http["ann"].post("/v1/videos", json=body(steps=40)).json()["id"]
        over = http["ann"].post("/v1/videos", json=body())
        assert (over.status_code, over.json()["error"]["code"]) == (429, "over_quota")
        assert http["bob"].post("/v1/videos", json=body()).status_code == 200
        assert mine not in [video["id"] for video in http["bob"].get("/v1/videos").json()["data"]]
        for method, path in (
            ("GET", ""),
            ("GET", "/content"),
            ("GET", "/trace"),
            ("GET", "/events"),
            ("POST", "/cancel"),
            ("DELETE", ""),
        ):
            assert http["bob"].request(method, f"/v1/videos/{mine}{path}").status_code == 404
        assert until_ended(http["ann"], mine)["status"] == "completed"
        with (
            openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError, match="expected `Bearer` and a key of this server"),
        ):
            client.videos.list()
        for made in http.values():
            made.close()


def test_many_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    """A small version of benchmarks/serve_load.py: 20 clients with 2 videos each, /health meanwhile."""
    with served(tmp_path, step_seconds=0.002, max_queued=15) as address:
        outcomes: list[tuple[int, str, int]] = []
        waits: list[float] = []
        stop = threading.Event()

        def watch() -> None:
            with httpx.Client(base_url=address, timeout=30) as http:
                while not stop.is_set():
                    began = time.monotonic()
                    assert http.get("/health").status_code == 200
                    waits.append(time.monotonic() - began)
                    stop.wait(0.02)

        def work(index: int) -> None:
            with httpx.Client(base_url=address, timeout=60) as http:
                for turn in range(2):
                    seed = index * 10 + turn
                    answer = http.post("/v1/videos", json=body(seed=seed))
                    if answer.status_code == 429:
                        outcomes.append((429, "", seed))
                        continue
                    video = until_ended(http, answer.json()["id"])
                    film = http.get(f"/v1/videos/{video['id']}/content").content
                    assert film.endswith(marked(seed)), "a film of another's request"
                    outcomes.append((200, video["id"], seed))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(20)]
        watcher = threading.Thread(target=watch)
        for thread in (watcher, *threads):
            thread.start()
        for thread in threads:
            thread.join(100)
        stop.set()
        watcher.join(20)
        done = [video_id for status, video_id, _ in outcomes if status == 200]
        assert len(outcomes) == 40
        assert len(set(done)) == len(done)
        with httpx.Client(base_url=address) as http:
            counts = {
                line.split('"')[1]: float(line.split()[-1])
                for line in http.get("/metrics").text.splitlines()
                if line.startswith("splitreel_jobs{")
            }
        assert counts["completed"] == len(done)
        assert counts["queued"] == counts["in_progress"] == counts["failed"] == 0
        assert len(waits) > 10


def test_the_document_is_complete(http: httpx.Client) -> None:
    document: dict[str, Any] = http.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert "500" in operation["responses"], (path, method)
            if path.startswith("/v1"):
                assert {"401", "403"} <= set(operation["responses"]), (path, method)
    create = document["paths"]["/v1/videos"]["post"]
    assert set(create["requestBody"]["content"]) == {"application/json", "multipart/form-data"}
    assert set(create["responses"]) >= {"200", "400", "408", "413", "415", "422", "429", "503"}
    assert "HTTPValidationError" not in json.dumps(document)
