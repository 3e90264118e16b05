"""Runs checked orders on a session and writes the films."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from splitreel.config import Config
from splitreel.errors import InvalidRequest, SplitreelError
from splitreel.request import Effective, GenerateRequest, GenerateResult
from splitreel.serve.cli.codes import OK, REQUEST_FAILED, USAGE
from splitreel.serve.cli.failures import exit_code_of, explain
from splitreel.serve.cli.inputs import Order, refuse_bad
from splitreel.serve.cli.report import failure_json, film_json, film_text
from splitreel.serve.cli.show import make_display
from splitreel.serve.cli.signals import Interrupted, retake
from splitreel.words import plainly


def make_films(config: Config, orders: list[Order], *, as_json: bool) -> int:
    """Make and write every film; the exit code. Raises what keeps the session from opening, and Refused."""
    names = {order.request.request_id: order.target.name for order in orders}
    done = 0
    try:
        with make_display(names) as display:
            display.say("importing torch and the model library")
            from splitreel.session import Session, preflight

            display.say("checking the request" if len(orders) == 1 else f"checking {len(orders)} requests")
            found = preflight(config, [order.request for order in orders])
            _refuse_invalid(found, orders)
            display.say(_opening(config))
            code = OK
            with Session(config, on_load=display.on_load) as session:
                retake()
                display.loaded()
                if None in found:
                    _refuse_invalid([_try_check(session.check, order) for order in orders], orders)
                display.say("making the film" if len(orders) == 1 else f"making {len(orders)} films")
                requests = (order.request for order in orders)
                results = session.stream(requests, on_progress=display.on_progress, return_errors=True)
                for order, result in zip(orders, results, strict=True):
                    display.ended(order.request.request_id)
                    code = max(code, _settle(order, result, as_json=as_json))
                    done += 1
                display.say("closing the session")
            return code
    except Interrupted as interrupt:
        interrupt.line = f"{interrupt.line[:-1]}: {_left(done, len(orders))}."
        raise


def _left(done: int, total: int) -> str:
    if done == total:
        return "all films had ended"
    return "the film was cancelled" if total == 1 else f"{done} of {total} films had ended, the others were cancelled"


def _opening(config: Config) -> str:
    match config.cluster.address:
        case "local":
            return "checking the model's files"
        case "embedded":
            return f"starting {config.cluster.nodes} Ray nodes on this machine, then checking the model's files there"
        case address:
            return f"joining the Ray cluster ({address}) and checking the model's files on its nodes"


def _try_check(check: Callable[[GenerateRequest], Effective], order: Order) -> Effective | InvalidRequest:
    try:
        return check(order.request)
    except InvalidRequest as error:
        return error


def _refuse_invalid(found: Sequence[Effective | InvalidRequest | None], orders: list[Order]) -> None:
    bad = {
        order.request.request_id: outcome
        for order, outcome in zip(orders, found, strict=True)
        if isinstance(outcome, InvalidRequest)
    }
    refuse_bad(bad, orders)


def _settle(order: Order, result: GenerateResult | Exception, *, as_json: bool) -> int:
    """Write a film and say what was made, or say why there is none; the exit code of this one film."""
    if isinstance(result, GenerateResult):
        try:
            result.save(order.target)
        except OSError as error:
            result = SplitreelError(f"{order.target}: the film was made and could not be written: {plainly(error)}.")
    if isinstance(result, GenerateResult):
        print(film_json(order, result) if as_json else film_text(order, result), flush=True)
        return OK
    explain(result, where=order.origin or str(order.target))
    if as_json:
        print(failure_json(order, result), flush=True)
    code = exit_code_of(result)
    # A request that is refused this late fails alone: others have been made.
    return REQUEST_FAILED if code == USAGE else code
