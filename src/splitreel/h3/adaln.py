"""AdaLN as tables: what a transformer's modulation projections give for the steps of a schedule, without holding them.

The projections (`adaln_proj` in each block, `norm_out`) are 39 % of the transformer, and all they read is the timestep
embedding: their output is a small table per step. The tables are made by streaming the projections from the files, one
at a time, and multiplying as diffusers does, with exactly the `timestep` tensor that the step passes: a matrix product
may differ in the last bit between numbers of rows, so a table is good for that tensor alone. Then the result is the same,
bit for bit.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from splitreel.config import MemorySpec
from splitreel.errors import MissingComponent
from splitreel.h3.residency import is_adaln
from splitreel.observe.logs import get_logger
from splitreel.roles.checkpoint import Checkpoint
from splitreel.roles.weights import Reader, StoredTensor, reading, stored_tensors

logger = get_logger(__name__)

# diffusers' MINIMAX_H3_MODALITY_NUM: video, text, audio.
MODALITIES = 3
_OUT = "norm_out"


@dataclass(frozen=True)
class Step:
    """What one step modulates: its `timestep` tensor (n,), and the rows of (timestep, modality) that its sequence uses."""

    timestep: Tensor
    rows: tuple[int, ...]

    @classmethod
    def of(cls, timestep: Tensor, timestep_indices: Tensor, token_tags: Tensor) -> Step:
        """From what diffusers' loop hands to the transformer."""
        rows = timestep_indices * MODALITIES + token_tags.to(timestep_indices.device)
        return cls(timestep, tuple(torch.bincount(rows).nonzero().flatten().tolist()))

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal exactly for equal tables."""
        return tuple(self.timestep.tolist()), self.rows


@dataclass(frozen=True)
class Table:
    """One step's projections: `blocks` (blocks, used rows, 6 * hidden), `out` (n, 2 * hidden), and for each of the
    n * MODALITIES rows that a projection gives, which of the used rows it is (0 where nobody looks).
    """

    blocks: Tensor
    out: Tensor
    places: Tensor


class Tables:
    """The tables of one transformer. Those of `expected` numbers of steps are made at load and stay; of others at most
    `keep` schedules are kept, and the least recently used goes first. Not for two threads at once.
    """

    def __init__(
        self, transformer: nn.Module, checkpoint: Checkpoint, component: str, dtype: torch.dtype, memory: MemorySpec
    ) -> None:
        """Takes the projections of `transformer`, which is being built, out of it."""
        self.component = component
        self.expected = memory.adaln_steps
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._keep = memory.adaln_schedules
        self._stay: set[tuple[Any, ...]] = set()
        self._schedules: OrderedDict[tuple[Any, ...], list[Table]] = OrderedDict()
        # The running request's tables by the identity of the step's tensor; the tensors are kept, so that it is theirs alone.
        self._running: dict[int, tuple[Tensor, Table]] = {}
        self._current: Table | None = None
        self._stored = {item.name: item for item in stored_tensors(checkpoint, component) if is_adaln(item.name)}
        self._stamps = {item.path: _stamp(item) for item in self._stored.values()}
        self._transformer = [transformer]  # in a list: a module's attribute would make it part of itself
        self._blocks = len(transformer.transformer_blocks)  # type: ignore[arg-type]
        hidden = transformer.config.hidden_size  # type: ignore[union-attr]
        self._hidden = int(hidden)  # type: ignore[arg-type]
        for index, block in enumerate(transformer.transformer_blocks):  # type: ignore[arg-type]
            block.adaln_proj.linear = _Lookup(self._of_block, index, dtype)
        transformer.norm_out.linear = _Lookup(self._of_out, 0, dtype)  # type: ignore[union-attr]
        transformer.register_forward_pre_hook(self._before_forward, with_kwargs=True)

    @property
    def num_bytes(self) -> int:
        """What the kept tables take."""
        kept = [table for tables in self._schedules.values() for table in tables]
        return sum(table.blocks.nbytes + table.out.nbytes + table.places.nbytes for table in kept)

    @property
    def schedules(self) -> tuple[int, ...]:
        """Transformer calls of each kept schedule, the most recently used last."""
        return tuple(len(tables) for tables in self._schedules.values())

    def use(
        self,
        steps: Sequence[Step],
        span: Callable[..., AbstractContextManager[dict[str, Any]]] | None = None,
        check: Callable[[], None] = lambda: None,
        *,
        expected: bool = False,
    ) -> None:
        """Be ready for a request of these steps: with the tables that are kept, or after making them.

        Making reads all projections once (`load.adaln`: a span, a line in the log). `check` is called between two and may
        raise. Raises MissingComponent when the checkpoint is gone or another.
        """
        key = tuple(step.key for step in steps)
        tables = self._schedules.get(key)
        if tables is None:
            began = time.monotonic()
            with span("load.adaln", component=self.component) if span else nullcontext({}) as attributes:
                tables = self._make(steps, check)
                attributes["steps"] = len(steps)
                attributes["bytes"] = sum(table.blocks.nbytes + table.out.nbytes for table in tables)
            self._schedules[key] = tables
            if expected:
                self._stay.add(key)
            others = [kept for kept in self._schedules if kept not in self._stay]
            for oldest in others[: max(0, len(others) - self._keep)]:
                del self._schedules[oldest]
            logger.info(
                "%s: made AdaLN tables for %d steps, %d bytes, in %.2f s",
                self.component,
                len(steps),
                attributes["bytes"],
                time.monotonic() - began,
            )
        self._schedules.move_to_end(key)
        self._running = {id(step.timestep): (step.timestep, table) for step, table in zip(steps, tables, strict=True)}

    def _make(self, steps: Sequence[Step], check: Callable[[], None]) -> list[Table]:
        transformer: Any = self._transformer[0]
        device = next(transformer.time_embedder.parameters()).device
        self._require_same_files()
        with torch.inference_mode(), reading(self.component, device) as reader:
            embedded = [self._embedded(transformer, step.timestep.to(device)) for step in steps]
            tables = [self._empty(step, device) for step in steps]
            rows = [torch.tensor(step.rows, device=device) for step in steps]
            for name, index in self._in_file_order():
                check()
                weight, bias = (self._read(reader, f"{name}.linear.{part}") for part in ("weight", "bias"))
                for table, used, time_embedding in zip(tables, rows, embedded, strict=True):
                    projected = nn.functional.linear(time_embedding, weight, bias)
                    if name == _OUT:
                        table.out.copy_(projected)
                    else:
                        table.blocks[index] = projected.view(-1, 6 * self._hidden).index_select(0, used)
                del weight, bias
        return tables

    def _embedded(self, transformer: Any, timestep: Tensor) -> Tensor:
        """The projections' input, as in the transformer's forward and diffusers' AdaLN modules."""
        embedder = transformer.time_embedder
        embedding = embedder(transformer.time_proj(timestep).to(next(embedder.parameters()).dtype))
        activated: Tensor = nn.functional.silu(embedding).to(self._dtype)
        return activated

    def _empty(self, step: Step, device: torch.device) -> Table:
        count, used = step.timestep.numel(), len(step.rows)
        places = torch.zeros(count * MODALITIES, dtype=torch.long)
        places[list(step.rows)] = torch.arange(used)
        return Table(
            torch.empty(self._blocks, used, 6 * self._hidden, dtype=self._dtype, device=device),
            torch.empty(count, 2 * self._hidden, dtype=self._dtype, device=device),
            places.to(device),
        )

    def _in_file_order(self) -> list[tuple[str, int]]:
        names = [(f"transformer_blocks.{index}.adaln_proj", index) for index in range(self._blocks)]
        weights = {name: self._stored[f"{name}.linear.weight"] for name, _ in [*names, (_OUT, 0)]}
        return sorted([*names, (_OUT, 0)], key=lambda item: (weights[item[0]].path, weights[item[0]].begin))

    def _read(self, reader: Reader, name: str) -> Tensor:
        try:
            return reader.read(self._stored[name], self._dtype)
        except OSError as error:
            raise self._gone(str(error)) from error

    def _require_same_files(self) -> None:
        for item in {stored.path: stored for stored in self._stored.values()}.values():
            try:
                stamp = _stamp(item)
            except OSError as error:
                raise self._gone(str(error)) from error
            if stamp != self._stamps[item.path]:
                raise self._gone(f"{item.path} changed since the role loaded")

    def _gone(self, found: str) -> MissingComponent:
        kept = ", ".join(str(calls + 1) for calls in self.schedules) or "none"
        return MissingComponent(
            f"{self.component}: expected the files that were loaded, to make AdaLN tables for a schedule that is not kept, "
            f"found: {found}. Put them back and restart, ask for a number of steps that is kept ({kept}), or set "
            "memory.adaln: projections.",
            component=self.component,
            file=str(self._checkpoint.root / self.component),
        )

    def _before_forward(self, module: nn.Module, args: Any, inputs: dict[str, Any]) -> None:
        timestep = inputs["timestep"]
        if id(timestep) not in self._running:
            self.use([Step.of(timestep, inputs["timestep_indices"], inputs["token_tags"])])
        self._current = self._running[id(timestep)][1]

    def _of_block(self, index: int) -> Tensor:
        assert self._current is not None, "the transformer's forward sets it"
        full = self._current.blocks[index].index_select(0, self._current.places)
        return full.view(-1, MODALITIES * 6 * self._hidden)

    def _of_out(self, index: int) -> Tensor:
        assert self._current is not None, "the transformer's forward sets it"
        return self._current.out


class _Lookup(nn.Module):
    """Stands where a projection stood; whatever comes in, the running step's table comes out."""

    def __init__(self, table: Callable[[int], Tensor], index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._table = table
        self._index = index
        # diffusers asks a projection's module for its dtype.
        self.register_buffer("holds", torch.zeros(0, dtype=dtype), persistent=False)

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, embedding: Tensor) -> Tensor:
        """(n, time_embed_dim) → (n, what the projection gives); never part of a compiled block, which would keep the table."""
        return self._table(self._index)


def tables_of(transformer: Any) -> Tables | None:
    """The tables of a transformer that was loaded with them."""
    tables: Tables | None = getattr(transformer, "adaln_tables", None)
    return tables


def _stamp(stored: StoredTensor) -> tuple[int, int]:
    status = stored.path.stat()
    return status.st_size, status.st_mtime_ns
