"""Keeps the libraries' own bars and known warnings off the terminal while components load; ours take their place."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block no progress bars; the libraries' settings are restored. Not for two threads at once."""
    # Here and not above: a role of a model without them (and every --help) is up seconds sooner.
    import diffusers.utils.logging as diffusers_logging
    import transformers.utils.logging as transformers_logging

    libraries = (diffusers_logging, transformers_logging)
    shown = [library.is_progress_bar_enabled() for library in libraries]
    for library in libraries:
        library.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # diffusers 0.42's audio VAE is built on torch's old weight_norm.
            warnings.filterwarnings("ignore", message=r"`torch\.nn\.utils\.weight_norm` is deprecated")
            yield
    finally:
        for library, was_shown in zip(libraries, shown, strict=True):
            if was_shown:
                library.enable_progress_bar()
