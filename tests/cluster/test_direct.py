"""`transport: nixl` between two raylets: the same films, and what happens when its producer dies. Needs the extra nixl."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from clockwork import film_digest, submitted
from engines import opened, stored
from splitreel.cluster.embedded import EmbeddedCluster
from splitreel.engine.engine import Engine
from splitreel.observe.timings import timings_of
from splitreel.request import Stage
from splitreel.wire import unpack

pytest.importorskip("nixl._api", reason='needs NIXL: pip install "splitreel[nixl]"', exc_type=ImportError)

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster.start(nodes=2) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def direct(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    a, b = cluster.node_ids
    roles = {"encoder_decoder": {"node": a}, "dit": {"node": b}}
    async with opened(tmp_path_factory.mktemp("nothing"), cluster.address, roles, transport="nixl") as engine:
        yield engine


def film_of(film: object) -> bytes:
    return bytes(unpack(film.payload).tensors["data"].numpy())  # type: ignore[attr-defined, union-attr]


async def test_films_are_the_same_and_say_how_they_travelled(direct: Engine) -> None:
    plan = {"encode": {"blocks": 300_000}, "denoise": {"blocks": 100_000}}
    jobs = [direct.submit(name, "t2va", submitted(name, **plan)) for name in ("r1", "r2", "r3")]
    films = [await job.result(60) for job in jobs]
    print([timings_of(f.spans).hops for f in films])
    assert stored() < 5000000
