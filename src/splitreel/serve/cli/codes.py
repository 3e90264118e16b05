"""Exit codes, in one place."""

from __future__ import annotations

OK = 0
REQUEST_FAILED = 1
USAGE = 2
DEPLOYMENT = 3

EXIT_CODES = (
    "Exit codes: 0 all films were made; 1 a request failed; 2 wrong usage, config or request, refused before any work; "
    "3 the cluster or the checkpoint failed; 130 interrupted (Ctrl-C), 143 terminated."
)
