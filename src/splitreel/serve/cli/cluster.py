"""`splitreel cluster`: the commands that start Ray on each machine, and who is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitreel.serve.cli.codes import DEPLOYMENT, FILE_CODES
from splitreel.serve.cli.numbers import within

if TYPE_CHECKING:
    from splitreel.cluster.placement import Node

_CODES = """Exit codes: 0 all is there; 2 wrong usage or config; 3 no cluster answers or it refuses our token, or a node of the
config is not in it."""

COMMANDS_EPILOG = f"""Examples:

splitreel cluster commands --unified

splitreel cluster commands --config splitreel.yaml --object-store 1

{FILE_CODES}"""

STATUS_EPILOG = f"""Examples:

splitreel cluster status

splitreel cluster status --address 192.168.23.1:6379 --json

{_CODES}"""

EPILOG = f"""Examples:

splitreel cluster commands --unified

splitreel cluster status

{_CODES}"""

app = typer.Typer(
    help="What to run on each machine, and who is in the cluster.",
    epilog=EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", show_default=False, help="The config. Default: splitreel.yaml in this directory."),
]
_Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", show_default=False, help="Change a setting of the config; repeatable."),
]


@app.command("commands", epilog=COMMANDS_EPILOG)
def commands(
    config: _Config = None,
    overrides: _Overrides = None,
    unified: Annotated[
        bool, typer.Option("--unified", metavar="", help="CPU and GPU share memory, as on a DGX Spark.")
    ] = False,
    object_store: Annotated[
        float, typer.Option(metavar="GIB", help="Of each node, for payloads; /dev/shm must hold it.")
    ] = 2.0,
    token: Annotated[
        bool,
        typer.Option("--token/--no-token", help="Who reaches an open Ray port runs code as you: ask for a token."),
    ] = True,
) -> None:
    """Print what to run on each machine of a config so that Ray is up: exports and ray start, ready to paste."""
    from splitreel.cluster.commands import as_text, node_commands
    from splitreel.serve.cli.inputs import read_config

    store = round(within("--object-store", object_store, "GiB", 0, 1e6) * 1024**3)
    found = node_commands(read_config(config, overrides or []), unified=unified, store_bytes=store, token=token)
    print(as_text(found))
    if token:
        print("\n# where you run splitreel\nexport RAY_AUTH_MODE=token")


@app.command("status", epilog=STATUS_EPILOG)
def status(
    config: _Config = None,
    overrides: _Overrides = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", show_default=False, help="A cluster without a config; auto: the one here."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="One JSON object on stdout.")] = False,
) -> None:
    """Print the nodes that are alive: addresses, labels, GPUs and who holds them; and whether the config's are among them."""
    from splitreel.config import is_head_address
    from splitreel.serve.cli.failures import Refused
    from splitreel.serve.cli.inputs import DEFAULT_CONFIG, read_config

    if address is not None and (config is not None or overrides):
        raise Refused("--address, --config: expected one of the two, found both. Leave one out.")
    if address is not None and address != "auto" and not is_head_address(address):
        raise Refused(
            f"--address: expected HOST:PORT or auto, found {address!r}. Ray's own port is 6379 unless chosen otherwise."
        )
    settings = None
    if address is None and (config is not None or overrides or Path(DEFAULT_CONFIG).is_file()):
        settings = read_config(config, overrides or [])
    wanted = address or (settings.cluster.address if settings is not None else "auto")
    if wanted in ("local", "embedded"):
        raise Refused(
            f"cluster.address: expected a cluster that runs by itself, found {wanted}. Give --address HOST:PORT."
        )
    from splitreel.cluster.connection import connect
    from splitreel.cluster.placement import find

    connection = connect(wanted, nodes=1)
    try:
        nodes = connection.nodes()
    finally:
        connection.close()
    asked = [
        (f"roles.{name}.node{'s' if role.nodes is not None else ''}", node)
        for name, role in (settings.roles.items() if settings is not None else ())
        for node in role.placements
        if node is not None
    ]
    absent = [(where, node) for where, node in asked if not find(node, nodes)]
    if as_json:
        rows = [
            {
                "node_id": node.node_id,
                "address": node.address,
                "hostname": node.hostname,
                "gpus": node.gpus,
                "free_gpus": node.free_gpus,
                "labels": _own_labels(node),
                "holders": list(node.holders),
                "asked_by": [where for where, name in asked if node in find(name, nodes)],
            }
            for node in nodes
        ]
        print(json.dumps({"address": connection.address, "nodes": rows, "absent": [list(each) for each in absent]}))
    else:
        print(f"Ray at {connection.address}: {len(nodes)} node{'s' if len(nodes) != 1 else ''}")
        for node in nodes:
            print(_node_text(node, [where for where, name in asked if node in find(name, nodes)]))
    for where, name in absent:
        typer.echo(
            f"error: {where}: expected a live node {name!r}, found none. Start Ray there (splitreel cluster commands).",
            err=True,
        )
    raise typer.Exit(DEPLOYMENT if absent else 0)


def _node_text(node: Node, asked_by: list[str]) -> str:
    lines = [f'  {node.address} "{node.hostname}" id {node.node_id[:8]}: {node.free_gpus:g} of {node.gpus:g} GPU free']
    if labels := _own_labels(node):
        lines.append(f"    labels: {', '.join(f'{key}={value}' for key, value in labels.items())}")
    if node.holders:
        lines.append(f"    runs: {', '.join(node.holders)}")
    if asked_by:
        lines.append(f"    asked for by: {', '.join(asked_by)}")
    return "\n".join(lines)


def _own_labels(node: Node) -> dict[str, str]:
    """Without Ray's own, which repeat the node id."""
    return {key: value for key, value in node.labels.items() if not key.startswith("ray.io/node-id")}
