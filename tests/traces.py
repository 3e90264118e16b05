"""Traces made by hand: spans of two workers on machines whose clocks have nothing to do with each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from splitreel.observe.spans import SpanRecord, Status

# Where each process's monotonic clock stood at the same moment, and how wrong each wall clock is.
CLOCKS = {"driver": 1000.0, "encoder_decoder": 7.5, "dit": 90000.0}
SKEW = {"driver": 0.0, "encoder_decoder": 3600.0, "dit": -1800.0}
CALL = 0.01  # on the way to a worker, and back


@dataclass
class TraceMaker:
    """Adds spans at true moments, in seconds from a common zero; each is recorded on its own process's clock."""

    spans: list[SpanRecord] = field(default_factory=list)

    def add(
        self,
        worker: str,
        name: str,
        request: str,
        stage: str,
        start: float,
        end: float,
        status: Status = "ok",
        error: str = "",
        **attributes: object,
    ) -> None:
        self.spans.append(
            SpanRecord(
                name=name,
                trace_id=f"{sum(request.encode()):032x}",
                span_id=f"{len(self.spans) + 1:016x}",
                parent_id=None,
                request_id=request,
                stage=stage,
                worker=worker,
                role=worker,
                node=f"node of {worker}",
                pid=len(worker),
                start=start + CLOCKS[worker],
                end=end + CLOCKS[worker],
                anchor=1.7e9 - CLOCKS[worker] + SKEW[worker],
                status=status,
                error=error,
                attributes=attributes,
            )
        )

    def stage(self, request: str, stage: str, start: float, end: float, *, fetch: float = 0.0, parts: int = 0) -> None:
        """A call from `start` to `end`, with the hop and the stage inside."""
        worker = "dit" if stage == "denoise" else "encoder_decoder"
        hop = {"encode": "driver-to-encode", "denoise": "encode-to-denoise", "decode": "denoise-to-decode"}[stage]
        fields = [{"name": "data", "dims": [250, 1000], "dtype": "float32", "device": "cpu", "num_bytes": 1_000_000}]
        payload = {"kind": "k", "fields": fields, "wire_bytes": 1_000_400, "logical_bytes": 1_000_000}
        began, ended = start + CALL, end - CALL
        self.add(worker, "hop.wait", request, stage, began, began, hop=hop)
        self.add(worker, "hop.fetch", request, stage, began, began + fetch, hop=hop)
        self.add(worker, "hop.materialize", request, stage, began + fetch, began + fetch, hop=hop, payload=payload)
        begin = began + fetch
        for part in range(parts):
            length = (ended - begin) / parts
            self.add(worker, f"{stage}.step", request, stage, begin + part * length, begin + (part + 1) * length)
        self.add(worker, stage, request, stage, begin, ended)
        self.add("driver", "call", request, stage, start, end, to=worker)


def two_requests() -> list[SpanRecord]:
    """r2's denoise waits for r1's, its decode is the end: 1 + 4 + 4 + 1 s on the critical path."""
    maker = TraceMaker()
    for request, encode, denoise, decode in (("r1", 0.0, 1.0, 5.0), ("r2", 1.0, 5.0, 9.0)):
        maker.add("driver", "queue", request, "encode", 0.0, encode)
        maker.stage(request, "encode", encode, encode + 1.0)
        maker.add("driver", "queue", request, "denoise", encode + 1.0, denoise)
        maker.stage(request, "denoise", denoise, denoise + 4.0, fetch=0.5, parts=4)
        maker.stage(request, "decode", decode, decode + 1.0)
        maker.add("driver", "request", request, "", 0.0, decode + 1.0)
    return maker.spans


def failed_and_cancelled(at: float = 0.0) -> list[SpanRecord]:
    """One request whose second step failed, one that was cancelled while it waited; from the moment `at`."""
    maker = TraceMaker()
    maker.stage("bad", "encode", at + 0.0, at + 1.0)
    why = "ValueError: the film tore"
    maker.add("dit", "denoise.step", "bad", "denoise", at + 1.1, at + 1.5, index=1)
    maker.add("dit", "denoise.step", "bad", "denoise", at + 1.5, at + 1.8, "error", why, index=2)
    maker.add("dit", "denoise", "bad", "denoise", at + 1.1, at + 1.8, "error", why)
    maker.add("driver", "call", "bad", "denoise", at + 1.0, at + 1.9, "error", f"StageError: {why}", to="dit")
    maker.add("driver", "request", "bad", "", at + 0.0, at + 1.9, "error", f"StageError: {why}")
    maker.add(
        "driver", "queue", "gone", "", at + 0.0, at + 0.5, "cancelled", "RequestCancelled: cancelled before it started"
    )
    maker.add(
        "driver",
        "request",
        "gone",
        "",
        at + 0.0,
        at + 0.5,
        "cancelled",
        "RequestCancelled: cancelled before it started",
    )
    return maker.spans
