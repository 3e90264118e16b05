"""The server on an embedded cluster of two nodes with a tiny checkpoint: OpenAI's client, and a DiT worker that is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from configs import roles_config
from samples import make_samples
from servers import body, serving, until_ended, wait_for
from splitreel.config import ServeConfig
from splitreel.media import film_facts
from splitreel.serve.jobs.service import JobService

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, JobService]]:
    engine = {"heartbeat": 0.5, "lost_after": 10.0, "restart_pause": 0.1, "restarts": 10}
    config = roles_config("embedded", "tiny", ["t2va", "fl2va"], engine=engine)
    serve = ServeConfig(folder=str(tmp_path_factory.mktemp("jobs")), port=0)
    with serving(config.model_copy(update={"serve": serve})) as started:
        yield started


def test_openais_client_as_it_is(server: tuple[str, JobService], tmp_path: Path) -> None:
    samples = make_samples(tmp_path)
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0) as client:
        plain = client.videos.create(prompt="A lake.", extra_body={"steps": 3, "seed": 5})
        guided = client.videos.create(
            prompt="The fog lifts.", input_reference=samples.first, extra_body={"steps": 3, "seed": 5}
        )
        films = []
        for video in (plain, guided):
            done = client.videos.poll(video.id, poll_interval_ms=50)
            assert (done.status, done.progress) == ("completed", 100), done.error
            target = tmp_path / f"{video.id}.mp4"
            client.videos.download_content(video.id).write_to_file(target)
            facts = film_facts(target)
            assert (facts.frames, facts.fps, facts.audio_codec) == (124, 24.0, "aac")
            films.append(target.read_bytes())
        assert films[0] != films[1]
        assert [video.id for video in client.videos.list()] == [guided.id, plain.id]
        assert client.videos.delete(plain.id).deleted
        assert [video.id for video in client.videos.list()] == [guided.id]
        client.videos.delete(guided.id)
        with pytest.raises(openai.BadRequestError, match="expected a picture"):
            client.videos.create(prompt="A lake.", input_reference=("a.png", b"no picture", "image/png"))


# Each costs the start of a process that imports torch; three in a row are what this was first run with.
KILLS = int(os.environ.get("SPLITREEL_TEST_KILLS", "1"))


def test_a_dit_worker_that_is_killed(server: tuple[str, JobService]) -> None:
    """Two done, one running, five queued; the DiT worker is killed in the midst of a job: all eight are made, once."""
    address, service = server

    def dit() -> int:
        """Its process; 0 while it is away, and a signal to 0 would reach the tests themselves."""
        return next(worker.pid for worker in service.deployment.workers if worker.role == "dit")

    with httpx.Client(base_url=address, timeout=30) as http:

        def post(steps: int) -> str:
            return str(http.post("/v1/videos", json=body(steps=steps)).json()["id"])

        ids = [post(2), post(2)]
        for video_id in ids:
            until_ended(http, video_id)
        ids += [post(60) for _ in range(6)]
        killed: set[int] = set()
        for _ in range(KILLS):

            def denoises() -> bool:
                running = [http.get(f"/v1/videos/{video_id}").json() for video_id in ids]
                return dit() not in {0, *killed} and any(
                    video["stage"] == "denoise" and (video["done"] or 0) >= 2 for video in running
                )

            wait_for(denoises, 60)
            pid = dit()
            assert pid > 1
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        for video_id in ids:
            assert until_ended(http, video_id, 90)["status"] == "completed"
        states = Counter(video["status"] for video in http.get("/v1/videos").json()["data"])
        assert states == {"completed": 8}
        assert http.get("/ready").json()["status"] == "ready"
    assert len(killed) == KILLS
    films = Counter(path.parent.name for path in service.folder.root.glob("video_*/film-*.mp4"))
    assert films == Counter(dict.fromkeys(ids, 1))
