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


# Of the cluster tests those whose Ray is in other processes only.
OUTSIDE = tuple(f"tests/cluster/test_{name}.py" for name in ("guide", "netns", "cluster_commands_real", "plan_cluster"))


class TierScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """One process gets all of `contract`, the other the files of `cluster`; then each takes whole files of the rest.

    A process can be in one Ray cluster only, and the contract tests keep a session open in theirs. (xdist's own groups do
    not work with pytest 9.2, which no longer takes the node id that they are written into.)
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "tests/contract" if file.startswith("tests/contract/") else file

    def _assign_work_unit(self, node: Any) -> None:
        """What takes minutes goes first, of what this process may run."""
        queue = list(self.workqueue)
        inside = [scope for scope in queue if scope.startswith("tests/cluster/") and scope not in OUTSIDE]
        outside = [scope for scope in queue if scope in OUTSIDE]
        rest = [scope for scope in queue if not scope.startswith(("tests/cluster/", "tests/contract"))]
        if "tests/contract" in self.assigned_work.get(node, ()):
            choices = [*outside, *rest]
        else:
            choices = [*(scope for scope in queue if scope == "tests/contract"), *inside, *outside, *rest]
        if not choices:  # only files for the other process are left
            node.shutdown()
            return
        self.workqueue.move_to_end(choices[0], last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TierScheduling:
    return TierScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(root).parts[0]
        if tier in TIERS:
            item.add_marker(getattr(pytest.mark, tier))
