"""The config file: its settings (`schema`, `attention`, `memory`, `speed`, `adapters`), `yaml_text` and `reading` (files,
overrides, errors), `slices` (what each worker gets).

Knows YAML and pydantic; must not know Ray, torch or the model.
"""

from splitreel.config.adapters import LoraConfig
from splitreel.config.attention import ATTENTION_BACKENDS, AttentionConfig, VsaConfig, known_backend
from splitreel.config.memory import MemoryConfig
from splitreel.config.presets import PRESETS, Preset
from splitreel.config.reading import apply_override, load_config, parse_config
from splitreel.config.schema import (
    DTYPES,
    STAGES_OF_ROLE,
    ClusterConfig,
    Config,
    EngineConfig,
    ModelConfig,
    RoleConfig,
    TraceConfig,
    is_head_address,
)
from splitreel.config.serving import KeyConfig, ServeConfig
from splitreel.config.slices import AttentionSpec, CacheSpec, MemorySpec, RoleSpec, ScheduleSpec, VsaSpec
from splitreel.config.speed import CacheConfig, CompileConfig
from splitreel.config.yaml_text import read_yaml

__all__ = [
    "ATTENTION_BACKENDS",
    "DTYPES",
    "PRESETS",
    "STAGES_OF_ROLE",
    "AttentionConfig",
    "AttentionSpec",
    "CacheConfig",
    "CacheSpec",
    "ClusterConfig",
    "CompileConfig",
    "Config",
    "EngineConfig",
    "KeyConfig",
    "LoraConfig",
    "MemoryConfig",
    "MemorySpec",
    "ModelConfig",
    "Preset",
    "RoleConfig",
    "RoleSpec",
    "ScheduleSpec",
    "ServeConfig",
    "TraceConfig",
    "VsaConfig",
    "VsaSpec",
    "apply_override",
    "is_head_address",
    "known_backend",
    "load_config",
    "parse_config",
    "read_yaml",
]
