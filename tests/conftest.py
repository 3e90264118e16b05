"""Marks by folder, one thread for arithmetic, and the media that tests use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Results on a CPU may differ in the last bit between thread counts: compare like with like.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TIERS = ("unit", "contract", "cluster", "e2e")


class TierScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """One process gets all of `contract`, the others the files of `cluster`; then each takes whole files of the rest.

    A process can be in one Ray cluster only, and the contract tests keep a session open in theirs. (xdist's own groups do
    not work with pytest 9.2, which no longer takes the node id that they are written into.)
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "tests/contract" if file.startswith("tests/contract/") else file

    def _assign_work_unit(self, node: Any) -> None:
        """The longest of what this process may run: `contract` and the cluster's files take minutes, and go first."""
        in_a_session = "tests/contract" in self.assigned_work.get(node, ())
        tiers = (
            ("tests/contract", "tests/e2e/", "tests/unit/")
            if in_a_session
            else ("tests/contract", "tests/cluster/", "")
        )
        scope = next((scope for tier in tiers for scope in self.workqueue if scope.startswith(tier)), None)
        if scope is None:  # only the cluster's files are left, for the others
            node.shutdown()
            return
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TierScheduling:
    return TierScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(root).parts[0]
        if tier in TIERS:
            item.add_marker(getattr(pytest.mark, tier))
