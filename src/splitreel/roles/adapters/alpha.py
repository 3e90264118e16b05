"""How strongly a low-rank update acts at scale 1: alpha over rank, and the many places where alpha is written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from splitreel.errors import AdapterError

# In a safetensors header: LightX2V's and kohya's, one number for the whole file.
_UNIFORM = ("alpha", "lora_alpha", "ss_network_alpha")
# diffusers writes peft's configuration there, its names prefixed with the component's.
_DIFFUSERS = "lora_adapter_metadata"


class Alphas:
    """What a file, its header and its configuration state about alpha; asked module by module."""

    def __init__(
        self, metadata: Mapping[str, str], config: Mapping[str, Any], component: str, given: float | None
    ) -> None:
        """`given` replaces whatever is stated. Raises AdapterError for what is not a number and for DoRA."""
        self.sources: set[str] = set()
        self._given = given
        self._config, self._where = dict(config), "adapter_config.json"
        if not self._config and _DIFFUSERS in metadata:
            self._config, self._where = _diffusers_config(metadata[_DIFFUSERS], component), "metadata"
        if self._config.get("use_dora"):
            raise AdapterError("expected a plain LoRA, found DoRA (use_dora). It cannot be applied.")
        self._root = bool(self._config.get("use_rslora"))
        self._uniform = next(
            (metadata[name] for name in _UNIFORM if metadata.get(name) not in (None, "", "None")), None
        )

    def factor(self, module: str, rank: int, tensor: float | None) -> tuple[float, float]:
        """(alpha, what the product of the factors is multiplied with) of a module; `tensor`: its own alpha, if it has."""
        alpha, source = self._alpha(module, tensor)
        if alpha is None:
            alpha, source = float(rank), "equal to rank, as none is stated"
        if not math.isfinite(alpha):
            raise AdapterError(f"{module}: expected a finite alpha, found {alpha} in {source}.")
        if alpha == 0.0:
            # Read literally it is an update of nothing, as peft and diffusers do it; kohya's trainers read 0 as "equal to
            # the rank". So it is never what was meant without a word.
            raise AdapterError(
                f"{module}: expected an alpha other than 0, found 0 in {source}: the update would change nothing. Say what it "
                "was trained with: alpha=... (kohya's trainers take 0 for the rank)."
            )
        self.sources.add(source)
        return alpha, alpha / (math.sqrt(rank) if self._root and self._given is None else rank)

    def _alpha(self, module: str, tensor: float | None) -> tuple[float | None, str]:
        if self._given is not None:
            return self._given, "given"
        if tensor is not None:
            return tensor, "tensors"
        for pattern, alpha in dict(self._config.get("alpha_pattern") or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):  # as peft looks it up
                return _number(alpha, self._where), self._where
        if self._config.get("lora_alpha") is not None:
            return _number(self._config["lora_alpha"], self._where), self._where
        if self._uniform is not None:
            return _number(self._uniform, "metadata"), "metadata"
        return None, ""


def _diffusers_config(text: str, component: str) -> dict[str, Any]:
    try:
        packed = json.loads(text)
    except ValueError as error:
        raise AdapterError(f"expected JSON in the header's {_DIFFUSERS}, found {error}.") from error
    prefix = f"{component}."
    return {name.removeprefix(prefix): value for name, value in packed.items() if name.startswith(prefix)}


def _number(value: Any, where: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise AdapterError(
            f"expected a number as alpha in {where}, found {value!r}. Say it yourself with alpha=..."
        ) from None
