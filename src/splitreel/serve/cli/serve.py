"""`splitreel serve`: films over HTTP. `splitreel key`: who may ask for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from splitreel.serve.cli.codes import DEPLOYMENT, FILE_CODES, OK, SERVE_CODES
from splitreel.serve.cli.logs import Verbose, set_verbosity

EPILOG = f"""Examples:

splitreel serve --config two_machines.yaml

splitreel serve --config two_machines.yaml --set serve.studio=false    the API without the page

splitreel serve --config two_machines.yaml --host 0.0.0.0 --port 8000    needs a key: splitreel key NAME

curl -s http://127.0.0.1:8000/v1/videos -H 'Content-Type: application/json' -d '{{"prompt": "A lake.", "steps": 5}}'

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python your_program.py

{SERVE_CODES}"""

KEY_EPILOG = f"""Examples:

splitreel key alice

splitreel key alice --json

{FILE_CODES}"""


def serve(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="The config. Default: splitreel.yaml in this directory."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", show_default=False, help="Change a setting of the config; repeatable."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", show_default=False, help="Where to listen. Default: 127.0.0.1 (serve.host)."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, max=65535, show_default=False, help="Default: 8000 (serve.port); 0: a free one."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Where jobs are kept. Default: jobs (serve.folder)."),
    ] = None,
    verbose: Verbose = 0,
) -> None:
    """Serve films over HTTP, as clients of OpenAI's video API ask for them, and a page at / for people. Jobs outlive it.

    Stops in order on Ctrl-C and SIGTERM: takes no more jobs, lets running ones end or puts them back into the queue.
    """
    set_verbosity(verbose)
    try:
        import fastapi  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        from splitreel.errors import ConfigError

        raise ConfigError(
            f"serve: expected the server's packages, found no {error.name}. Install them: pip install 'splitreel[serve]'."
        ) from None
    from splitreel.serve.cli.failures import explain
    from splitreel.serve.cli.inputs import read_config
    from splitreel.serve.cli.signals import retake
    from splitreel.serve.http.listening import listen
    from splitreel.serve.jobs.ledger import open_ledger

    given = {name: value for name, value in (("host", host), ("port", port), ("folder", folder)) if value is not None}
    flags = {f"serve.{name}={_yaml(value)}": f"--{name} {value}" for name, value in given.items()}
    settings = read_config(config, overrides or [], flags)
    listen(settings.serve).close()
    open_ledger(settings.serve)[1].close()
    _say("importing torch and the model library")
    from splitreel.serve.http.run import serve as serve_until_stopped

    failure = serve_until_stopped(settings, _say, on_open=retake)
    if failure is not None:
        explain(failure)
        raise typer.Exit(DEPLOYMENT)
    _say("stopped")
    raise typer.Exit(OK)


def key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is; jobs belong to this name.")],
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="One JSON object.")] = False,
) -> None:
    """Make an API key. It is shown once: the config gets its digest, the client the key."""
    import json

    from pydantic import ValidationError

    from splitreel.config import KeyConfig
    from splitreel.serve.cli.failures import Refused
    from splitreel.serve.http.keys import make_key

    made, digest = make_key()
    try:
        entry = KeyConfig(name=name, sha256=digest)
    except ValidationError:
        raise Refused(
            f"NAME: expected letters, digits, dots, dashes and underscores, 64 at most, found {name!r}. Choose another."
        ) from None
    if as_json:
        print(json.dumps({"key": made, "name": entry.name, "sha256": entry.sha256}))
        return
    print(made)
    print(
        "Give the line above to the client, as OPENAI_API_KEY or `Authorization: Bearer`. It cannot be shown again.\n"
        f"Add this to the config:\n\nserve:\n  keys:\n    - {{name: {entry.name}, sha256: {entry.sha256}}}",
        file=sys.stderr,
    )


def _yaml(value: object) -> str:
    import json

    return str(value) if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
