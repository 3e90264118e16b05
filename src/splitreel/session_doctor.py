"""The examination of a set-up, for the model that there is."""

from __future__ import annotations

from pathlib import Path

from splitreel.cluster.doctor.examine import TOTAL_S
from splitreel.cluster.doctor.examine import examine as examine_with
from splitreel.cluster.doctor.finding import Report
from splitreel.config import Config
from splitreel.h3.schema import SCHEMA


def examine(config: Config | None, *, output: Path, unified: bool | None = None, total: float = TOTAL_S) -> Report:
    """Look at the driver, the cluster and the nodes of a config, in about `total` seconds at most; see `cluster.doctor`."""
    return examine_with("splitreel.h3.model:MiniMaxH3", SCHEMA, config, output=output, unified=unified, total=total)
