"""Shares of a stage's work: whole, in order, even."""

from __future__ import annotations

import pytest

from splitreel.share import Share


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("items", range(1, 30))
def test_shares_are_whole_in_order_and_even(items: int, count: int) -> None:
    shares = [Share(index, count).of(items) for index in range(count)]
    assert [item for share in shares for item in share] == list(range(items))
    assert shares[0], "the one that joins has the first"
    work = [len(share) + (index > 0) for index, share in enumerate(shares) if share]
    if items >= 2 * count:
        assert max(work) - min(work) <= 1
        assert work[0] == min(work)
