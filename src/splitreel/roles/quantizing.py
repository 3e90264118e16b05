"""Weights of linear layers in 8 bits, through torchao: smaller, and not the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from splitreel.errors import ConfigError

Quantize = Callable[[nn.Module], None]


def quantizer(kind: str, component: str, device: torch.device) -> Quantize:
    """What brings one linear layer to `int8` or `fp8` (e4m3), in place.

    One scale per output, weights only: they are brought back to the layer's dtype for each product. Raises ConfigError where
    torchao is absent.
    """
    try:
        from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise ConfigError(
            f"memory.quantization.{component}: expected torchao for {kind} on {device}, found {error}. Install it there (pip "
            "install 'splitreel[quantization]') or leave the setting out."
        ) from error
    # Version 2 is the one that diffusers' guide for this model names.
    config: Any = Int8WeightOnlyConfig(version=2) if kind == "int8" else Float8WeightOnlyConfig()

    def quantize(layer: nn.Module) -> None:
        quantize_(layer, config, filter_fn=lambda module, name: isinstance(module, nn.Linear))

    return quantize


def try_quantization(kind: str, component: str, device: torch.device, dtype: torch.dtype) -> None:
    """Quantise a small layer and use it. Raises ConfigError with the cause where it cannot be in this dtype on this device."""
    quantize = quantizer(kind, component, device)
    try:
        with torch.inference_mode():
            tried = nn.Linear(64, 32, bias=False, device=device, dtype=dtype).requires_grad_(False)
            quantize(tried)
            if not bool(tried(torch.ones(3, 64, device=device, dtype=dtype)).isfinite().all()):
                raise ArithmeticError("values that are not finite")
    except Exception as error:
        raise ConfigError(
            f"memory.quantization.{component}: expected torchao to hold linear layers as {kind} in {dtype} on {device}, found "
            f"{type(error).__name__}: {error}. Choose the other form or leave the setting out."
        ) from error


def held_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensors that hold a parameter's values: itself, or those that torchao's stand for it."""
    if type(tensor).__module__.startswith("torchao"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        return [part for name in names for part in held_tensors(getattr(tensor, name))]
    return [tensor]


def quantized_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a matrix (outputs, inputs): one per value, and per output a float32 scale and int8's zero point."""
    return shape[0] * shape[1] + shape[0] * (5 if kind == "int8" else 4)
