"""A role's device: what tracing may do on it, what it is, and whose memory it uses."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Gpu:
    """A CUDA device as torch sees it. Bytes are None where the driver does not tell ("not supported" on some GB10).

    `compiled_for`: the architectures that this torch has kernels for, such as sm_90.
    """

    name: str
    capability: tuple[int, int]
    compiled_for: tuple[str, ...]
    free_bytes: int | None
    total_bytes: int | None
    unified: bool

    @property
    def has_kernels(self) -> bool:
        """Whether this torch runs here: kernels of the same major version, not newer than the device, or PTX of any older."""
        major, minor = self.capability
        for name in self.compiled_for:
            kind, _, digits = name.partition("_")
            digits = digits.rstrip("abcdefghijklmnopqrstuvwxyz")
            if not digits.isdecimal():
                continue
            built = int(digits[:-1]), int(digits[-1])
            if (kind == "sm" and built[0] == major and built[1] <= minor) or (
                kind == "compute" and built <= self.capability
            ):
                return True
        return not self.compiled_for


def look_at_gpu(device: str) -> Gpu | None:
    """The device, or None where this process has no such one."""
    if not torch.cuda.is_available() or (torch.device(device).index or 0) >= torch.cuda.device_count():
        return None
    properties = torch.cuda.get_device_properties(torch.device(device))
    free: int | None = None
    total: int | None = None
    with contextlib.suppress(RuntimeError):
        free, total = torch.cuda.mem_get_info(torch.device(device))
    # A device that does not say how much memory it has is one of those that use the machine's.
    return Gpu(
        name=properties.name,
        capability=(properties.major, properties.minor),
        compiled_for=tuple(torch.cuda.get_arch_list()),
        free_bytes=free,
        total_bytes=total,
        unified=bool(getattr(properties, "is_integrated", False)) or total is None,
    )


def memory_id(device: str) -> str:
    """Whose memory the device uses: the same text wherever it is the same memory, whatever a process calls the device.

    A worker that Ray gave one of several cards sees it as `cuda`, and so does the worker beside it with another card.
    """
    if device.startswith("cuda"):
        gpu = look_at_gpu(device)
        if gpu is not None and not gpu.unified:
            return f"GPU {torch.cuda.get_device_properties(torch.device(device)).uuid}"
    host = platform.node()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no Linux
        return host
    return f"{host} {boot}"  # host names alone may be equal: "localhost"


def shares_memory() -> bool:
    """Whether the first CUDA device of this process shares the machine's memory."""
    gpu = look_at_gpu("cuda")
    return gpu is not None and gpu.unified
