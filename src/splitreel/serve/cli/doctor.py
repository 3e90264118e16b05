"""`splitreel doctor`: what is wrong with a set-up, where, and what to do; before anything loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitreel.serve.cli.codes import OK
from splitreel.serve.cli.numbers import within

if TYPE_CHECKING:
    from splitreel.cluster.doctor import Finding, Report

WARNINGS, FAILURES = 1, 2

EPILOG = """Examples:

splitreel doctor

splitreel doctor --config splitreel.yaml --unified

splitreel doctor --config splitreel.yaml --strict --json > doctor.json

Exit codes: 0 nothing failed; 1 warnings, with --strict; 2 failures, or wrong usage or config."""


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The config. Default: splitreel.yaml in this directory; without one this machine, and the nodes of a Ray "
            "that runs here.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", show_default=False, help="Change a setting of the config; repeatable."),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where films are to be written.")] = Path("outputs"),
    unified: Annotated[
        bool | None,
        typer.Option(
            "--unified/--not-unified",
            show_default=False,
            help="CPU and GPU share memory, as on a DGX Spark. Default: what the devices say.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="For all of it, 10 or more; more where disks are slow or machines busy."),
    ] = 55.0,
    strict: Annotated[bool, typer.Option("--strict", metavar="", help="Warnings give exit code 1.")] = False,
    show_all: Annotated[bool, typer.Option("--all", metavar="", help="Skipped checks too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="One JSON object on stdout.")] = False,
) -> None:
    """Look at this machine, the cluster and every node that roles go to, and say what is wrong and what to do.

    Loads no weights, downloads nothing, changes nothing; ends within a minute, or what --timeout says. The ids of the
    checks are explained in docs/troubleshooting.md.
    """
    from splitreel.config import load_config
    from splitreel.serve.cli.failures import Refused
    from splitreel.serve.cli.inputs import DEFAULT_CONFIG

    within("--timeout", timeout, "seconds", 10, 86_400)
    file = config or (Path(DEFAULT_CONFIG) if Path(DEFAULT_CONFIG).is_file() else None)
    if file is None and overrides:
        raise Refused("--set: expected --config too, found none. Give the config whose setting to change.")
    settings = load_config(file, overrides or []) if file is not None else None
    from splitreel.session_doctor import examine

    report = examine(settings, output=output, unified=unified, total=timeout)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        show(report, show_all=show_all)
    raise typer.Exit(code_of(report, strict=strict))


def code_of(report: Report, *, strict: bool) -> int:
    """The exit code of a report."""
    from splitreel.cluster.doctor import Status

    if report.count(Status.FAIL):
        return FAILURES
    return WARNINGS if strict and report.count(Status.WARN) else OK


def show(report: Report, *, show_all: bool) -> None:
    """A table for each node, what is wrong with its remedy below it, and a summary."""
    from rich.console import Console

    from splitreel.cluster.doctor import Status

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    places = list(dict.fromkeys(finding.node for finding in report.findings))
    for place in places:
        rows = [each for each in report.findings if each.node == place]
        shown = [each for each in rows if show_all or each.status is not Status.SKIP]
        if shown:
            console.print(_table(place, report.nodes.get(place, ""), shown))
    counts = ", ".join(f"{report.count(status)} {status}" for status in Status if report.count(status))
    console.print(f"{counts}, in {report.seconds:.1f} s", markup=False)


def _table(place: str, hostname: str, findings: list[Finding]) -> object:
    from rich.table import Table
    from rich.text import Text

    colours = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
    title = f"{place or 'any node'}{f' {hostname}' if hostname else ''}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for each in findings:
        text = Text(f"{each.role}: {each.found}" if each.role else each.found)
        if each.remedy:
            text.append(f"\n→ {each.remedy}", style="bold")
        table.add_row(Text(each.status.value, style=colours[each.status.value]), each.check, text)
    return table
