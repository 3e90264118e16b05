"""The command line. Each command imports what is heavy when it runs, so that `--help` answers at once."""

from splitreel.serve.cli.app import main

__all__ = ["main"]
