"""Workers that help with a decode, on Ray: what becomes of a film when one of them, or the one they help, is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from clockwork import film_digest, submitted
from engines import opened
from splitreel.cluster.embedded import EmbeddedCluster
from splitreel.cluster.transport import arrive
from splitreel.engine.backend import PayloadGone
from splitreel.engine.engine import Engine
from splitreel.engine.job import Film
from splitreel.errors import RequestCancelled
from splitreel.observe.spans import Place, SpanRecorder
from splitreel.observe.timings import timings_of
from splitreel.request import Stage
from splitreel.wire import unpack

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]
ROLES = {"encoder_dit": {"node": "rack=left"}, "decoder": {"nodes": ["rack=right", "rack=spare", "rack=left"]}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crew(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """One that encodes and denoises, three of which two decode together."""
    async with opened(tmp_path_factory.mktemp("crew"), cluster.address, ROLES, parallel_decode=2) as started:
        yield started


async def film(engine: Engine, request_id: str, **plan: Any) -> tuple[Film, list[bool], int]:
    """It, which parts came, and the process that joined them."""
    made = await engine.submit(request_id, "t2va", submitted(request_id, **plan)).result(60)
    payload = unpack(made.payload)
    assert bytes(payload.tensors["data"].numpy()) == film_digest()  # type: ignore[union-attr]
    values = payload.header.values
    return made, values.get("parts", []), int(values["path"][-1].split("@")[1])


async def decoders(engine: Engine) -> dict[int, str]:
    return {worker.pid: worker.state for worker in await engine.health() if worker.role == "decoder"}


async def all_up(engine: Engine) -> dict[int, str]:
    """Wait until all decoders are there (again)."""
    async with asyncio.timeout(40):
        while list((found := await decoders(engine)).values()) != ["ready"] * 3 or engine.in_flight:
            await asyncio.sleep(0.1)
    return found


async def test_a_part_comes_from_the_other_worker(crew: Engine) -> None:
    before = await all_up(crew)
    made, parts, joined_by = await film(crew, "plain", decode={"seconds": 0.3}, part={"seconds": 0.3})
    assert parts == [True]
    (part,) = [span for span in made.spans if span.name == "decode.part"]
    assert part.pid != joined_by
    assert {part.pid, joined_by} < set(before)
    hops = [span.attributes["hop"] for span in made.spans if span.name == "hop.materialize" and span.stage == "decode"]
    assert sorted(hops) == ["decode-to-decode", "denoise-to-decode", "denoise-to-decode"]


@pytest.mark.parametrize("trouble", ["kill", "awkward error"])
async def test_a_helper_that_is_lost_or_fails_costs_its_part_alone(crew: Engine, trouble: str) -> None:
    """Killed, or raising in its part: the film is made in one run of each stage, without that part."""
    before = await all_up(crew)
    made, parts, joined_by = await film(crew, trouble, part={"steps": 2, "seconds": 0.1, "trouble": {"2": trouble}})
    assert parts == [False]
    assert joined_by in before
    assert len([span for span in made.spans if span.name == "call"]) == 3
    after = await all_up(crew)
    assert joined_by in after
    assert (set(after) == set(before)) == (trouble == "awkward error"), "only a worker that was lost is replaced"
    assert (await film(crew, f"after {trouble}"))[1] == [True]


async def test_the_loss_of_the_one_that_joins_is_that_of_any_stage(crew: Engine, tmp_path: Path) -> None:
    """It is killed while its helper works: the helper is stopped, and the decode runs again."""
    before = await all_up(crew)
    plan = {"decode": {"trouble": {"1": "kill"}, "once": str(tmp_path / "killed")}}
    made, parts, joined_by = await film(crew, "lost", part={"steps": 600, "seconds": 0.1}, **plan)
    assert len([span for span in made.spans if span.name == "call"]) == 4
    assert joined_by in before
    assert parts == [], "the only idle decoder ran it, while the other was being stopped"


async def test_the_helper_of_a_second_attempt_is_not_stopped_with_the_first(crew: Engine, tmp_path: Path) -> None:
    """The one that joins is killed when its helper is idle again and helps with the next attempt at once."""
    await all_up(crew)
    plan = {"decode": {"steps": 4, "seconds": 0.3, "trouble": {"4": "kill"}, "once": str(tmp_path / "killed")}}
    made, parts, _ = await film(crew, "again", part={"steps": 3, "seconds": 0.1}, **plan)
    assert parts == [True]
    timings = timings_of(made.spans)
    assert timings.unaccounted > -0.1, "no time counts twice"
    calls = [span for span in made.spans if span.name == "call" and span.stage == Stage.DECODE]
    assert [span.status for span in calls] == ["error", "ok"]
    assert calls[0].end <= calls[1].start


async def test_a_part_is_waited_for_as_long_as_its_worker_may_take(crew: Engine) -> None:
    await all_up(crew)
    actor = crew.backend._members["decoder.0"].actor  # type: ignore[attr-defined]
    options: dict[str, Any] = {"hop": "decode-to-decode", "timeout": 0.5, "check": lambda: None}

    def wait(making: float | None) -> Any:
        answer = actor.watch.remote(1 << 40, 1.5)
        return arrive(answer, spans=SpanRecorder(Place("", "", "")), making=making, **options)

    with pytest.raises(
        PayloadGone, match=r"hop\.wait: expected it to be made within 0\.5 s, found its worker still at it"
    ):
        await asyncio.to_thread(wait, 0.5)
    with pytest.raises(PayloadGone, match=r"within 0\.5 s, found nothing\. The link"):
        await asyncio.to_thread(wait, None)
    assert callable(await asyncio.to_thread(wait, 20.0))


async def test_a_helper_that_does_not_stop_is_given_up(crew: Engine) -> None:
    before = await all_up(crew)
    job = crew.submit("hangs", "t2va", submitted("hangs", decode={"steps": 600, "seconds": 0.1}, part={"trouble": {"1": "hang"}}))  # fmt: skip
    async with asyncio.timeout(30):
        async for step in job.progress():
            if step.stage == Stage.DECODE and step.done >= 3:
                break
    job.cancel()
    with pytest.raises(RequestCancelled):
        await job.result(10)
    async with asyncio.timeout(40):
        while len(set(before) & set(await decoders(crew))) != 2:
            await asyncio.sleep(0.1)
    await all_up(crew)
    assert (await film(crew, "after the hang"))[1] == [True]
