"""A share of one stage's work, where several workers take part in one run of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Share `index` of `count`. Number 0 is the run itself: it joins the parts, and does the work of one that is missing.

    `key`: what a part is called when it is to be stopped; no other run has the same.
    """

    index: int
    count: int
    key: str = ""

    def of(self, items: int) -> range:
        """The items of this share, where every share but the first has to do the item before its own once more.

        Shares are as even as they can be, the first no larger than the others; one may be empty.
        """
        work = items + self.count - 1
        edges = [0, *(min(items, work * index // self.count - index + 1) for index in range(1, self.count)), items]
        return range(edges[self.index], edges[self.index + 1])
