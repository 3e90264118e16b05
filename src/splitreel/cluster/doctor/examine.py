"""The whole examination: driver, head, nodes, links. Every wait is bounded, and all of it by `TOTAL_S`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from splitreel.cluster.doctor import network, software
from splitreel.cluster.doctor.context import Context, RoleTask
from splitreel.cluster.doctor.families import FAMILIES
from splitreel.cluster.doctor.files import facts
from splitreel.cluster.doctor.finding import (
    CHECK_S,
    DRIVER,
    Check,
    Finding,
    Report,
    Status,
    bounded,
    of_error,
    ok,
    run_checks,
    skip,
)
from splitreel.cluster.doctor.together import look_together
from splitreel.cluster.placement import wishes_of
from splitreel.config import Config
from splitreel.errors import ClusterError

TOTAL_S = 55.0  # unless said otherwise; other waits are in proportion
CONNECT_S = 32.0  # Ray itself gives up on a head after 20 s
FACTS_S = 15.0
OWN_CLUSTER = ("local", "embedded")


@dataclass
class Examination:
    """What is being looked at, and what was found so far."""

    model: str
    schema: tuple[int, int]
    config: Config | None
    output: Path
    unified: bool | None = None
    total: float = TOTAL_S
    began: float = field(default_factory=time.monotonic)
    findings: list[Finding] = field(default_factory=list)
    nodes: dict[str, str] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        """How patient to be, 1 where nothing was said."""
        return self.total / TOTAL_S

    @property
    def deadline(self) -> float:
        """When all is to be done, in the time of `time.monotonic`."""
        return self.began + self.total

    def left(self, limit: float) -> float:
        """Seconds that a wait may take: `limit` in proportion, or what is left of the whole."""
        return max(0.0, min(limit * self.scale, self.deadline - time.monotonic()))


def examine(
    model: str,
    schema: tuple[int, int],
    config: Config | None,
    *,
    output: Path = Path("outputs"),
    unified: bool | None = None,
    total: float = TOTAL_S,
) -> Report:
    """Look at everything and report; raises nothing that a check could.

    `model`: where its ModelDefinition is, `module:name`, and `schema` its version of payloads: the driver need not import
    it. Without a config: this machine, and the nodes of a Ray that runs here. `unified`: whether GPU and CPU share memory,
    None to ask the devices. Takes at most a little more than `total` seconds.
    """
    work = Examination(model, schema, config, output, unified, total)
    address = config.cluster.address if config is not None else "auto"
    _driver(work)
    if address in OWN_CLUSTER:
        started = f"cluster.address is {address}: " + (
            "no Ray is needed" if address == "local" else "each session starts its own"
        )
        work.findings.append(skip("ray.reachable", started, node=DRIVER))
        _this_machine(work, roles=True)
    else:
        _cluster(work, address)
    return Report(tuple(work.findings), time.monotonic() - work.began, work.nodes)


def _driver(work: Examination) -> None:
    checks: list[tuple[str, Check]] = [
        ("output.writable", lambda context: software.output(work.output)),
        ("address.variables", network.variables),
    ]
    work.findings += run_checks(checks, Context(DRIVER), node=DRIVER, seconds=work.left(10))


def _this_machine(work: Examination, *, roles: bool) -> None:
    """Where no node is to be asked: the machine at hand, with all roles when they would run here."""
    context = Context(DRIVER, unified=work.unified)
    names = ["machine"]
    if roles and work.config is not None:
        names = [name for name in FAMILIES if name != "network"]  # `_driver` has looked at that, and it is no node
        tasks = [  # without GPUs, as nothing here gives them out: they are what this process sees
            RoleTask(wish.worker, work.config.role_spec(role), 0)
            for role, wishes in wishes_of(work.config).items()
            for wish in wishes
        ]
        context = replace(context, tasks=tuple(tasks), model=work.model, schema=work.schema)
    for name in names:
        checks, seconds = FAMILIES[name]
        work.findings += run_checks(checks, context, node=DRIVER, seconds=work.left(seconds), each=work.left(CHECK_S))
    if context.tasks:
        work.findings += run_checks([("memory.budget", _together)], context, node=DRIVER, seconds=work.left(FACTS_S))


def _together(context: Context) -> Iterator[Finding]:
    yield from look_together(facts(context))


def _cluster(work: Examination, address: str) -> None:
    from splitreel.cluster.connection import connect
    from splitreel.cluster.doctor.nodes import look_at_nodes

    try:
        connection = bounded(lambda: connect(address, nodes=1), work.left(CONNECT_S))
    except (ClusterError, TimeoutError) as error:
        work.findings.append(_unreachable(work, error))
        work.findings += _not_asked(work.config)
        _this_machine(work, roles=False)
        return
    try:
        work.findings.append(ok("ray.reachable", f"joined the cluster at {connection.address}", node=DRIVER))
        asyncio.run(look_at_nodes(work, connection))
    finally:
        try:
            bounded(connection.close, 10.0)
        except TimeoutError as error:
            work.findings.append(of_error("ray.reachable", error, "Leaving the cluster took too long.", node=DRIVER))


def _unreachable(work: Examination, error: ClusterError | TimeoutError) -> Finding:
    """A failure; but without a config no cluster need be there, and one that another run started for itself is not ours."""
    details = error.details if isinstance(error, ClusterError) else {}
    if work.config is None and not os.environ.get("RAY_ADDRESS"):
        from splitreel.cluster.embedded import of_another_run

        if details.get("nothing_runs"):
            return skip("ray.reachable", "no config, and no Ray runs here", node=DRIVER)
        if details.get("token_refused") and of_another_run(details["address"]):
            shown = f"no config, and the Ray at {details['address']} was started by another run of splitreel for itself"
            return skip("ray.reachable", shown, node=DRIVER)
    see = "See that the head runs (splitreel cluster commands prints its lines) and is reachable from here."
    return of_error("ray.reachable", error, see, node=DRIVER)


def _not_asked(config: Config | None) -> Sequence[Finding]:
    nodes = [(role, node) for role, each in (config.roles if config else {}).items() for node in each.placements]
    return [
        skip("node.answers", "not asked: the cluster is not reachable", node=node or "", role=role)
        for role, node in nodes
    ]


def worst(report: Report) -> Status:
    """The most serious status in a report."""
    return next((status for status in (Status.FAIL, Status.WARN) if report.count(status)), Status.PASS)
