"""`splitreel generate`: films into files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitreel.serve.cli.codes import EXIT_CODES
from splitreel.serve.cli.logs import Verbose, set_verbosity

EPILOG = f"""Examples:

splitreel generate --config examples/demo.yaml --prompt "An alpine lake at sunrise." --steps 5

splitreel generate --prompt "The fog lifts." --image first.png --last-image last.png --output fog.mp4

splitreel generate --prompt "She sings." --reference image:her.png --reference audio:voice.wav

splitreel generate --prompts prompts.txt --seed 100 --output outputs/lake.mp4    writes outputs/lake-0001.mp4 and on

splitreel generate --request request.yaml --seed 8

splitreel generate --prompt "A lake." --lora turbo.safetensors=0.8 --lora style.safetensors --steps 5

splitreel generate --prompt "A storm." --set engine.max_in_flight=1 --json

{EXIT_CODES}"""

_WHAT, _INPUTS, _SIZE = "What to make", "Pictures, clips and sounds", "Length, size and sampling"


def generate(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="The config. Default: splitreel.yaml in this directory."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", show_default=False, help="Change a setting of the config; repeatable."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", show_default=False, help="What to show.", rich_help_panel=_WHAT)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Many films: a prompt per line (# starts a comment), or JSON lines with request fields, which override "
            "the options.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="One film: a YAML or JSON file of request fields, which the options override.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH.mp4",
            show_default=False,
            help="The file to write; with --prompts each film gets a number. Default: outputs/film-DATE-TIME.mp4.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", metavar="", help="Replace the output if it exists.", rich_help_panel=_WHAT)
    ] = False,
    image: Annotated[
        Path | None,
        typer.Option(metavar="PATH", show_default=False, help="The first frame (fl2va).", rich_help_panel=_INPUTS),
    ] = None,
    last_image: Annotated[
        Path | None,
        typer.Option(metavar="PATH", show_default=False, help="The last frame (fl2va).", rich_help_panel=_INPUTS),
    ] = None,
    references: Annotated[
        list[str] | None,
        typer.Option(
            "--reference",
            metavar="KIND:PATH",
            show_default=False,
            help="image:PATH, video:PATH or audio:PATH (ref2va); repeatable, in order.",
            rich_help_panel=_INPUTS,
        ),
    ] = None,
    num_frames: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default=False, help="Rounded up to what the model can make.", rich_help_panel=_SIZE
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            show_default=False,
            help="Instead of --num-frames. Default: the shortest.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    height: Annotated[
        int | None,
        typer.Option(metavar="H", show_default=False, help="In pixels, together with --width.", rich_help_panel=_SIZE),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            metavar="W",
            show_default=False,
            help="Default for both: the first picture's shape, else 16:9.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help="Sigma points: N make N - 1 transformer calls. Default: the config's model.preset, else 50.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help="With --prompts the first film gets N, the next N + 1. Default: drawn and reported.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(
            "--lora",
            metavar="FILE[=SCALE]",
            show_default=False,
            help="A LoRA: a safetensors file, a folder, a hub id, or a name of the config's lora section; repeatable. "
            "Requests with a lora field of their own keep it.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            metavar="",
            help="One JSON object per film on stdout, and nothing else there; one with error if all is refused.",
        ),
    ] = False,
    verbose: Verbose = 0,
) -> None:
    """Make one film, or many from a file of prompts, and write them as mp4 with sound.

    Everything is checked before any work starts: config, output, pictures, and every request against the model's rules.
    """
    set_verbosity(verbose)
    from splitreel.serve.cli.adapters import check_names, read_adapters
    from splitreel.serve.cli.failures import Refused
    from splitreel.serve.cli.films import make_films
    from splitreel.serve.cli.inputs import parse_reference, place_orders, read_config, read_request, without_rivals

    sources = {"--prompt": prompt, "--prompts": prompts, "--request": request}
    named = [name for name, value in sources.items() if value is not None]
    if not named or ("--prompts" in named and len(named) > 1):
        raise Refused(
            f"{', '.join(sources)}: expected what to show, once, found {' and '.join(named) or 'none of them'}. Say it with "
            "--prompt TEXT, alone or over a --request FILE, or make many films with --prompts FILE."
        )
    settings = read_config(config, overrides or [])
    settings, uses = read_adapters(lora or (), settings)
    given = {
        "prompt": prompt,
        "image": image,
        "last_image": last_image,
        "references": tuple(parse_reference(text) for text in references or ()) or None,
        "num_frames": num_frames,
        "seconds": seconds,
        "height": height,
        "width": width,
        "steps": steps,
        "seed": seed,
        "lora": uses or None,
    }
    flags = {name: value for name, value in given.items() if value is not None}
    if request is not None:
        own = read_request(request)
        flags = {**without_rivals(own, flags), **flags}
        if "prompt" not in flags:
            raise Refused(f"--request: {request}: prompt: expected a text, found none. Add it, or give --prompt TEXT.")
    orders = place_orders(flags, prompts=prompts, output=output, overwrite=overwrite)
    check_names(orders, settings)
    raise typer.Exit(make_films(settings, orders, as_json=as_json))
