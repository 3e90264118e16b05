"""The figures of one request, from its spans. Only durations are used, so the machines' clocks need not agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from splitreel.observe.accounts import PayloadAccount
from splitreel.observe.spans import SpanRecord

STAGES = ("encode", "denoise", "decode")
HOP_PARTS = ("hop.wait", "hop.fetch", "hop.materialize")


@dataclass(frozen=True)
class HopTiming:
    """How a payload came into a stage, or to the driver. Seconds on the receiver's clock.

    `wait`: until the producer has it. `fetch`: into the receiver's store. `materialize`: deserialised, checked and on the
    device. In one process (`cluster.address: local`) nothing is waited for or fetched.
    `transport`: `object_store`, `nixl`, `inline` (with the order itself), or `memory` within one process.
    """

    name: str
    wait: float
    fetch: float
    materialize: float
    payload: PayloadAccount | None
    transport: str = "memory"

    @property
    def receive(self) -> float:
        """Fetch and materialize: what the hand-off cost the receiver, without the wait for the producer."""
        return self.fetch + self.materialize

    @property
    def seconds(self) -> float:
        """All three parts."""
        return self.wait + self.receive

    @property
    def effective_rate(self) -> float | None:
        """Logical bytes per second of fetch: an effective rate of the payload, not the bandwidth of a network."""
        return self.payload.logical_bytes / self.fetch if self.payload and self.fetch > 0 else None


@dataclass(frozen=True)
class StageTiming:
    """Where a stage ran and for how long.

    `seconds` and `spans` (parts of the stage by name) are on that node's monotonic clock. On the driver's: `queue`,
    from the moment that the stage could have been ordered until it was, and `call`, from the order to the answer.
    """

    stage: str
    worker: str
    node: str
    seconds: float
    spans: tuple[tuple[str, float], ...] = ()
    hop: HopTiming | None = None
    queue: float = 0.0
    call: float = 0.0

    @property
    def overhead(self) -> float:
        """What the call took beyond the hop and the stage: order and answer on their way, and attempts that failed."""
        return self.call - self.seconds - (self.hop.seconds if self.hop else 0.0)


@dataclass(frozen=True)
class Timings(Sequence[StageTiming]):
    """The stages of a request in order, the film's hop to the driver, and the time from admission to the end."""

    stages: tuple[StageTiming, ...] = ()
    delivery: HopTiming | None = None
    seconds: float = 0.0

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """The request from end to end, piece after piece: `queue`, `hop`, the stage and `call` (its overhead) for each
        stage, then the film's hop, then what none of them explains.
        """
        found: list[tuple[str, float]] = []
        for item in self.stages:
            found.append((f"queue for {item.stage}", item.queue))
            if item.hop is not None:
                found.extend(_hop_parts(item.hop))
            found.append((item.stage, item.seconds))
            found.append((f"call of {item.stage}", item.overhead))
        if self.delivery is not None:
            found.extend(_hop_parts(self.delivery))
        found.append(("unaccounted", self.seconds - sum(seconds for _, seconds in found)))
        return tuple(found)

    @property
    def unaccounted(self) -> float:
        """Seconds that no span explains: the engine's own work between them."""
        return self.parts[-1][1]

    @property
    def hops(self) -> tuple[HopTiming, ...]:
        """Every hop of the request in order."""
        into = [item.hop for item in self.stages if item.hop is not None]
        return (*into, *([self.delivery] if self.delivery else []))

    @overload
    def __getitem__(self, index: int) -> StageTiming: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[StageTiming, ...]: ...

    def __getitem__(self, index: int | slice) -> StageTiming | tuple[StageTiming, ...]:
        return self.stages[index]

    def __len__(self) -> int:
        return len(self.stages)


def timings_of(spans: Iterable[SpanRecord]) -> Timings:
    """The figures of the request that all `spans` belong to. Of a stage that ran more than once the last run counts;
    what the earlier ones took is in `call` and `queue`.
    """
    known = list(spans)
    stages = []
    for stage in STAGES:
        run = [span for span in known if span.name == stage]
        if not run:
            continue
        last = run[-1]
        inside = [
            span
            for span in known
            if span.stage == stage
            and (span.worker, span.pid) == (last.worker, last.pid)
            and last.start <= span.start
            and span.end <= last.end
            and span.name not in (stage, *HOP_PARTS)
        ]
        before = [span for span in known if span.worker == last.worker and span.pid == last.pid and span.stage == stage]
        stages.append(
            StageTiming(
                stage=stage,
                worker=last.worker,
                node=last.node,
                seconds=last.seconds,
                spans=tuple((span.name, span.seconds) for span in inside),
                hop=_hop([span for span in before if span.end <= last.start]),
                queue=sum(span.seconds for span in known if span.name == "queue" and span.stage == stage),
                call=sum(span.seconds for span in known if span.name == "call" and span.stage == stage),
            )
        )
    whole = next((span.seconds for span in known if span.name == "request"), 0.0)
    return Timings(tuple(stages), _hop([span for span in known if span.stage == "deliver"]), whole)


def _hop(spans: Sequence[SpanRecord]) -> HopTiming | None:
    """The last hop among spans of one receiver."""
    parts = {span.name: span for span in spans if span.name in HOP_PARTS}
    if not parts:
        return None
    last = parts.get("hop.materialize")
    account = last.attributes.get("payload") if last else None
    wait, fetch, materialize = (parts[name].seconds if name in parts else 0.0 for name in HOP_PARTS)
    return HopTiming(
        name=str(last.attributes.get("hop", "")) if last else "",
        wait=wait,
        fetch=fetch,
        materialize=materialize,
        payload=PayloadAccount.from_dict(account) if account else None,
        transport=str(parts["hop.fetch"].attributes.get("transport", "")) if "hop.fetch" in parts else "memory",
    )


def _hop_parts(hop: HopTiming) -> list[tuple[str, float]]:
    return [
        (f"hop.wait {hop.name}", hop.wait),
        (f"hop.fetch {hop.name}", hop.fetch),
        (f"hop.materialize {hop.name}", hop.materialize),
    ]
