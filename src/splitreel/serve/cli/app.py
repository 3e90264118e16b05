"""The `splitreel` command: its commands, its exit codes, and what an error looks like."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from splitreel.serve.cli import cluster, config, doctor, generate, make_tiny, plan, serve, trace
from splitreel.serve.cli.codes import EXIT_CODES, USAGE
from splitreel.serve.cli.failures import UsageError, as_json, exit_code_of, explain
from splitreel.serve.cli.logs import Verbose, set_verbosity
from splitreel.serve.cli.signals import Interrupted, interruptible
from splitreel.version import __version__

_EPILOG = f"""Examples:

splitreel generate --config examples/demo.yaml --prompt "An alpine lake at sunrise." --steps 5

splitreel serve --config examples/demo.yaml

splitreel make-tiny models/tiny

{EXIT_CODES}"""

app = typer.Typer(
    name="splitreel",
    help="Make films with a video model that is split over several machines.",
    epilog=_EPILOG,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate", epilog=generate.EPILOG)(generate.generate)
app.command("serve", epilog=serve.EPILOG)(serve.serve)
app.command("key", epilog=serve.KEY_EPILOG)(serve.key)
app.command("trace", epilog=trace.EPILOG)(trace.trace)
app.command("make-tiny", epilog=make_tiny.EPILOG)(make_tiny.make_tiny)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)
app.command("plan", epilog=plan.EPILOG)(plan.plan)
app.add_typer(config.app, name="config")
app.add_typer(cluster.app, name="cluster")

# Typer brings a click of its own from 0.26 on; what it raises for wrong usage is the base of its BadParameter in both.
_UsageError = typer.BadParameter.__mro__[1]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"splitreel {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    verbose: Verbose = 0,
) -> None:
    set_verbosity(verbose)
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(USAGE)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    command = typer.main.get_command(app)
    try:
        with interruptible():
            code = command.main(args=arguments, prog_name="splitreel", standalone_mode=False)
            sys.stdout.flush()
    except Interrupted as interrupt:
        print(interrupt.line, file=sys.stderr)
        _leave_now(interrupt.exit_code)
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        if isinstance(error, _UsageError):
            if not _usage_words(error):  # a group without its command, whose help is printed already
                sys.exit(USAGE)
            error = UsageError(_usage_message(error))
        explain(error)
        code = exit_code_of(error)
        # Whoever reads JSON gets JSON, whatever happens; the line for people is on stderr all the same.
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            print(as_json(error), flush=True)
    sys.exit(code or 0)


def _usage_message(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "splitreel"
    words = _usage_words(error)
    return f"{words}{'' if words.endswith(('.', '?')) else '.'} See {command} --help."


def _usage_words(error: Exception) -> str:
    return str(getattr(error, "format_message", error.__str__)()).replace("Value error, ", "")


def _leave_now(code: int) -> NoReturn:
    """End without waiting for threads: a stage in this process that was told to stop may be in the midst of a step."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
