"""One adapter's update of one parameter, and the arithmetic of applying some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Elements that are updated at once: 128 MB in float32. The largest projection of the released model has 260 million.
_PIECE = 1 << 25


@dataclass(frozen=True, eq=False)
class Patch:
    """An update of one parameter W at scale s, on W's device.

    `down` (rank, in) and `up` (out, rank): W + s * factor * up @ down. `diff`, like W: W + s * diff.
    `value`, like W: W + s * (value - W), which is `value` itself at scale 1.
    """

    down: Tensor | None = None
    up: Tensor | None = None
    factor: float = 0.0
    diff: Tensor | None = None
    value: Tensor | None = None


Term = tuple[Patch, float]


def updated(weight: Tensor, terms: Sequence[Term]) -> Tensor:
    """The parameter with the updates at their scales: a new tensor, `weight` is not written.

    The sum is made in float32 and rounded once to the parameter's dtype, so it is what the same update applied to the
    weights by hand gives, whether it is made once (fused) or for each use (per request).
    """
    made = torch.empty_like(weight)
    for rows in _pieces(weight):
        exact = torch.float64 if weight.dtype is torch.float64 else torch.float32
        total = weight[rows].to(exact, copy=True)
        for patch, scale in terms:
            if patch.value is not None:
                value = patch.value[rows].to(exact, copy=True)
                total = value if scale == 1.0 else total.add_(value.sub_(total).mul_(scale))
        for patch, scale in terms:
            if patch.down is not None and patch.up is not None:
                total.addmm_(patch.up[rows].to(exact), patch.down.to(exact), alpha=scale * patch.factor)
            if patch.diff is not None:
                total.add_(patch.diff[rows].to(exact, copy=True).mul_(scale))
        made[rows] = total.to(weight.dtype)
    return made


class Update(nn.Module):
    """A parametrization: whoever reads the parameter gets it updated. Nothing but the pieces under way is allocated."""

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__()
        self._terms = tuple(terms)

    def forward(self, weight: Tensor) -> Tensor:
        """The updated parameter, shape and dtype as `weight`."""
        return updated(weight, self._terms)


def _pieces(weight: Tensor) -> Iterator[slice]:
    rows = weight.shape[0]
    step = max(1, _PIECE // max(1, weight.numel() // max(1, rows)))
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))
