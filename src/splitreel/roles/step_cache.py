"""diffusers' step caches on a transformer: one kind per role, a clean state for every request, and a count of what was saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import diffusers
import torch
from diffusers import hooks

from splitreel.config import CacheSpec
from splitreel.errors import VersionMismatch

_CONTEXT = "denoise"


def enable_cache(transformer: Any, spec: CacheSpec, blocks: str) -> None:
    """Hook the cache into a loaded transformer whose block list is called `blocks`. Raises VersionMismatch."""
    if spec.kind == "first_block":
        _describe_blocks(getattr(transformer, blocks)[0])
        config: Any = hooks.FirstBlockCacheConfig(threshold=spec.threshold)
    else:
        config = hooks.TaylorSeerCacheConfig(
            cache_interval=spec.interval,
            disable_cache_before_step=spec.start,
            max_order=spec.order,
            taylor_factors_dtype=torch.float32,
            cache_identifiers=[rf"{blocks}\.\d+\.attn"],
        )
    transformer.enable_cache(config)


def cache_in_force(component: Any) -> str:
    """The kind and the settings of the cache that a component really has; empty when it has none."""
    config = getattr(component, "_cache_config", None)
    match config:
        case hooks.FirstBlockCacheConfig():
            return f"first_block (threshold {config.threshold:g})"
        case hooks.TaylorSeerCacheConfig():
            return (
                f"taylor_seer (interval {config.cache_interval}, start {config.disable_cache_before_step}, order "
                f"{config.max_order})"
            )
    return "" if config is None else type(config).__name__


class StepCache:
    """The cache of one transformer as its program uses it; does nothing where none is enabled."""

    def __init__(self, transformer: Any) -> None:
        self._transformer = transformer
        self.enabled = bool(getattr(transformer, "is_cache_enabled", False))
        self.saved = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request's steps: they start from nothing, and leave nothing behind however they end."""
        self.saved = 0
        if not self.enabled:
            yield
            return
        self._transformer._reset_stateful_cache()
        try:
            with self._transformer.cache_context(_CONTEXT):
                yield
        finally:
            self._transformer._reset_stateful_cache()

    def step_done(self) -> bool:
        """Whether the step that just ended reused earlier work; counted in `saved`."""
        reused = self.enabled and self._reused()
        self.saved += reused
        return reused

    def _reused(self) -> bool:
        for module in self._transformer.modules():
            registry = getattr(module, "_diffusers_hook", None)
            for hook in registry.hooks.values() if registry is not None else ():
                manager = getattr(hook, "state_manager", None)
                if manager is not None:
                    state = manager.get_state()
                    if hasattr(state, "should_compute"):
                        return not state.should_compute
                    return bool(state.last_update_step != state.current_step)
        return False


def _describe_blocks(block: Any) -> None:
    """Tell diffusers' first-block cache what a block returns: the rows alone. It has no entry for this class."""
    try:
        from diffusers.hooks._helpers import TransformerBlockMetadata, TransformerBlockRegistry
    except ImportError as error:
        raise VersionMismatch(
            f"diffusers {diffusers.__version__}: expected the block registry of 0.42, found {error}. Install diffusers "
            "0.42 or leave out cache.",
            differences={"diffusers": diffusers.__version__},
        ) from error
    try:
        TransformerBlockRegistry.get(type(block))
    except ValueError:
        TransformerBlockRegistry.register(type(block), TransformerBlockMetadata(return_hidden_states_index=0))
