"""`splitreel plan`: will it fit, how fast will it be, and does a split pay; before anything loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from splitreel.serve.cli.codes import DEPLOYMENT
from splitreel.serve.cli.numbers import within
from splitreel.words import counted

if TYPE_CHECKING:
    from splitreel.config import Config
    from splitreel.plan.layouts import Figures, Setting
    from splitreel.plan.memory import Machine

EPILOG = """Examples:

splitreel plan --node a=128:unified --node b=128:unified

splitreel plan --config splitreel.yaml

splitreel plan --config splitreel.yaml --offline --node 192.168.23.1=128:unified --node 192.168.23.2=128:unified

splitreel plan --node a=80 --node b=80 --times encode=2,denoise=60,decode=8 --rate 30

splitreel plan --times encode=42,denoise=92,decode=94 --machines 4    (which roles keep the transformer busiest)

splitreel plan --node a=128:unified --times receipts.jsonl --machines 4 --sweep outputs/plan

Exit codes: 0 it fits: these machines, or with --times and without a config one of the ways that are compared; 2 wrong
usage or config, or a film that generate refuses; 3 it does not fit, or the checkpoint cannot be read."""

_MEMORY, _SPEED = "Does it fit", "How fast is it"
# Requests per hour: below, 2,000 arrivals at random last longer than seconds can be told apart in.
_RATES = (0.001, 1e6)


def plan(
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="Its roles and nodes; without it the best cut is sought."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", show_default=False, help="Change a setting of the config; repeatable."),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NAME=GB[:unified]",
            show_default=False,
            help="A GPU's memory in GB of 10^9 bytes (or GiB), or a machine whose CPU and GPU share it; repeatable. A card "
            "sold as 80 GB has about 85.",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            show_default=False,
            help="A directory or hub id. Default: the release.",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    workflows: Annotated[
        list[str] | None,
        typer.Option(
            "--workflow", metavar="W", show_default=False, help="Default: t2va; repeatable.", rich_help_panel=_MEMORY
        ),
    ] = None,
    height: Annotated[
        int | None,
        typer.Option(
            metavar="H",
            show_default=False,
            help="As splitreel generate takes it, together with --width. Default: 768 x 1344.",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(metavar="W", show_default=False, rich_help_panel=_MEMORY)] = None,
    num_frames: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help="Rounded up to what the model can make. Default: the shortest.",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    text_rows: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=1_000_000, help="Tokens of the prompt, pictures included.", rich_help_panel=_MEMORY
        ),
    ] = 512,
    times: Annotated[
        str | None,
        typer.Option(
            metavar="TIMES",
            show_default=False,
            help="encode=S,denoise=S,decode=S, everything resident; or receipts of splitreel generate --json.",
            rich_help_panel=_SPEED,
        ),
    ] = None,
    machines: Annotated[
        int, typer.Option(metavar="N", min=1, max=16, help="Compare up to so many machines.", rich_help_panel=_SPEED)
    ] = 3,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="R", show_default=False, help="Requests per hour, for waiting times.", rich_help_panel=_SPEED
        ),
    ] = None,
    load_rate: Annotated[
        float,
        typer.Option(metavar="GB/S", min=0.01, help="From disk, where a machine reloads.", rich_help_panel=_SPEED),
    ] = 1.0,
    link_rate: Annotated[
        float, typer.Option(metavar="GB/S", min=0.001, help="Between machines; 0.1 is 1 GbE.", rich_help_panel=_SPEED)
    ] = 1.0,
    sweep: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", show_default=False, help="Write PATH.csv and PATH.png over rates.", rich_help_panel=_SPEED
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="R,R,...",
            show_default=False,
            help="Of the sweep. Default: eight up to the best.",
            rich_help_panel=_SPEED,
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            metavar="",
            help="Ask neither the config's cluster for its nodes' memory nor the hub for file headers.",
            rich_help_panel=_MEMORY,
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="One JSON object on stdout.")] = False,
) -> None:
    """Say whether a model fits on some machines, and how many films an hour each way to use them makes.

    Reads file headers only, here or from the hub, or a table of the released sizes: nothing is loaded or downloaded.
    Without --node the nodes of the config's running cluster are asked for their memory; without --model and --times too,
    ./splitreel.yaml is that config.
    """
    from splitreel.config import load_config
    from splitreel.plan.adapters import with_settings
    from splitreel.plan.layouts import Setting, parse_times
    from splitreel.plan.memory import best_layout, forecast, parse_machine, workers_of
    from splitreel.plan.report import memory_json, memory_text
    from splitreel.plan.sizes import RELEASE, film_size, sizes_of
    from splitreel.request import GenerateRequest
    from splitreel.serve.cli.failures import Refused
    from splitreel.serve.cli.inputs import DEFAULT_CONFIG

    if config is None and model is None and not nodes and times is None and Path(DEFAULT_CONFIG).is_file():
        config = Path(DEFAULT_CONFIG)
    settings = load_config(config, overrides or []) if config is not None else None
    if config is None and overrides:
        raise Refused("--set: expected --config too, found none. Give the config whose setting to change.")
    within("--load-rate", load_rate, "GB per second", 0.01, 1e6)
    within("--link-rate", link_rate, "GB per second", 0.001, 1e6)
    if rate is not None:
        within("--rate", rate, "requests per hour", *_RATES)
    if times is None and (sweep is not None or rate is not None or rates is not None):
        raise Refused(
            "--times: expected the seconds of each stage for --rate, --rates and --sweep, found none. Add --times."
        )
    if rates is not None and sweep is None:
        raise Refused("--rates: expected --sweep too, found none. Add --sweep PATH, or give one --rate.")
    wanted = _rates(rates) if rates is not None else None
    seconds = parse_times(times) if times is not None else None
    if sweep is not None:
        sweep = _sweep_name(sweep)
    size = GenerateRequest(prompt="any", height=height, width=width, num_frames=num_frames)
    known = [parse_machine(text) for text in nodes or ()]
    twice = sorted({each.name for each in known if [other.name for other in known].count(each.name) > 1})
    if twice:
        raise Refused(f"--node: expected each name once, found {twice[0]} twice. Give each machine a name of its own.")
    seats: list[str] | None = None
    if not known and settings is not None and not offline and settings.cluster.address not in ("local", "embedded"):
        known, seats = _ask_cluster(settings, required=times is None)
    if not known and times is None:
        raise Refused(
            "--node, --times: expected the memory of each machine or the seconds of each stage, found neither. For example "
            "--node a=128:unified --node b=128:unified."
        )
    served = _served(settings, workflows)
    path = model or (settings.model.path if settings else RELEASE)
    sizes = sizes_of(path, served, revision=settings.model.revision if settings else None, online=not offline)
    if settings is not None:
        sizes = with_settings(sizes, settings, served, online=not offline)
    film, rounded = film_size(size, text_rows, served, sizes.dims)
    for note in rounded:
        typer.echo(f"note: {note}", err=True)

    report: dict[str, Any] = {}
    fits = True
    if known:
        found = (
            forecast(workers_of(settings, known, seats), known, sizes, film)
            if settings is not None
            else best_layout(known, sizes, film, served)
        )
        fits = found.fits
        report["memory"] = memory_json(found)
        if not as_json:
            print(memory_text(found))
    if seconds is not None:
        speed = Setting(
            seconds,
            sizes,
            film,
            served,
            _least(known) if known else None,
            load_rate=load_rate * 1e9,
            link_rate=link_rate * 1e9,
        )
        report |= _speed(speed, machines, rate, sweep, wanted, as_json=as_json, gap=bool(known))
        if not fits and settings is None:
            # Nothing fixes a layout: the comparison is the answer, and the machines given are those to have several of.
            ways = [row["name"] for row in report["layouts"] if not row["obstacle"]]
            fits = bool(ways)
            if not as_json:
                which = f"; with up to {machines} like the smallest of them these do: {'; '.join(ways)}" if ways else ""
                print(f"\nThe machines given do not hold the model{which}.")
    if as_json:
        print(json.dumps(report))
    raise typer.Exit(0 if fits else DEPLOYMENT)


def _ask_cluster(settings: Config, *, required: bool) -> tuple[list[Machine], list[str] | None]:
    """The memory of the nodes where workers would be, and the machine of each worker; said on stderr."""
    from splitreel.cluster.machines import seats_of
    from splitreel.errors import ClusterError
    from splitreel.plan.memory import Machine
    from splitreel.serve.cli.failures import Refused

    try:
        seats = seats_of(settings)
    except ClusterError as error:
        if required:
            raise Refused(
                f"--node: expected the memory of each machine, found none given, and the cluster does not tell it: "
                f"{error.message} Or give --node ADDRESS=GB."
            ) from error
        typer.echo(f"note: planning without memory: {error.message}", err=True)
        return [], None
    machines = {seat.machine: Machine(seat.machine, seat.bytes, seat.unified) for seat in seats}
    told = ", ".join(f"{machine.name} {machine.bytes / 1e9:.1f} GB" for machine in machines.values())
    typer.echo(f"Memory as the cluster at {settings.cluster.address} tells it: {told}", err=True)
    return list(machines.values()), [seat.machine for seat in seats]


def _speed(
    setting: Setting,
    machines: int,
    rate: float | None,
    sweep: Path | None,
    rates: list[float] | None,
    *,
    as_json: bool,
    gap: bool,
) -> dict[str, Any]:
    from splitreel.plan.layouts import figures, layouts, verdicts
    from splitreel.plan.partitions import advice, beyond, shares
    from splitreel.plan.report import figures_text, shares_text

    ways = [layout for count in range(1, machines + 1) for layout in layouts(setting, count)]
    found = [figures(layout, rate=rate) for layout in ways]
    cuts = [share for count in range(2, machines + 1) for share in shares(setting, count)]
    # What the advice will name is compared with the rest, waiting times and all.
    better = beyond(setting, cuts, found)
    ways += better
    found += [figures(layout, rate=rate) for layout in better]
    says = verdicts(found)
    advised = advice(cuts)
    report: dict[str, Any] = {
        "layouts": [_plain(each) for each in found],
        "verdicts": says,
        "partitions": [each.to_dict() for each in cuts],
        "advice": advised,
    }
    if not as_json:
        print("\n" * gap + figures_text(found, says))
        if cuts:
            print("\n" + shares_text(cuts, advised))
    if sweep is not None:
        from splitreel.plan.chart import draw_sweep
        from splitreel.plan.report import figures_csv
        from splitreel.serve.cli.files import write_text

        best = max((each.per_hour for each in found), default=0.0)
        wanted = rates or [max(_RATES[0], float(f"{best * step / 8:.4g}")) for step in range(1, 9)]
        rows = [figures(layout, rate=each) for layout in ways for each in wanted]
        table, picture = sweep.with_name(f"{sweep.name}.csv"), sweep.with_name(f"{sweep.name}.png")
        write_text(table, figures_csv(rows), option="--sweep")
        times = setting.times
        draw_sweep(
            rows,
            picture,
            f"Time until a film is there: encode {times.encode:g} s, denoise {times.denoise:g} s, decode {times.decode:g} s",
        )
        report |= {"table": str(table), "picture": str(picture)}
        if not as_json:
            print(f"\n{table}, {picture}: {counted(len(rows), 'simulation')}.")
    return report


def _plain(each: Figures) -> dict[str, Any]:
    row = each.to_dict()
    return {**row, "alone": None} if each.obstacle else row


def _rates(text: str) -> list[float]:
    from splitreel.serve.cli.failures import Refused

    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise Refused(
            f"--rates: expected requests per hour with commas between, found {text!r}. For example 5,10,20."
        ) from None
    return [within("--rates", each, "requests per hour", *_RATES) for each in found]


def _sweep_name(path: Path) -> Path:
    from splitreel.errors import ConfigError
    from splitreel.media.target import check_place
    from splitreel.serve.cli.failures import Refused
    from splitreel.serve.cli.files import check_free

    if path.name in ("", ".."):
        raise Refused(f"--sweep: expected a name for two files, found the folder {path}. For example {path / 'plan'}.")
    for file in (path.with_name(f"{path.name}.{ending}") for ending in ("csv", "png")):
        check_free(file, overwrite=True, option="--sweep")
        try:
            check_place(file)
        except ConfigError as error:
            raise Refused(f"--sweep: {error.message}") from error
    return path


def _served(settings: Config | None, workflows: list[str] | None) -> tuple[str, ...]:
    from splitreel.serve.cli.failures import Refused

    wrong = [name for name in workflows or () if name not in ("t2va", "fl2va", "ref2va")]
    if wrong:
        raise Refused(f"--workflow: expected t2va, fl2va or ref2va, found {wrong[0]!r}. Repeat the option for several.")
    if workflows:
        return tuple(dict.fromkeys(workflows))
    return settings.model.workflows if settings is not None else ("t2va",)


def _least(machines: list[Machine]) -> Machine:
    """The machine of which there are several: the smallest that was given."""
    return min(machines, key=lambda machine: machine.usable(1))
