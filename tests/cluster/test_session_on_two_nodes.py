"""The product as a user has it: a session on an embedded cluster of two nodes, with a tiny checkpoint."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from configs import roles_config
from opened_files import watching
from splitreel import (
    ClusterError,
    GenerateRequest,
    GenerateResult,
    IncompleteCheckpoint,
    MissingComponent,
    RequestCancelled,
    Session,
)
from splitreel.cluster.connection import connect
from splitreel.h3.tiny import cached_tiny
from splitreel.media import film_facts
from splitreel.session_aio import AsyncSession

pytestmark = pytest.mark.timeout(180)


def request(index: int = 0, **fields: Any) -> GenerateRequest:
    return GenerateRequest(**{"prompt": f"Lake {index}.", "steps": 3, "seed": index, **fields})


def ray_processes() -> list[str]:
    """Command lines of this process's Ray descendants; a supervisor adopts them, so it is asked for them too."""
    return [
        " ".join(child.cmdline()[:3])
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    ]


def test_two_nodes_each_with_its_own_components(tmp_path: Path) -> None:
    """Each role has its own copy of the checkpoint, so that who opened what is known by where it lies."""
    copies = {role: tmp_path / role for role in ("encoder_decoder", "dit")}
    for copy in copies.values():
        shutil.copytree(cached_tiny(), copy)
    config = roles_config(
        "embedded",
        encoder_decoder={"model_path": str(copies["encoder_decoder"])},
        dit={"model_path": str(copies["dit"])},
    )
    with (
        watching(copies["encoder_decoder"]) as opened_by_a,
        watching(copies["dit"]) as opened_by_b,
        Session(config) as session,
    ):
        health = {worker.role: worker for worker in session.health()}
        result = session.generate(request())
        files = session.generate(request()).save(tmp_path / "film.mp4")
    assert set(health["encoder_decoder"].components) == {"audio_vae", "processor", "text_encoder", "tokenizer", "vae"}
    assert set(health["dit"].components) == {"transformer", "scheduler", "audio_scheduler"}
    assert health["encoder_decoder"].node_id != health["dit"].node_id
    assert health["encoder_decoder"].pid != health["dit"].pid
    assert {worker.loads for worker in health.values()} == {1}

    def weights(opened: set[str]) -> set[str]:
        return {path.split("/")[0] for path in opened if path.endswith(".safetensors")}

    assert weights(opened_by_a) == {"text_encoder", "vae", "audio_vae"}
    assert weights(opened_by_b) == {"transformer"}
    assert "vae/config.json" in opened_by_b, "the DiT role reads the facts of what it does not load"

    facts = film_facts(files)
    assert (facts.video_codec, facts.fps, facts.frames) == ("h264", 24.0, 124)
    assert (facts.audio_codec, facts.sample_rate, facts.channels) == ("aac", 32000, 2)
    assert (facts.video_start, facts.audio_start) == (0.0, 0.0)
    assert abs(facts.video_seconds - facts.audio_seconds) < 1 / 24
    assert result.video_bytes is not None
    assert {timing.stage: timing.worker for timing in result.timings} == {
        "encode": "encoder_decoder",
        "denoise": "dit",
        "decode": "encoder_decoder",
    }
    assert ray_processes() == []


def test_a_damaged_checkpoint_leaves_nothing_running(tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(cached_tiny(), copy)
    (copy / "transformer/diffusion_pytorch_model-00002-of-00004.safetensors").unlink()
    with pytest.raises(
        IncompleteCheckpoint, match=r"node 127\.0\.0\.\d, role dit, transformer: expected the weights in"
    ):
        Session(roles_config("embedded", str(copy)))
    assert ray_processes() == []
    shutil.copytree(cached_tiny(), copy, dirs_exist_ok=True)
    (copy / "audio_vae/config.json").write_text("{")
    with pytest.raises(MissingComponent, match=r"node 127\.0\.0\.\d, role .*, audio_vae: expected JSON in"):
        Session(roles_config("embedded", str(copy)))
    assert ray_processes() == []


def digest(result: GenerateResult) -> str:
    """Of pixels and samples: equal exactly when both are, bit for bit."""
    assert result.frames is not None
    assert result.waveform is not None
    return hashlib.sha256(result.frames.tobytes() + result.waveform.tobytes()).hexdigest()


async def given_up(seconds: float) -> None:
    """Cancel an opening while its cluster starts."""
    opening = asyncio.create_task(AsyncSession.open(roles_config("embedded")))
    await asyncio.sleep(seconds)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening


def test_sync_and_async_streams_and_cancel() -> None:
    """One session, after one that was given up at its start: `stream` in order, leaving it cancels the rest, `aio` on
    another loop, close twice. Whoever else uses the cluster in this process can until it closes too.
    """
    asyncio.run(given_up(0.5))
    assert ray_processes() == []
    assert not ray.is_initialized()
    with Session(roles_config("embedded")) as session:
        plain = [digest(session.generate(request(index, output="frames"))) for index in range(3)]
        streamed = session.stream(request(index, output="frames") for index in range(3))
        assert [digest(result) for result in streamed] == plain

        pulled = []

        def endless() -> Any:
            for index in range(1000):
                pulled.append(index)
                yield request(index, output="frames")

        for result in session.stream(endless()):
            assert digest(result) == plain[0]
            break
        assert len(pulled) <= 2 * session.config.max_in_flight + 1

        mixed = list(session.stream([request(0), request(1, num_frames=1), request(2)], return_errors=True))
        assert [type(item).__name__ for item in mixed] == ["GenerateResult", "InvalidRequest", "GenerateResult"]

        async def elsewhere() -> None:
            assert digest(await session.aio.generate(request(1, output="frames"))) == plain[1]
            pair = [request(0, output="frames"), request(2, output="frames")]
            results = [digest(item) async for item in session.aio.stream(pair)]
            assert results == [plain[0], plain[2]]
            task = asyncio.create_task(session.aio.generate(request(5, steps=400)))
            await asyncio.sleep(1.0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(await session.aio.health()) == 2

        asyncio.run(elsewhere())

        long = session.submit(request(7, steps=500))
        steps = []
        for step in long.progress():
            steps.append(step)
            if step.stage == "denoise" and step.done >= 3:
                long.cancel()
        assert next(step.total for step in steps if step.stage == "denoise") == 499, "500 points make 499 calls"
        with pytest.raises(RequestCancelled, match="denoise stopped after step"):
            long.result()
        assert digest(session.generate(request(1, output="frames"))) == plain[1]
        other = connect("auto", nodes=1)

    session.close()
    assert len(other.nodes()) == 2
    other.close()
    assert ray_processes() == []
    assert not ray.is_initialized()
    with pytest.raises(Exception, match="session: expected an open one"):
        session.generate(request())


@pytest.mark.parametrize(("steps", "calls"), [(2, 1), (5, 4)])
def test_points_and_calls(local_session: Session, steps: int, calls: int) -> None:
    seen = []
    result = local_session.generate(request(steps=steps), on_progress=seen.append)
    assert result.effective.steps == steps
    assert result.effective.transformer_calls == calls
    assert [step.done for step in seen if step.unit == "step"] == list(range(calls + 1))


@pytest.fixture(scope="module")
def local_session() -> Any:
    with Session(roles_config("local")) as session:
        yield session


def test_frames_come_as_asked(local_session: Session, tmp_path: Path) -> None:
    result = local_session.generate(request(output="frames"))
    assert result.frames is not None
    assert result.waveform is not None
    assert (result.frames.shape, str(result.frames.dtype)) == ((124, 64, 128, 3), "uint8")
    assert result.waveform.shape[0] == 2
    facts = film_facts(result.save(tmp_path / "film.mp4"))
    assert (facts.frames, facts.channels) == (124, 2)
    silent = film_facts(result.save(tmp_path / "silent.mp4", sound=False))
    assert silent.audio_codec is None
    for fps in (16, 23.976):
        with pytest.raises(Exception, match="the two would drift apart"):
            result.save(tmp_path / "other.mp4", fps=fps)
    began = time.monotonic()
    mp4 = local_session.generate(request())
    assert mp4.seconds <= time.monotonic() - began
    assert abs(len(mp4.video_bytes or b"") - (tmp_path / "film.mp4").stat().st_size) < 2000


def test_what_has_ended_can_be_asked_after_close() -> None:
    with Session(roles_config("local")) as session:
        done = session.submit(request(output="frames"))
        wanted = digest(done.result(60))
        left = session.submit(request(1, steps=500))
    assert digest(done.result()) == wanted
    assert done.status().state == "completed"
    assert list(done.progress()) == []
    assert left.status().state == "cancelled"
    with pytest.raises(RequestCancelled, match="because the session was closed"):
        left.result()
    left.cancel()
    with pytest.raises(ClusterError, match="session: expected an open one"):
        session.health()
