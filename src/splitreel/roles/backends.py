"""diffusers' attention backends: does one import and compute right on this device, and which is the best that does.

diffusers has no public way to give one model a backend: `set_attention_backend` and the `attention_backend` context also
set the default of the whole process, which other sessions share. What is used of its insides is named here and nowhere
else, and pinned by a test.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from splitreel.errors import VersionMismatch
from splitreel.roles.quiet import quiet

# The package whose import diffusers tries for a backend, and whose error it keeps to itself.
_PACKAGES = {
    "flash": "flash_attn",
    "flash_varlen": "flash_attn",
    "flash_3": "flash_attn_interface",
    "flash_varlen_3": "flash_attn_interface",
    "sage": "sageattention",
    "xformers": "xformers.ops",
    "native_npu": "torch_npu",
    "native_xla": "torch_xla",
}

# What to install for one, as diffusers 0.42 requires it.
_INSTALL = {
    "flash_attn": "pip install 'flash-attn>=2.6.3' --no-build-isolation",
    "flash_attn_interface": "build FlashAttention 3 from its source (github.com/Dao-AILab/flash-attention, folder hopper)",
    "sageattention": "build SageAttention 2.1.1 or newer from its source (github.com/thu-ml/SageAttention)",
    "xformers.ops": "pip install 'xformers>=0.0.29'",
    "torch_npu": "pip install torch_npu",
    "torch_xla": "pip install 'torch_xla>=2.2'",
    "kernels": "pip install -U 'kernels>=0.12'",
}
_INSTALL_FLASH_4 = "pip install -U 'kernels>=0.12.3'"
_OTHERS = "or ask for another: auto takes the best that runs, native always does."

# How far from native a backend's output may be, as a ratio of norms over random inputs: a wrong kernel gives about 1,
# bfloat16 rounding 0.004, 8-bit quantisation (sage) 0.02 to 0.05.
_TOLERANCE = 0.1
_PROBE_ROWS = 128
_PROBE_HEADS = 4


class HubKernelRefused(PermissionError):
    """The backend would run code from the hub, which was not allowed."""


@dataclass(frozen=True)
class AttentionCase:
    """What a backend has to compute: where, in which dtype, with heads of which size."""

    device: str
    dtype: torch.dtype
    head_size: int

    def __str__(self) -> str:
        return f"{self.device}, {str(self.dtype).removeprefix('torch.')}, head size {self.head_size}"


def diffusers_backend(name: str) -> Any:
    """diffusers' own constant for one of `ATTENTION_BACKENDS`."""
    backends = _dispatch().AttentionBackendName
    known = {item.value.lstrip("_"): item for item in backends}
    return known[name]


def import_backend(name: str) -> None:
    """Import a backend's package and ask diffusers for its requirements; what stops it is raised as it came."""
    package = package_of(name)
    if package is not None:
        importlib.import_module(package)
    _dispatch()._check_attention_backend_requirements(diffusers_backend(name))


def package_of(name: str) -> str | None:
    """The module that a backend needs beside torch; None when it needs none."""
    return "kernels" if name.endswith("_hub") else _PACKAGES.get("sage" if name.startswith("sage") else name)


def remedy(name: str, error: BaseException) -> str:
    """What to do about a backend that `try_backend` refused with `error`; ends as a sentence."""
    package = package_of(name)
    install = _INSTALL_FLASH_4 if name == "flash_4_hub" else _INSTALL.get(package or "", "")
    # diffusers' own words for a package that is missing or too old
    lacking = isinstance(error, ImportError) or (
        isinstance(error, RuntimeError) and "is not usable because" in str(error)
    )
    lacking |= isinstance(error, RuntimeError) and "needs to be used with a `kernels` version" in str(error)
    if isinstance(error, HubKernelRefused):
        return f"Set attention.hub_kernels: true, and {install} there, {_OTHERS}"
    if isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError) and install:
        return f"It is installed, for another torch or Python: install it anew ({install}) there, {_OTHERS}"
    if lacking and install:
        return f"In that environment: {install}, {_OTHERS}"
    if "DIFFUSERS_TRUST_REMOTE_KERNELS" in str(error):
        return f"If you trust its publisher, set DIFFUSERS_TRUST_REMOTE_KERNELS: 'true' in the role's env, {_OTHERS}"
    if name.endswith("_hub") and isinstance(error, OSError):
        return f"The kernel comes from the hub: check the network and HF_HUB_OFFLINE there, {_OTHERS}"
    return f"It does not compute this on this device: ask for another, {_OTHERS.removeprefix('or ask for another: ')}"


def try_backend(name: str, case: AttentionCase, *, hub_kernels: bool) -> None:
    """Import a backend and run it once on small random inputs; what stops it is raised as it came.

    Raises whatever its import, diffusers' requirements or the kernel raise, and ArithmeticError when its output is not
    native's within 10 % of norm. Downloads a kernel only with `hub_kernels`.
    """
    dispatch, backend = _dispatch(), diffusers_backend(name)
    if name.endswith("_hub") and not hub_kernels:
        repository = dispatch._HUB_KERNELS_REGISTRY[backend].repo_id
        raise HubKernelRefused(
            f"{name} runs code from {repository} on the Hugging Face hub, which attention.hub_kernels: true allows"
        )
    import_backend(name)
    with quiet():
        dispatch._maybe_download_kernel_for_backend(backend)
    generator = torch.Generator().manual_seed(0)
    shape = (1, _PROBE_ROWS, _PROBE_HEADS, case.head_size)
    query, key, value = (
        torch.randn(shape, generator=generator).to(case.device, case.dtype) for _ in ("query", "key", "value")
    )
    for check in dispatch._AttentionBackendRegistry._constraints[backend]:
        check(query=query, key=key, value=value, attn_mask=None, is_causal=False)
    with torch.inference_mode():
        found = dispatch.dispatch_attention_fn(query, key, value, backend=backend).float()
        native = dispatch.dispatch_attention_fn(query, key, value, backend=diffusers_backend("native")).float()
    error = float((found - native).norm() / native.norm())
    if not error <= _TOLERANCE:
        raise ArithmeticError(f"its output is {error:.3g} away from native's (ratio of norms, {_TOLERANCE} allowed)")


def candidates(case: AttentionCase) -> tuple[tuple[str, ...], str]:
    """What `auto` tries for this case, best first, and why these. The last is always native.

    Only backends that compute plain attention in the given dtype: no quantised one, and none from the hub.
    """
    if not case.device.startswith("cuda"):
        return ("native",), f"the device is {case.device}"
    if case.dtype not in (torch.bfloat16, torch.float16):
        return ("native",), f"no other takes {str(case.dtype).removeprefix('torch.')}"
    major, minor = torch.cuda.get_device_capability(torch.device(case.device))
    where = f"sm_{major}{minor}"
    if major == 9:
        return ("flash_3", "flash", "native"), where
    if major >= 8:
        return ("flash", "native"), where
    return ("native",), f"{where} has no FlashAttention kernels"


def _dispatch() -> Any:
    """diffusers' dispatch module, with everything this file uses of it. Raises VersionMismatch."""
    import diffusers
    from diffusers.models import attention_dispatch

    names = (
        "AttentionBackendName",
        "_AttentionBackendRegistry",
        "_HUB_KERNELS_REGISTRY",
        "_check_attention_backend_requirements",
        "_maybe_download_kernel_for_backend",
        "dispatch_attention_fn",
    )
    missing = [name for name in names if not hasattr(attention_dispatch, name)]
    if missing:
        raise VersionMismatch(
            f"diffusers {diffusers.__version__}: expected the attention dispatch of 0.42, found one without "
            f"{', '.join(missing)}. Install diffusers 0.42.",
            differences={"diffusers": diffusers.__version__},
        )
    return attention_dispatch
