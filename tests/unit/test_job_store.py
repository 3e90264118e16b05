"""The ledger: what is written stays, a job runs once at a time and ends once, bounds hold."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import event

from splitreel.config import ServeConfig
from splitreel.errors import ConfigError, QueueFull
from splitreel.serve.jobs.folder import JobFolder
from splitreel.serve.jobs.ledger import open_ledger
from splitreel.serve.jobs.refusals import JobBusy, JobNotFound, KeyReused, OverQuota
from splitreel.serve.jobs.server import has_ended, server_name
from splitreel.serve.jobs.store import JobStore, Outcome, resolve_url
from splitreel.serve.jobs.table import Job

NUMBERS = itertools.count()
ROOM = {"max_queued": 1000, "max_active": None}


def job(**fields: Any) -> Job:
    now = fields.pop("created", time.time())
    values = {
        "id": f"video_{next(NUMBERS):024x}",
        "owner": "",
        "state": "queued",
        "created": now,
        "rank": now,
        "priority": 0,
        "request": {"prompt": "A lake."},
        "effective": {},
        "digest": "d",
        "num_bytes": 0,
    }
    return Job(**{**values, **fields})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return resolve_url(None, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[JobStore]:
    opened = JobStore(url)
    yield opened
    opened.close()


def add(store: JobStore, **fields: Any) -> str:
    return store.add(job(**fields), **ROOM)[0].id


def claim(store: JobStore, server: str = "a", seconds: float = 60.0) -> Job | None:
    now = time.time()
    return store.claim(server, now, now + seconds)


def done(**fields: Any) -> Outcome:
    return Outcome("completed", time.time(), film="film.mp4", **fields)


def test_a_job_outlives_the_store(url: str, store: JobStore) -> None:
    job_id = add(store, request={"prompt": "Nebel über dem See 🌫"})
    other = JobStore(url)
    assert other.get(job_id).request["prompt"] == "Nebel über dem See 🌫"
    other.close()


def test_jobs_go_by_priority_then_age_and_nobody_waits_for_ever(store: JobStore) -> None:
    now = time.time()
    late = add(store, rank=now)
    urgent = add(store, rank=now - 60 * 5)
    old = add(store, rank=now - 60 * 10)
    assert [store.position(store.get(name)) for name in (old, urgent, late)] == [0, 1, 2]
    assert [claim(store).id for _ in range(3)] == [old, urgent, late]  # type: ignore[union-attr]
    assert claim(store) is None


def test_two_servers_with_four_threads_each_take_every_job_once(url: str, store: JobStore) -> None:
    wanted = {add(store) for _ in range(60)}
    other = JobStore(url)

    def take(index: int) -> list[str]:
        mine, name = (store, "a") if index % 2 else (other, "b")
        return [found.id for found in iter(lambda: claim(mine, name), None)]

    with ThreadPoolExecutor(8) as threads:
        taken = Counter(job_id for ids in threads.map(take, range(8)) for job_id in ids)
    assert set(taken) == wanted
    assert set(taken.values()) == {1}
    other.close()


def test_only_who_holds_the_lease_ends_a_job(store: JobStore) -> None:
    job_id = add(store)
    assert claim(store, "a", seconds=-1) is not None
    assert store.recover(time.time(), lambda name: False, 5) == [job_id]
    assert claim(store, "b") is not None
    assert not store.finish(job_id, "a", done()), "its lease has gone to b"
    assert not store.release(job_id, "a", refund=True)
    assert store.renew("a", time.time() + 60, {}) == {}
    assert store.finish(job_id, "b", done(num_bytes=10))
    assert not store.finish(job_id, "b", Outcome("failed", time.time())), "it has ended once"
    ended = store.get(job_id)
    assert (ended.state, ended.film, ended.progress, ended.attempts, ended.num_bytes) == (
        "completed",
        "film.mp4",
        100,
        2,
        10,
    )


def test_jobs_of_a_dead_server_come_back_at_once_and_not_for_ever(store: JobStore) -> None:
    job_id = add(store)
    for attempt in (1, 2, 3):
        assert claim(store, "dead") is not None
        assert store.get(job_id).attempts == attempt
        assert store.recover(time.time(), lambda name: name == "dead", 3) == [job_id]
    ended = store.get(job_id)
    assert (ended.state, ended.error_code) == ("failed", "interrupted")
    assert "Begun 3 times" in (ended.error_message or "")


def test_who_holds_a_job_keeps_it_whatever_the_clock_says(store: JobStore) -> None:
    here, left = add(store), add(store)
    assert claim(store) is not None
    assert claim(store) is not None
    assert store.recover(time.time() + 7200, lambda name: False, 5, {here}) == [left]
    assert claim(store, "a") is not None
    until = time.time() + 60
    assert store.renew("a", until, {here: (40, "denoise")}) == {here: False}
    assert store.get(here).lease_until == until
    assert store.get(left).lease_until != until, "of a job that it does not run no server renews the lease"


def test_two_servers_that_claim_at_once_on_a_database_without_one_writer(store: JobStore) -> None:
    """Elsewhere than on SQLite another server may take the job between the look and the claim."""
    first, second = add(store), add(store)
    quicker = ["UPDATE splitreel_jobs SET state='in_progress', lease_owner='b' WHERE id = ?"]

    @event.listens_for(store._engine, "before_cursor_execute")
    def before(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        if statement.startswith("UPDATE") and quicker:
            cursor.execute(quicker.pop(), (first,))

    found = claim(store, "a")
    assert found is not None
    assert found.id == second
    assert store.get(first).lease_owner == "b"


def test_a_refund_does_not_count(store: JobStore) -> None:
    job_id = add(store)
    for _ in range(3):
        claim(store)
        assert store.release(job_id, "a", refund=True)
    assert (store.get(job_id).state, store.get(job_id).attempts) == ("queued", 0)


def test_cancel_reaches_queued_and_running_jobs(store: JobStore) -> None:
    running, queued = add(store), add(store)
    claim(store)
    assert store.cancel(queued, None, time.time()).state == "cancelled"
    assert store.cancel(running, None, time.time()).state == "in_progress"
    assert store.renew("a", time.time() + 60, {running: (40, "denoise")}) == {running: True}
    assert (store.get(running).progress, store.get(running).stage) == (40, "denoise")
    with pytest.raises(JobBusy, match="expected one that has ended, found it in progress"):
        store.remove(running, None)
    assert store.recover(time.time(), lambda name: True, 5) == [running]
    assert store.get(running).state == "cancelled", "it is not run again only to be cancelled"
    store.remove(running, None)
    with pytest.raises(JobNotFound):
        store.get(running)


def test_bounds_of_the_queue_and_of_an_owner(store: JobStore) -> None:
    for owner in ("ann", "ann", "bob"):
        add(store, owner=owner)
    with pytest.raises(QueueFull, match="found 3 waiting of 3 allowed"):
        store.add(job(owner="cid"), max_queued=3, max_active=None)
    with pytest.raises(OverQuota, match="fewer than 2 of your videos"):
        store.add(job(owner="ann"), max_queued=9, max_active=2)
    store.add(job(owner="bob"), max_queued=9, max_active=2)
    with pytest.raises(OverQuota):
        store.check_room("bob", max_queued=9, max_active=2)
    claim(store)
    with pytest.raises(OverQuota):
        store.check_room("ann", max_queued=9, max_active=2)


def test_a_bound_holds_against_many_at_once(store: JobStore) -> None:
    def one(_: int) -> bool:
        try:
            store.add(job(), max_queued=10, max_active=None)
        except QueueFull:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(one, range(40))) == 10


def test_an_idempotency_key_makes_one_job(url: str, store: JobStore) -> None:
    other = JobStore(url)
    key = {"owner": "ann", "idempotency_key": "k"}

    def one(index: int) -> tuple[str, bool]:
        made, created = (store if index % 2 else other).add(job(**key), **ROOM)
        return made.id, created

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(one, range(12)))
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    with pytest.raises(KeyReused):
        store.add(job(**key, digest="other"), **ROOM)
    assert store.add(job(owner="bob", idempotency_key="k"), **ROOM)[1], "keys of one owner are not another's"
    full = store.add(job(**key), max_queued=0, max_active=0)
    assert not full[1], "a repeated request is answered though the queue is full"
    other.close()


def test_pages_follow_each_other_and_belong_to_their_owner(store: JobStore) -> None:
    mine = [add(store, owner="ann") for _ in range(5)]
    add(store, owner="bob")
    seen: list[str] = []
    after, more = None, True
    while more:
        rows, more = store.page("ann", after=after, limit=2, order="desc")
        seen += [row.id for row in rows]
        after = rows[-1].id
    assert seen == mine[::-1]
    rows, more = store.page("ann", after=mine[1], limit=3, order="asc")
    assert ([row.id for row in rows], more) == (mine[2:], False)
    with pytest.raises(JobNotFound):
        store.page("bob", after=mine[0], limit=2, order="asc")
    with pytest.raises(JobNotFound):
        store.get(mine[0], "bob")


def test_what_is_kept(store: JobStore) -> None:
    now = time.time()
    ids = []
    for age in (1000, 300, 200, 100):
        ids.append(add(store, num_bytes=100))
        claim(store)
        store.finish(ids[-1], "a", Outcome("completed", now - age, film="f", num_bytes=900))
    waiting = add(store, num_bytes=500)
    assert store.expired(now - 500, 10_000) == [ids[0]]
    assert store.expired(now - 500, 2_600) == [ids[1]], "the oldest goes; what waits counts and stays"
    assert store.expired(now - 500, 2_600) == []
    assert store.counts() == {"queued": 1, "in_progress": 0, "completed": 2, "failed": 0, "cancelled": 0}
    assert store.unknown([waiting, "video_x"]) == ["video_x"]


def test_deadlines_of_queued_jobs(store: JobStore) -> None:
    now = time.time()
    late = add(store, deadline=now - 1, created=now - 11)
    add(store, deadline=now + 60)
    assert store.overdue(now) == [late]
    assert store.get(late).error_message == "Not started within the 10 s that the request gave it."


def test_a_server_is_known_to_be_gone_on_its_own_machine_only() -> None:
    mine = server_name()
    assert not has_ended(mine)
    code = "from splitreel.serve.jobs.server import server_name; print(server_name())"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    gone = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60, env=environment)
    assert has_ended(gone.strip())
    machine, pid, started, nonce = mine.split("|")
    assert has_ended(f"{machine}|{pid}|{int(started) - 1}|{nonce}"), "the number was given out again"
    assert not has_ended(f"elsewhere|{gone.split('|', 1)[1].strip()}")
    assert not has_ended("nonsense")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert machine.endswith(boot), "two machines of one host name are two machines"
    other = machine.replace(boot, "another")
    assert not has_ended(f"{other}|{gone.split('|', 1)[1].strip()}")


def test_a_step_of_the_clock_ends_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process's start as a time of day moves with the machine's, which is read anew each time."""
    mine = server_name()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 5.0)
    assert abs(psutil.Process().create_time() - time.time()) > 1e6
    assert not has_ended(mine)
    assert mine.split("|")[2] == Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


def test_a_server_that_waits_to_be_buried_has_ended() -> None:
    code = "from splitreel.serve.jobs.server import server_name; print(server_name(), flush=True)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        name = process.stdout.read().strip()
        end = time.monotonic() + 20
        while not has_ended(name):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert process.returncode is None, "nobody has asked yet"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("nonsense", "serve.database: expected an SQLAlchemy URL"),
        ("postgresql+nodriver://u:secret@h/d", "serve.database: expected an SQLAlchemy URL"),
        ("sqlite:////proc/none/jobs.db", "serve.database: expected"),
    ],
)
def test_a_wrong_database_is_refused_without_its_password(url: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found) as raised:
        JobStore(url)
    assert "secret" not in str(raised.value)


def test_a_database_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_URL", "sqlite:///x.db")
    assert resolve_url("env:JOBS_URL", tmp_path) == "sqlite:///x.db"
    with pytest.raises(ConfigError, match="environment variable NOT_SET"):
        resolve_url("env:NOT_SET", tmp_path)


def test_another_schema_is_refused(url: str, store: JobStore) -> None:
    from sqlalchemy import text

    with store._engine.begin() as connection:
        connection.execute(text("UPDATE splitreel_meta SET schema = 99"))
    with pytest.raises(ConfigError, match=r"expected schema 1, found 99.*another database with a folder of its own"):
        JobStore(url)


# Whose the folder is --------------------------------------------------------------------------------------------------------


def ledger(folder: Path, database: str | None = None) -> tuple[JobFolder, JobStore]:
    return open_ledger(ServeConfig(folder=str(folder), database=database and f"sqlite:///{folder.parent}/{database}"))


def test_another_database_on_a_folder_is_refused_before_it_deletes_films(tmp_path: Path) -> None:
    folder, first = ledger(tmp_path / "jobs", "one.db")
    film = folder.root / add(first) / "film.mp4"
    film.parent.mkdir()
    film.touch()
    ledger(tmp_path / "jobs", "one.db")[1].close()  # a second server of the same database
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"serve\.folder: expected the jobs of serve\.database in .* another database"
        ):
            ledger(tmp_path / "jobs", "two.db")
    assert film.exists()
    ledger(tmp_path / "others", "two.db")[1].close()
    first.close()


def test_a_folder_from_before_there_were_marks(tmp_path: Path) -> None:
    folder, first = ledger(tmp_path / "jobs", "one.db")
    (folder.root / add(first)).mkdir()
    (folder.root / "video_left").mkdir()
    first.close()
    (mark,) = folder.root.glob(".database-*")
    mark.unlink()
    with pytest.raises(ConfigError, match="another database"):
        ledger(tmp_path / "jobs", "two.db")
    ledger(tmp_path / "jobs", "one.db")[1].close()
    assert mark.exists()
