"""Exit codes, in one place."""

from __future__ import annotations

OK = 0
REQUEST_FAILED = 1
USAGE = 2
DEPLOYMENT = 3

_SIGNALS = "130 interrupted (Ctrl-C), 143 terminated"
EXIT_CODES = (
    "Exit codes: 0 all films were made; 1 a request failed; 2 wrong usage, config or request, refused before any work; "
    f"3 the cluster or the checkpoint failed; {_SIGNALS}."
)
# Of commands that make no films.
FILE_CODES = (
    "Exit codes: 0 done; 2 wrong usage, or a file that cannot be read, used or written: nothing is changed then; "
    f"{_SIGNALS}."
)
SERVE_CODES = (
    "Exit codes: 0 stopped in order, as Ctrl-C and SIGTERM ask; 2 wrong usage or config, refused before anything loads; 3 the "
    "cluster or the checkpoint failed."
)
