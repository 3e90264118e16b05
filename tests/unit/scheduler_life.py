"""Random lives for the world of `scheduler_world`: every choice comes from one `Random`, so a seed is a life."""

from __future__ import annotations

from random import Random

from scheduler_world import WORKFLOWS, World

from splitreel.engine.events import (
    CancelRequested,
    HelpEnded,
    PayloadLost,
    RunStage,
    StageDone,
    StageFailed,
    StageStopped,
    Submitted,
    WorkerDown,
    WorkerUp,
)
from splitreel.engine.limits import Limits
from splitreel.engine.scheduler import Scheduler
from splitreel.request import Stage

ENCODE, DENOISE, DECODE = Stage
PLAIN, REFERENCE = frozenset({"t2va", "fl2va"}), frozenset({"ref2va"})
EVERY = frozenset(WORKFLOWS)
CREWS: list[list[tuple[set[Stage], frozenset[str]]]] = [
    [({ENCODE, DECODE}, EVERY), ({DENOISE}, EVERY)],  # two machines
    [({ENCODE, DENOISE, DECODE}, EVERY)],  # one machine
    [({ENCODE}, EVERY), ({DENOISE}, EVERY), ({DECODE}, EVERY)],
    [({ENCODE, DECODE}, EVERY), ({DENOISE}, PLAIN), ({DENOISE}, REFERENCE)],  # two transformers
    [({ENCODE, DECODE}, EVERY), ({DENOISE}, PLAIN), ({DENOISE}, EVERY), ({DENOISE}, EVERY)],  # a pool in a pool
    [({ENCODE, DECODE}, EVERY), ({ENCODE}, EVERY), ({DENOISE}, PLAIN), ({DENOISE}, frozenset({"fl2va", "ref2va"}))],
    [({ENCODE, DENOISE}, EVERY), ({DENOISE, DECODE}, PLAIN), ({DECODE}, EVERY)],
    [({ENCODE, DECODE}, EVERY), ({ENCODE, DECODE}, EVERY), ({ENCODE, DECODE}, EVERY), ({DENOISE}, EVERY)],  # helpers
    [({ENCODE}, EVERY), ({DENOISE, DECODE}, EVERY), ({DENOISE, DECODE}, EVERY), ({DENOISE, DECODE}, EVERY)],
    [({ENCODE}, PLAIN), ({ENCODE}, EVERY), ({DENOISE}, EVERY), ({DENOISE}, EVERY), ({DECODE, DENOISE}, EVERY)],
]


def play(random: Random, events: int) -> World:
    """Live through about so many random events, then let everything come to rest; every law is checked on the way."""
    limits = Limits(
        max_in_flight=random.randrange(1, 6),
        max_waiting=random.choice((0, 2, 5, 20)),
        retries=random.randrange(3),
        patience=random.choice((0, 1, 2, 5)),
        look_ahead=random.choice((1, 1, 2, 3)),
        parallel_decode=random.choice((1, 1, 2, 3)),
    )
    world = World(limits, random.choice(CREWS))
    storm = random.choice((0, 1, 3))  # how much trouble there is
    deeds = [_submit] * random.choice((3, 6)) + [_finish] * 8 + [_fail, _cancel, _repeat]
    deeds += [_help_ends] * 2 if limits.parallel_decode > 1 else []
    deeds += [_go_down, _come_up, _come_up, _lose_payload, _lose_payload, _cancel, _repeat, _stop_untold] * storm
    for _ in range(events):
        random.choice(deeds)(world, random)
    come_to_rest(world, random)
    return world


def come_to_rest(world: World, random: Random) -> None:
    """Finish all runs; what waits for a worker gets it, or learns that it is gone. Then nothing may be left."""
    for name in list(world.hands):
        hand = world.hands[name]
        if not hand.up:
            back = random.randrange(2)
            world.tell(WorkerUp(name, hand.stages, hand.workflows) if back else WorkerDown(name, returning=False))
    for _ in range(4 * len(world.wishes)):
        _finish(world, random)
        _help_ends(world, random)
    assert not world.wishes, f"never ended: {world.wishes}"
    assert world.scheduler.snapshot()["requests"] == {}
    again = Scheduler(world.limits)
    assert [again.handle(event) for event in world.history] == world.answers, "the same events, other commands"


def _runs(world: World) -> list[RunStage]:
    return [hand.run for hand in world.hands.values() if hand.run]


def _attempt(run: RunStage, random: Random) -> int | None:
    return run.attempt if random.randrange(2) else None


def _submit(world: World, random: Random) -> None:
    workflow = random.choice(WORKFLOWS)
    world.tell(Submitted(f"r{world.arrivals + len(world.ended)}", workflow, random.choice((0, 0, 0, 1, 5))))


def _finish(world: World, random: Random) -> None:
    """A run ends as it should: done, or stopped if it was told to, which may come too late."""
    if runs := _runs(world):
        run = random.choice(runs)
        place, attempt = (run.request, run.stage, run.worker), _attempt(run, random)
        if world.wishes[run.request].stopping and random.randrange(3):
            world.tell(StageStopped(*place, attempt))
        elif world.wishes[run.request].stopping and random.randrange(2):
            world.tell(StageFailed(*place, "as it stopped", attempt))
        else:
            world.tell(StageDone(*place, attempt))


def _help_ends(world: World, random: Random) -> None:
    """A helper is free again, before the run that it helps with, or after."""
    helping = [(name, hand.helps) for name, hand in world.hands.items() if hand.helps]
    if helping:
        name, (request, attempt) = random.choice(helping)
        world.tell(HelpEnded(request, name, attempt))


def _fail(world: World, random: Random) -> None:
    if runs := _runs(world):
        run = random.choice(runs)
        world.tell(StageFailed(run.request, run.stage, run.worker, "a bad request", _attempt(run, random)))


def _stop_untold(world: World, random: Random) -> None:
    if runs := _runs(world):
        run = random.choice(runs)
        world.tell(StageStopped(run.request, run.stage, run.worker, _attempt(run, random)))


def _cancel(world: World, random: Random) -> None:
    if world.wishes:
        world.tell(CancelRequested(random.choice(list(world.wishes)), random.choice((None, "deadline"))))


def _lose_payload(world: World, random: Random) -> None:
    held = [PayloadLost(name, stage) for name, wish in world.wishes.items() for stage in wish.payloads]
    if held:
        world.tell(random.choice(held))


def _go_down(world: World, random: Random) -> None:
    if world.hands:
        world.tell(WorkerDown(random.choice(list(world.hands)), returning=random.randrange(4) > 0))


def _come_up(world: World, random: Random) -> None:
    """A worker returns, as it was or as another; or one more comes."""
    down = [name for name, hand in world.hands.items() if not hand.up]
    name = random.choice(down) if down else f"w{random.randrange(6)}"
    before = world.hands.get(name)
    if before is not None and random.randrange(4):
        world.tell(WorkerUp(name, before.stages, before.workflows))
    else:
        stages, workflows = random.choice(random.choice(CREWS))
        world.tell(WorkerUp(name, frozenset(stages), workflows))


def _repeat(world: World, random: Random) -> None:
    """An event from earlier comes again, late or twice; or one about a request that never was."""
    event = random.choice(world.history)
    if isinstance(event, Submitted) and event.request in world.ended:
        event = StageDone("never", random.choice(list(Stage)), "w0")
    world.tell(event)
