"""Marks by folder, one thread for arithmetic, and the media that tests use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Results on a CPU may differ in the last bit between thread counts: compare like with like.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TIERS = ("unit", "contract", "cluster", "e2e")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(root).parts[0]
        if tier in TIERS:
            item.add_marker(getattr(pytest.mark, tier))
        # Two processes, one for each group: a process can be in one Ray cluster only, and the contract tests keep a
        # session open in theirs.
        item.add_marker(pytest.mark.xdist_group("cluster" if tier == "cluster" else "rest"))
