"""The scheduler's rules, one story each: ways, order, bounds, cancels, and decoding together."""

from __future__ import annotations

import json

import pytest

from scheduler_studio import DECODE, DENOISE, DIT, ENCODE, EVERY, PLAIN, REFERENCE, SIDE, Studio, up
from splitreel.engine.events import (
    Cancelled,
    CancelRequested,
    Deliver,
    HelpEnded,
    Refuse,
    ReleasePayload,
    RunStage,
    StopStage,
    WorkerDown,
    WorkerUp,
)
from splitreel.engine.limits import Limits
from splitreel.engine.tickets import State
from splitreel.request import Stage

# The way of a request -------------------------------------------------------------------------------------------------


def test_a_request_goes_through_the_stages_and_each_payload_is_kept_until_the_next_one_exists() -> None:
    studio = Studio(SIDE, DIT)
    assert studio.submit("a") == [RunStage("a", ENCODE, "side", 1)]
    assert studio.done("a") == [RunStage("a", DENOISE, "dit", 1)]
    assert studio.done("a") == [ReleasePayload("a", ENCODE), RunStage("a", DECODE, "side", 1)]
    assert studio.done("a") == [ReleasePayload("a", DENOISE), Deliver("a"), ReleasePayload("a", DECODE)]
    assert studio.states("a") == [None]
    assert studio.scheduler.snapshot()["requests"] == {}


def test_the_stages_of_two_requests_overlap() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a", "b")
    assert studio.done("a") == [RunStage("a", DENOISE, "dit", 1), RunStage("b", ENCODE, "side", 1)]
    assert studio.scheduler.busy == {"side": "b", "dit": "a"}


def test_a_worker_with_several_stages_takes_the_latest_first() -> None:
    studio = Studio(SIDE, DIT, up("dit2", DENOISE), max_in_flight=4)
    studio.submit("a", "b", "c", "d")
    studio.done("a")
    studio.done("b")  # c is being encoded now, by look-ahead
    assert studio.done("a") == [ReleasePayload("a", ENCODE)]  # its decode waits for the side
    assert studio.done("c") == [RunStage("a", DECODE, "side", 1), RunStage("c", DENOISE, "dit", 1)]
    assert studio.states("d") == [State.QUEUED]


def test_a_request_stays_with_no_worker_in_particular() -> None:
    studio = Studio(SIDE, up("dit1", DENOISE), up("dit2", DENOISE))
    studio.submit("a", "b")
    studio.done("a")
    assert studio.done("b") == [RunStage("b", DENOISE, "dit2", 1)]


def test_the_worker_that_can_do_least_else_is_taken() -> None:
    studio = Studio(up("all", *Stage), up("encoder", ENCODE))
    assert studio.submit("a") == [RunStage("a", ENCODE, "encoder", 1)]


def test_a_worker_gets_only_the_workflows_that_it_serves() -> None:
    studio = Studio(SIDE, up("plain", DENOISE, workflows=PLAIN), up("reference", DENOISE, workflows=REFERENCE))
    studio.submit("a", workflow="ref2va")
    assert studio.done("a") == [RunStage("a", DENOISE, "reference", 1)]


# Order ----------------------------------------------------------------------------------------------------------------


def test_order_is_by_priority_then_by_arrival() -> None:
    studio = Studio(SIDE, DIT, max_in_flight=1)
    studio.submit("running", "low1", "low2")
    studio.submit("high1", "high2", priority=5)
    order = ["high1", "high2", "low1", "low2"]
    assert [studio.scheduler.position(name) for name in order] == [0, 1, 2, 3]
    for finished, following in zip(["running", *order], [*order, None], strict=True):
        studio.done(finished)
        studio.done(finished)
        assert studio.done(finished)[3:] == ([RunStage(following, ENCODE, "side", 1)] if following else [])


def test_a_request_overtaken_as_often_as_patience_allows_goes_first() -> None:
    studio = Studio(up("all", *Stage), max_in_flight=1, patience=2)
    studio.submit("running", "low")
    for index in range(4):
        studio.submit(f"high{index}", priority=1)
    assert studio.scheduler.position("low") == 4
    starts = []
    finished = "running"
    for _ in range(5):
        for _stage in Stage:
            commands = studio.done(finished)
        finished = next(command.request for command in commands if isinstance(command, RunStage))
        starts.append(finished)
    assert starts == ["high0", "high1", "low", "high2", "high3"]


def test_without_patience_priority_counts_for_nothing() -> None:
    studio = Studio(SIDE, DIT, max_in_flight=1, patience=0)
    studio.submit("running", "low")
    studio.submit("high", priority=9)
    assert studio.scheduler.position("low") == 0


def test_a_blocked_workflow_does_not_hold_up_another() -> None:
    plain, reference = up("plain", DENOISE, workflows=PLAIN), up("reference", DENOISE, workflows=REFERENCE)
    studio = Studio(SIDE, plain, reference, max_in_flight=9)
    studio.submit("p1", "p2", "p3")
    studio.submit("r1", workflow="ref2va")
    studio.done("p1")
    assert studio.done("p2") == [RunStage("r1", ENCODE, "side", 1)]  # p3 would be a second look-ahead to `plain`
    assert studio.states("p1", "p2", "p3") == [State.DENOISING, State.ENCODED, State.QUEUED]


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_in_flight_is_bounded_from_the_start_of_encode_to_the_end_of_decode() -> None:
    studio = Studio(SIDE, DIT, up("dit2", DENOISE), max_in_flight=1)
    studio.submit("a", "b")
    studio.done("a")
    studio.done("a")
    assert (studio.scheduler.in_flight, studio.scheduler.waiting) == (1, 1)
    assert studio.done("a")[-1] == RunStage("b", ENCODE, "side", 1)


def test_one_more_than_may_wait_is_refused_at_once_and_may_come_again() -> None:
    studio = Studio(SIDE, DIT, max_in_flight=1, max_waiting=2)
    studio.submit("running", "a", "b")
    assert studio.submit("c", priority=9) == [Refuse("c", 2, 2)]
    studio.tell(CancelRequested("a"))
    assert studio.submit("c", priority=9) == []
    assert studio.scheduler.position("c") == 0


def test_where_none_may_wait_only_what_can_start_at_once_is_admitted() -> None:
    studio = Studio(SIDE, DIT, max_waiting=0)
    assert studio.submit("a") == [RunStage("a", ENCODE, "side", 1)]
    assert studio.submit("b") == [Refuse("b", 0, 0)]


def test_one_request_is_encoded_ahead_for_each_denoise_worker() -> None:
    studio = Studio(SIDE, DIT, max_in_flight=9)
    studio.submit("a", "b", "c")
    studio.done("a")
    assert studio.done("b") == []  # b waits encoded; c is not encoded before the worker takes b
    assert studio.states("a", "b", "c") == [State.DENOISING, State.ENCODED, State.QUEUED]
    studio.done("a")
    assert studio.done("a")[-1] == RunStage("c", ENCODE, "side", 1)


def test_nothing_is_encoded_while_all_denoise_workers_are_away() -> None:
    studio = Studio(SIDE, DIT)
    studio.tell(WorkerDown("dit", returning=True))
    assert studio.submit("a") == []
    assert studio.tell(DIT) == [RunStage("a", ENCODE, "side", 1)]


def test_a_pool_within_a_larger_pool_leaves_room_in_both() -> None:
    encoders = [up(f"encoder{i}", ENCODE) for i in range(9)]
    plain, both = up("plain", DENOISE, workflows=PLAIN), up("both", DENOISE)
    studio = Studio(*encoders, plain, both, up("decoder", DECODE), max_in_flight=9)
    references = studio.submit("r1", "r2", "r3", workflow="ref2va")
    assert len(references) == 2  # `both` is idle, so it has room for two
    assert len(studio.submit("p1", "p2", "p3")) == 2  # and the two workers for four in all


@pytest.mark.parametrize(
    "wrong", [{"max_in_flight": 0}, {"max_waiting": -1}, {"retries": -1}, {"patience": -1}, {"look_ahead": 0}]
)
def test_a_bound_that_makes_no_sense_is_an_error(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)


# Cancelling -----------------------------------------------------------------------------------------------------------


def test_a_queued_request_is_cancelled_at_once() -> None:
    studio = Studio(SIDE, DIT, max_in_flight=1)
    studio.submit("a", "b")
    assert studio.tell(CancelRequested("b", "deadline")) == [Cancelled("b", None, "deadline")]
    assert studio.scheduler.waiting == 0


def test_a_cancel_frees_the_payload_at_once_and_ends_when_the_run_has_stopped() -> None:
    studio = Studio(SIDE, DIT, max_in_flight=1)
    studio.submit("a", "b")
    studio.done("a")
    assert studio.tell(CancelRequested("a")) == [ReleasePayload("a", ENCODE), StopStage("a", DENOISE, "dit")]
    assert studio.states("a") == [State.STOPPING]
    assert studio.scheduler.in_flight == 1  # it still takes a worker
    assert studio.tell(CancelRequested("a")) == []
    assert studio.stopped("a") == [Cancelled("a", DENOISE, None), RunStage("b", ENCODE, "side", 1)]


def test_a_request_that_waits_in_flight_is_cancelled_at_once_with_its_payload() -> None:
    studio = Studio(SIDE, DIT, max_in_flight=9)
    studio.submit("a", "b", "c")
    studio.done("a")
    studio.done("b")
    assert studio.tell(CancelRequested("b")) == [
        ReleasePayload("b", ENCODE),
        Cancelled("b", DENOISE, None),
        RunStage("c", ENCODE, "side", 1),
    ]


def test_a_result_that_crosses_the_cancel_is_freed() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a")
    studio.tell(CancelRequested("a"))
    assert studio.done("a") == [ReleasePayload("a", ENCODE), Cancelled("a", ENCODE, None)]


@pytest.mark.parametrize("returning", [True, False])
def test_a_cancelled_run_whose_worker_dies_has_ended(returning: bool) -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a")
    studio.tell(CancelRequested("a", "user"))
    assert studio.tell(WorkerDown("side", returning)) == [Cancelled("a", ENCODE, "user")]


def test_a_run_that_fails_as_it_is_cancelled_was_cancelled() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a")
    studio.tell(CancelRequested("a", "user"))
    assert studio.failed("a", "interrupted") == [Cancelled("a", ENCODE, "user")]


# Looking in -----------------------------------------------------------------------------------------------------------


def test_the_snapshot_is_plain_data() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a", "b")
    studio.done("a")
    snapshot = studio.scheduler.snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert snapshot["requests"]["a"] == {
        "state": "denoising",
        "workflow": "t2va",
        "priority": 0,
        "stage": "denoise",
        "worker": "dit",
        "holds": "encode",
        "runs": {"encode": 1, "denoise": 1},
        "overtaken": 0,
    }
    assert snapshot["workers"]["side"] == {
        "up": True,
        "stages": ["encode", "decode"],
        "workflows": ["fl2va", "ref2va", "t2va"],
        "running": "b",
        "helps": None,
    }


# Decoding together ----------------------------------------------------------------------------------------------------


def decoder(worker: str, role: str = "decoder") -> WorkerUp:
    return WorkerUp(worker, frozenset({DECODE}), EVERY, role)


def test_idle_workers_of_the_same_role_help_with_a_decode() -> None:
    crew = (decoder("d1"), decoder("d2"), decoder("d3"), decoder("other", "spare"))
    studio = Studio(up("encoder", ENCODE), DIT, *crew, parallel_decode=2)
    studio.submit("a", "b")
    studio.done("a")
    studio.done("b")
    assert studio.done("a")[1] == RunStage("a", DECODE, "d1", 1, ("d2",))
    assert studio.done("b")[-1] == RunStage("b", DECODE, "d3", 1)  # d2 helps, the spare has another role
    assert studio.scheduler.busy == {"d1": "a", "d3": "b"}


def test_a_helper_is_busy_until_its_help_ends_whatever_became_of_the_run() -> None:
    studio = Studio(up("encoder", ENCODE), DIT, decoder("d1"), decoder("d2"), parallel_decode=2)
    studio.submit("a", "b")
    studio.done("a")
    studio.done("b")
    studio.done("a")
    studio.done("a")  # delivered
    assert studio.done("b")[-1] == RunStage("b", DECODE, "d1", 1)
    assert studio.tell(HelpEnded("a", "d2", 1)) == []
    assert studio.tell(HelpEnded("a", "d2", 1)) == []
    studio.submit("c")
    studio.done("c")
    assert studio.done("c")[-1] == RunStage("c", DECODE, "d2", 1)


def test_the_loss_of_a_helper_changes_nothing_for_the_run() -> None:
    studio = Studio(up("encoder", ENCODE), DIT, decoder("d1"), decoder("d2"), parallel_decode=2)
    studio.submit("a")
    studio.done("a")
    studio.done("a")
    assert studio.tell(WorkerDown("d2", returning=True)) == []
    assert studio.tell(WorkerUp("d2", frozenset({DECODE}), EVERY, "decoder")) == []
    assert studio.tell(HelpEnded("a", "d2", 1)) == []  # of before: it is idle already
    again = studio.tell(WorkerDown("d1", returning=True))
    assert again == [RunStage("a", DECODE, "d2", 2)]
    assert studio.done("a")[1:] == [Deliver("a"), ReleasePayload("a", DECODE)]
