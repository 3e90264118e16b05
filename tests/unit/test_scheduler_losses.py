"""The scheduler's rules where things fail, get lost or fit nothing, one story each."""

from __future__ import annotations

import pytest

from scheduler_studio import DECODE, DENOISE, DIT, ENCODE, PLAIN, REFERENCE, SIDE, Studio, up
from splitreel.engine.events import (
    CancelRequested,
    Deliver,
    Event,
    Fail,
    LostTooOften,
    PayloadLost,
    ReleasePayload,
    RunStage,
    StageDone,
    StageFailed,
    StageStopped,
    StopStage,
    Unserved,
    WorkerDown,
)
from splitreel.engine.tickets import State
from splitreel.request import Stage

# Failing --------------------------------------------------------------------------------------------------------------


def test_a_failed_stage_fails_its_request_alone() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a", "b")
    studio.done("a")
    reason = ValueError("no such frame")
    assert studio.failed("a", reason) == [ReleasePayload("a", ENCODE), Fail("a", reason, DENOISE)]
    assert studio.done("b") == [RunStage("b", DENOISE, "dit", 1)]


def test_a_workflow_that_no_worker_serves_fails_at_submission() -> None:
    studio = Studio(SIDE, up("plain", DENOISE, workflows=PLAIN))
    assert studio.submit("a", workflow="ref2va") == [Fail("a", Unserved("ref2va", DENOISE), DENOISE)]
    assert str(Unserved("ref2va", DENOISE)).startswith('denoise: expected a worker that serves workflow "ref2va"')
    assert studio.scheduler.state("a") is None


def test_what_needs_a_worker_that_is_gone_for_good_fails_by_name_and_the_rest_goes_on() -> None:
    studio = Studio(SIDE, DIT, max_in_flight=3)
    studio.submit("decoding", "denoising", "encoding", "queued")
    studio.done("decoding")
    studio.done("denoising")
    studio.done("decoding")
    assert studio.states("decoding", "denoising", "encoding") == [State.DECODING, State.DENOISING, State.QUEUED]
    gone = Unserved("t2va", DENOISE)
    assert studio.tell(WorkerDown("dit", returning=False)) == [
        ReleasePayload("denoising", ENCODE),
        Fail("denoising", gone, DENOISE),
        Fail("encoding", gone, DENOISE),
        Fail("queued", gone, DENOISE),
    ]
    assert Deliver("decoding") in studio.done("decoding")


def test_a_run_that_leads_nowhere_is_stopped() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a")
    assert studio.tell(WorkerDown("dit", returning=False)) == [StopStage("a", ENCODE, "side")]
    assert studio.stopped("a") == [Fail("a", Unserved("t2va", DENOISE), DENOISE)]


def test_a_worker_that_returns_as_another_leaves_its_old_work_unserved() -> None:
    studio = Studio(SIDE, up("dit", DENOISE, workflows=REFERENCE))
    studio.tell(WorkerDown("dit", returning=True))
    studio.submit("a", workflow="ref2va")
    assert studio.tell(up("dit", DENOISE, workflows=PLAIN)) == [Fail("a", Unserved("ref2va", DENOISE), DENOISE)]


# Losing workers and payloads ------------------------------------------------------------------------------------------


def test_a_lost_denoise_worker_costs_no_second_encode() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a")
    studio.done("a")
    assert studio.tell(WorkerDown("dit", returning=True)) == []
    assert studio.states("a") == [State.ENCODED]
    assert studio.tell(DIT) == [RunStage("a", DENOISE, "dit", 2)]


def test_a_lost_run_goes_elsewhere_at_once_if_it_can() -> None:
    studio = Studio(SIDE, DIT, up("dit2", DENOISE))
    studio.submit("a")
    studio.done("a")
    assert studio.tell(WorkerDown("dit", returning=True)) == [RunStage("a", DENOISE, "dit2", 2)]


def test_a_stage_is_not_run_again_for_ever() -> None:
    studio = Studio(SIDE, DIT, retries=1)
    studio.submit("a")
    studio.done("a")
    studio.tell(WorkerDown("dit", returning=True))
    studio.tell(DIT)
    reason = LostTooOften(DENOISE, 2, 2, "worker dit")
    assert studio.tell(WorkerDown("dit", returning=True)) == [ReleasePayload("a", ENCODE), Fail("a", reason, DENOISE)]
    assert str(reason).startswith("denoise: expected to finish within 2 runs, found run 2 lost with worker dit.")


def test_a_lost_request_keeps_its_place_before_later_ones() -> None:
    studio = Studio(SIDE, DIT, max_in_flight=3)
    studio.submit("a", "b")
    studio.done("a")
    studio.done("b")
    studio.tell(WorkerDown("dit", returning=True))
    assert studio.tell(DIT) == [RunStage("a", DENOISE, "dit", 2)]


def test_a_lost_payload_sends_its_request_back_as_far_as_needed() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a", "b")
    studio.done("a")
    studio.done("a")  # denoised; the side still encodes b
    assert studio.states("a") == [State.DENOISED]
    assert studio.tell(PayloadLost("a", DENOISE)) == []  # the encode payload was given back long ago
    assert studio.states("a") == [State.RETURNED]
    assert studio.done("b") == [RunStage("b", DENOISE, "dit", 1), RunStage("a", ENCODE, "side", 2)]
    assert studio.scheduler.in_flight == 2


def test_a_run_whose_input_is_lost_goes_on_and_needs_it_no_more() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a")
    studio.done("a")
    assert studio.tell(PayloadLost("a", ENCODE)) == []
    assert studio.done("a") == [RunStage("a", DECODE, "side", 1)]  # and nothing is released that is gone


def test_a_run_that_fails_for_want_of_its_lost_input_starts_from_further_back() -> None:
    studio = Studio(SIDE, DIT, retries=1)
    studio.submit("a")
    studio.done("a")
    studio.tell(PayloadLost("a", ENCODE))
    assert studio.failed("a", "object lost") == [RunStage("a", ENCODE, "side", 2)]
    assert studio.done("a") == [RunStage("a", DENOISE, "dit", 2)]
    studio.tell(PayloadLost("a", ENCODE))
    assert studio.failed("a", "object lost") == [Fail("a", "object lost", DENOISE)]


def test_a_stop_that_nobody_asked_for_is_a_lost_run() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a")
    assert studio.stopped("a") == [RunStage("a", ENCODE, "side", 2)]


def test_a_run_whose_input_never_came_is_repeated_and_then_fails_by_name() -> None:
    studio = Studio(SIDE, DIT, retries=1)
    studio.submit("a")
    assert studio.tell(StageStopped("a", ENCODE, "side", 1, "its input")) == [RunStage("a", ENCODE, "side", 2)]
    ended = [Fail("a", LostTooOften(ENCODE, 2, 2, "its input"), ENCODE)]
    assert studio.tell(StageStopped("a", ENCODE, "side", 2, "its input")) == ended


# Events that fit nothing ----------------------------------------------------------------------------------------------


def test_late_and_repeated_events_change_nothing() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a")
    first = studio.runs["a"]
    studio.tell(WorkerDown("side", returning=True))
    studio.tell(SIDE)
    before = studio.scheduler.snapshot()
    stale: tuple[Event, ...] = (
        StageDone("a", ENCODE, "side", first.attempt),  # from before the worker went down
        StageDone("a", DENOISE, "dit"),
        StageFailed("b", ENCODE, "side", "unknown request"),
        StageStopped("a", ENCODE, "nobody"),
        CancelRequested("b"),
        PayloadLost("a", ENCODE),
        WorkerDown("nobody", returning=True),
        SIDE,
    )
    for event in stale:
        assert studio.tell(event) == []
        assert studio.scheduler.snapshot() == before
    assert studio.tell(StageDone("a", ENCODE, "side")) == [RunStage("a", DENOISE, "dit", 1)]


def test_an_id_in_use_is_a_programming_error() -> None:
    studio = Studio(SIDE, DIT)
    studio.submit("a")
    with pytest.raises(ValueError, match='"a" in use'):
        studio.submit("a")
    assert studio.scheduler.in_flight == 1


def test_a_worker_cannot_change_while_it_is_up() -> None:
    studio = Studio(SIDE, DIT)
    with pytest.raises(ValueError, match='"dit" to go down'):
        studio.tell(up("dit", *Stage))
