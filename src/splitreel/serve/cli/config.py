"""`splitreel config`: start a config file, see what is in force, get the schema, convert one from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from splitreel.serve.cli.codes import FILE_CODES

EPILOG = f"""Examples:

splitreel config init --nodes 192.168.23.1 192.168.23.2

splitreel config show --set engine.max_in_flight=1

splitreel config schema > splitreel.schema.json

splitreel config convert fastvideo.yaml --output splitreel.yaml --request request.yaml

{FILE_CODES}"""

_INIT, _SHOW, _SCHEMA, _CONVERT = (f"Examples:\n\n{line}\n\n{FILE_CODES}" for line in EPILOG.split("\n\n")[1:5])

app = typer.Typer(
    help="Start, explain and convert config files.",
    epilog=EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_Overwrite = Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace files that exist.")]
_Output = Annotated[Path, typer.Option(metavar="FILE", help="The config to write; - prints it.")]
_Device = Annotated[Literal["cuda", "cpu"], typer.Option(help="Where the stages compute.")]


@app.command("init", epilog=_INIT)
def init(
    nodes: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDR ...", show_default=False, help="The machines; none: this one, without Ray."),
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="ADDR", show_default=False, hidden=True)] = None,
    output: _Output = Path("splitreel.yaml"),
    model: Annotated[
        str | None, typer.Option(metavar="PATH", show_default=False, help="A directory, a hub id, or tiny.")
    ] = None,
    workflow: Annotated[Literal["t2va", "fl2va", "ref2va"], typer.Option(help="What films are made from.")] = "t2va",
    device: _Device = "cuda",
    overwrite: _Overwrite = False,
) -> None:
    """Write a commented config for one machine or several. Asks nothing.

    The first machine reads prompts and makes pictures and sound; each further one runs the transformer.
    """
    from splitreel.config_tools.starter import DEFAULT_MODEL, starter
    from splitreel.serve.cli.failures import Refused
    from splitreel.serve.cli.files import check_free, write_text

    addresses = [part for text in [*(nodes or []), *(more or [])] for part in text.split(",") if part]
    if model is not None and not model.strip():
        raise Refused(
            "--model: expected a directory, a hub id or tiny, found nothing. Leave the option out for the release."
        )
    text = starter(addresses, model=model or DEFAULT_MODEL, workflow=workflow, device=device)
    check_free(output, overwrite=overwrite)
    write_text(output, text)
    if str(output) != "-":
        print(f"{output}: a config for {len(addresses) or 1} machine{'s' if len(addresses) > 1 else ''}.")


@app.command("show", epilog=_SHOW)
def show(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="The config. Default: splitreel.yaml in this directory."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", show_default=False, help="Change a setting of the config; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="One JSON object per setting.")] = False,
) -> None:
    """Print every setting in force and where it came from: the file, --set, a default, or other settings."""
    from splitreel.cluster.environment import shown
    from splitreel.config_tools.origins import as_yaml, settings_in_force
    from splitreel.serve.cli.inputs import find_config

    settings = settings_in_force(find_config(config), overrides or [], mask=shown)
    if as_json:
        for each in settings:
            row = {"setting": each.name, "value": each.value, "origin": each.origin, "detail": each.detail}
            print(json.dumps(row, ensure_ascii=False))
    else:
        print(as_yaml(settings))


@app.command("schema", epilog=_SCHEMA)
def schema() -> None:
    """Print the config file's JSON schema, for editors that complete and check YAML."""
    from splitreel.config_tools.origins import json_schema

    print(json.dumps(json_schema(), indent=2))


@app.command("convert", epilog=_CONVERT)
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A FastVideo run file: generator: and request:.")],
    output: _Output = Path("splitreel.yaml"),
    request: Annotated[Path, typer.Option(metavar="FILE", help="The request to write; - prints it.")] = Path(
        "request.yaml"
    ),
    device: _Device = "cuda",
    dtype: Annotated[Literal["bfloat16", "float32", "float16"], typer.Option(help="Of every role.")] = "bfloat16",
    overwrite: _Overwrite = False,
) -> None:
    """Turn a FastVideo run file into a config and a request, and list what has no equivalent, and why.

    A setting that FastVideo's file does not have is an error, and nothing is written.
    """
    from splitreel.config_tools.convert import convert_file
    from splitreel.serve.cli.files import check_free, write_text

    found = convert_file(file, device=device, dtype=dtype)
    check_free(output, overwrite=overwrite)
    check_free(request, overwrite=overwrite, option="--request")
    write_text(output, found.config_text(str(file)))
    if found.request is not None:
        write_text(request, found.request_text(str(file)), option="--request")
    for title, changes in (("No equivalent:", True), ("Left out, because it is so anyway:", False)):
        rows = [item for item in found.left_out if item.changes is changes]
        if rows:
            typer.echo(title, err=True)
        for item in rows:
            typer.echo(f"  {item.name}: {json.dumps(item.value, ensure_ascii=False)} ({item.why})", err=True)
    if "-" not in (str(output), str(request)):
        again = f" --request {request}" if found.request is not None else " --prompt TEXT"
        print(f"splitreel generate --config {output}{again}")
