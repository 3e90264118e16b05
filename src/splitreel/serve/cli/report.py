"""What was really made, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

from splitreel.observe.timings import HopTiming, StageTiming
from splitreel.request import GenerateResult
from splitreel.serve.cli.failures import message_of
from splitreel.serve.cli.inputs import Order
from splitreel.words import counted


def film_text(order: Order, result: GenerateResult) -> str:
    """A film's facts in a few lines, the file first."""
    made = result.effective
    lines = [
        f"{order.target}  {_size(order.target.stat().st_size)}",
        f"  {made.num_frames} frames at {made.fps:g} fps = {made.seconds:.3f} s, {made.width} wide, {made.height} high, "
        f"stereo at {made.sample_rate / 1000:g} kHz",
        f"  {made.workflow}, {made.steps} sigma points, {counted(made.transformer_calls, 'transformer call')}"
        f"{f' ({made.cached_steps} from the cache)' if made.cached_steps else ''}, seed {made.seed}",
        *([f"  lora {', '.join(f'{use.name} at {use.scale:g}' for use in made.lora)}"] if made.lora else []),
        f"  took {duration(result.seconds)} from the start of its encode",
        *(f"    {_stage(timing)}" for timing in result.timings),
        *(f"  note: {warning}" for warning in made.warnings),
    ]
    return "\n".join(lines)


def film_json(order: Order, result: GenerateResult) -> str:
    """A film's facts as one line of JSON."""
    made = result.effective
    return json.dumps(
        {
            **_identity(order),
            "file": str(order.target),
            "bytes": order.target.stat().st_size,
            "workflow": made.workflow,
            "num_frames": made.num_frames,
            "fps": made.fps,
            "seconds": made.seconds,
            "width": made.width,
            "height": made.height,
            "sample_rate": made.sample_rate,
            "steps": made.steps,
            "transformer_calls": made.transformer_calls,
            "cached_steps": made.cached_steps,
            "sparse_attention_calls": made.sparse_attention_calls,
            "dense_attention_calls": made.dense_attention_calls,
            "seed": made.seed,
            "lora": [{"name": use.name, "scale": use.scale} for use in made.lora],
            "warnings": list(made.warnings),
            "took": round(result.seconds, 3),
            "stages": [
                {
                    "stage": timing.stage,
                    "worker": timing.worker,
                    "node": timing.node,
                    "seconds": round(timing.seconds, 6),
                    "queue": round(timing.queue, 6),
                    "call": round(timing.call, 6),
                    "spans": [[name, round(seconds, 6)] for name, seconds in timing.spans],
                }
                for timing in result.timings
            ],
            "hops": [_hop_json(hop) for hop in result.timings.hops],
            "unaccounted": round(result.timings.unaccounted, 6),
        }
    )


def failure_json(order: Order, error: Exception) -> str:
    """A failed request as one line of JSON."""
    return json.dumps(
        {
            **_identity(order),
            "seed": order.request.seed,
            "error": {"type": type(error).__name__, "message": message_of(error)},
        }
    )


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _identity(order: Order) -> dict[str, Any]:
    return {"request_id": order.request.request_id, "prompt": order.request.prompt}


def _stage(timing: StageTiming) -> str:
    # Steps, chunks and whatever took less than a millisecond are in the JSON.
    parts = [("received in", timing.hop.receive if timing.hop else 0.0)]
    parts += [item for item in timing.spans if not item[0].startswith(f"{timing.stage}.")]
    spans = "".join(f", {name} {seconds:.3f} s" for name, seconds in parts if seconds >= 0.001)
    return f"{timing.stage} {duration(timing.seconds)} ({timing.worker} on {timing.node}{spans})"


def _hop_json(hop: HopTiming) -> dict[str, Any]:
    return {
        "hop": hop.name,
        "transport": hop.transport,
        "wait": round(hop.wait, 6),
        "fetch": round(hop.fetch, 6),
        "materialize": round(hop.materialize, 6),
        "payload": hop.payload.to_dict() if hop.payload else None,
        "effective_bytes_per_second": round(hop.effective_rate) if hop.effective_rate else None,
    }


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.0f} kB"
