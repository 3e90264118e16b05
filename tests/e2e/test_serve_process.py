"""Servers as processes: killed, stopped, two at once on one ledger."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from servers import body, timed_server, until_ended, wait_for
from timed_h3 import marked

pytestmark = pytest.mark.timeout(180)


def videos(http: httpx.Client) -> dict[str, dict[str, object]]:
    """All videos by id."""
    return {video["id"]: video for video in http.get("/v1/videos", params={"limit": 100}).json()["data"]}


def check_whole(http: httpx.Client, seeds: dict[str, int]) -> None:
    """Every job ended completed, with the film of its own request, and there is none but them."""
    for video_id, seed in seeds.items():
        assert until_ended(http, video_id, 60)["status"] == "completed"
        assert http.get(f"/v1/videos/{video_id}/content").content.endswith(marked(seed))
    assert set(videos(http)) == set(seeds)


def post(http: httpx.Client, seed: int, steps: int) -> str:
    answer = http.post("/v1/videos", json=body(seed=seed, steps=steps))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_killed_three_times_in_a_row(tmp_path: Path) -> None:
    """Five queued, one running, two done; then SIGKILL, three times, each time while one runs."""
    log = tmp_path / "runs"
    options = {"step_seconds": 0.1, "log": log, "lease": 20.0}
    seeds: dict[str, int] = {}
    port = 0
    for turn in range(4):
        with timed_server(tmp_path, port=port, **options) as server:  # type: ignore[arg-type]
            port = int(server.address.rpartition(":")[2])
            server.until_ready()
            with httpx.Client(base_url=server.address, timeout=30) as http:
                if turn == 0:
                    for seed in range(2):
                        seeds[post(http, seed, 2)] = seed
                    for video_id in seeds:
                        until_ended(http, video_id)
                    for seed in range(2, 8):
                        seeds[post(http, seed, 15)] = seed
                states = Counter(str(video["status"]) for video in videos(http).values())
                if turn == 0:
                    assert states["completed"] == 2
                if turn < 3:
                    wait_for(lambda http=http: any(v["stage"] == "denoise" for v in videos(http).values()), 20)  # type: ignore[misc]
                    began = time.monotonic()
                    server.kill()
                    assert time.monotonic() - began < 10
                else:
                    check_whole(http, seeds)
    lines = log.read_text().split("\n")[:-1]
    assert len(lines) >= 8 + 3, "what ran when the server was killed ran again"
    assert not list((tmp_path / "jobs").glob("video_*/.film*")), "no half film is left"
    films = Counter(path.parent.name for path in (tmp_path / "jobs").glob("video_*/film-*.mp4"))
    assert films == Counter(dict.fromkeys(seeds, 1))


def test_two_servers_on_one_ledger_run_no_job_twice(tmp_path: Path) -> None:
    log = tmp_path / "runs"
    folder = tmp_path / "jobs"
    with (
        timed_server(tmp_path / "one", step_seconds=0.01, log=log, jobs=folder) as one,
        timed_server(tmp_path / "two", step_seconds=0.01, log=log, jobs=folder, lease=4.0) as two,
    ):
        for server in (one, two):
            server.until_ready()
        with (
            httpx.Client(base_url=one.address, timeout=30) as first,
            httpx.Client(base_url=two.address, timeout=30) as second,
        ):
            seeds = {post(first if seed % 2 else second, seed, 8): seed for seed in range(24)}
            check_whole(first, seeds)
            runs = [line.split() for line in log.read_text().splitlines()]
            assert Counter(name for name, _ in runs) == Counter(dict.fromkeys(seeds, 1))
            assert len({pid for _, pid in runs}) == 2, "both worked"
            long = post(second, 99, 400)
            wait_for(lambda: first.get(f"/v1/videos/{long}").json()["status"] == "in_progress", 20)
            cancelled = first.post(f"/v1/videos/{long}/cancel").json()
            assert cancelled["status"] == "in_progress"
            assert until_ended(first, long)["error"]["code"] == "cancelled"


def test_told_to_stop_it_finishes_or_puts_back(tmp_path: Path) -> None:
    with timed_server(tmp_path, step_seconds=0.05, drain=1.0) as server:
        server.until_ready()
        with httpx.Client(base_url=server.address, timeout=30) as http:
            short, long, waiting = (post(http, seed, steps) for seed, steps in ((1, 4), (2, 600), (3, 4)))
            with http.stream("GET", f"/v1/videos/{long}/events") as following:
                lines = following.iter_lines()
                next(lines)
                wait_for(lambda: http.get(f"/v1/videos/{long}").json()["stage"] == "denoise", 20)
                server.tell(signal.SIGTERM)
                wait_for(lambda: http.post("/v1/videos", json=body()).status_code == 503, 5)
                refused = http.post("/v1/videos", json=body())
                assert "draining" in refused.json()["error"]["message"]
                assert refused.headers["retry-after"]
                for _ in lines:
                    pass  # the stream ends with the server, not with a timeout
        assert server.wait() == 0
        assert "put back into the queue" in server.said()
        assert '{"failure": null}' in server.output.read_text()
    with timed_server(tmp_path, step_seconds=0.001) as server:
        server.until_ready()
        with httpx.Client(base_url=server.address, timeout=30) as http:
            check_whole(http, {short: 1, long: 2, waiting: 3})
            assert http.get(f"/v1/videos/{long}").json()["attempts"] == 1, "being put back in order costs no attempt"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(tmp_path: Path, number: int) -> None:
    with timed_server(tmp_path, step_seconds=0.05, drain=60.0) as server:
        server.until_ready()
        with httpx.Client(base_url=server.address, timeout=30) as http:
            long = post(http, 1, 600)
            wait_for(lambda: http.get(f"/v1/videos/{long}").json()["stage"] == "denoise", 20)
        server.tell(number)
        wait_for(lambda: "a second signal ends at once" in server.said(), 10)
        assert server.stop(number) == 128 + number


def test_stopped_while_it_loads(tmp_path: Path) -> None:
    with timed_server(tmp_path) as server:
        assert httpx.get(f"{server.address}/health", timeout=20).status_code == 200, "alive before it is ready"
        assert server.stop() == 0
