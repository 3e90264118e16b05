"""Opening what jobs are kept in, as the config has it. Needs neither torch nor the model."""

from __future__ import annotations

from pathlib import Path

from splitreel.config import ServeConfig
from splitreel.serve.jobs.folder import JobFolder
from splitreel.serve.jobs.store import JobStore, resolve_url


def open_ledger(settings: ServeConfig) -> tuple[JobFolder, JobStore]:
    """The folder and the database, each made for the other. Raises ConfigError."""
    root = Path(settings.folder).expanduser().absolute()
    folder = JobFolder(root)
    store = JobStore(resolve_url(settings.database, root))
    try:
        folder.belong_to(store.mark, store.unknown)
    except BaseException:
        store.close()
        raise
    return folder, store
