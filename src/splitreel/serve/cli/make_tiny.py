"""`splitreel make-tiny`: a checkpoint of random weights to try and test with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from splitreel.serve.cli.codes import FILE_CODES
from splitreel.serve.cli.failures import Refused
from splitreel.serve.cli.logs import Verbose, set_verbosity
from splitreel.words import plainly

EPILOG = f"""Examples:

splitreel make-tiny models/tiny

splitreel make-tiny models/other --geometry other --size small --dtype bfloat16

splitreel make-tiny models/fast --vsa-gates

{FILE_CODES}"""


def make_tiny(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it: a new or empty folder.")],
    geometry: Annotated[
        Literal["released", "other"],
        typer.Option(help="The released model's ratios, channels and rates, or others (to find what is hard-wired)."),
    ] = "released",
    size: Annotated[
        Literal["tiny", "small", "medium"], typer.Option(help="How heavy: a CPU runs tiny in seconds.")
    ] = "tiny",
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Of the weights on disk.")] = "float32",
    seed: Annotated[int, typer.Option(min=0, help="Of the random weights.")] = 0,
    vsa_gates: Annotated[
        bool, typer.Option("--vsa-gates", help="With the gates of sparse attention that FastH3's checkpoints have.")
    ] = False,
    verbose: Verbose = 0,
) -> None:
    """Write a checkpoint in the released layout with random weights: its films are noise, made in seconds on a CPU.

    A folder that holds the same checkpoint already is left as it is; one that holds anything else is refused.
    """
    set_verbosity(verbose)
    from splitreel.session import make_tiny as make

    try:
        print(make(directory, geometry=geometry, size=size, dtype=dtype, seed=seed, vsa_gates=vsa_gates))
    except OSError as error:
        raise Refused(
            f"DIR: expected a place where folders can be written, found {plainly(error)}. Choose another."
        ) from error
