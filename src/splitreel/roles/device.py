"""What tracing may do on a role's device: wait until its work is done, and mark ranges for NVIDIA's profilers."""

from __future__ import annotations

import torch

from splitreel.config import RoleSpec
from splitreel.observe.spans import Device


def trace_device(spec: RoleSpec) -> Device:
    """The hooks that `trace.sync` and `trace.nvtx` ask for; none on a CPU, where work is done when a call returns."""
    if not spec.device.startswith("cuda") or not torch.cuda.is_available():
        return Device()
    device = torch.device(spec.device)
    return Device(
        synchronise=(lambda: torch.cuda.synchronize(device)) if spec.trace_sync else None,
        mark=torch.cuda.nvtx.range if spec.trace_nvtx else None,
    )
