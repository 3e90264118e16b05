"""Makes MiniMax-H3 checkpoints of random weights that a CPU runs in seconds.

Every file is written by the real diffusers and transformers classes in the released repository's layout, so whatever
reads the released model reads these. What the sizes are, in float32; seconds for one request of 124 frames (138 with
the other geometry) and 5 steps on the default canvas, on one thread of a shared x86 server (the long ones varied by
half), as encode + denoise + decode. Loading takes 0.4 to 1 s. Here ref2va has an image, a clip as long as the film with
sound, and 3 s of sound.

| geometry, size   | MB  | made in | canvas    | t2va, seconds               | ref2va, seconds         |
|------------------|-----|---------|-----------|-----------------------------|-------------------------|
| released, tiny   | 10  | 0.5 s   | 64 x 128  | 0.6 = 0.05 + 0.1 + 0.4      | 2.4 = 1.7 + 0.4 + 0.3   |
| other, tiny      | 9   | 0.5 s   | 72 x 120  | 0.6 = 0.05 + 0.15 + 0.4     | 2.8 = 1.8 + 0.5 + 0.4   |
| released, small  | 223 | 1 s     | 128 x 224 | 12.5 = 0.05 + 7.5 + 5       | 60 = 7 + 44 + 9         |
| other, small     | 220 | 1 s     | 96 x 168  | 17.5 = 0.05 + 8.5 + 9       | 60 = 4 + 45 + 11        |
| released, medium | 395 | 3 s     | 192 x 352 | 46 = 0.1 + 26 + 20          | 170 = 24 + 125 + 25     |
| other, medium    | 390 | 3 s     | 120 x 216 | 93 = 0.3 + 44 + 49          | not measured            |

A prompt alone is always quick to encode; keyframes and references are what make that stage work.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from diffusers import (
    AutoencoderKLMiniMaxH3,
    AutoencoderKLMiniMaxH3Audio,
    MiniMaxH3Blocks,
    MiniMaxH3Scheduler,
    MiniMaxH3Transformer3DModel,
)
from torch import nn
from transformers import Qwen3VLForConditionalGeneration
from transformers.utils import logging as transformers_logging

from splitreel.errors import ConfigError
from splitreel.h3.tiny_spec import (
    DTYPES,
    GEOMETRIES,
    GEOMETRY_SPECS,
    SIZE_SPECS,
    SIZES,
    Dtype,
    Geometry,
    GeometrySpec,
    Size,
    audio_vae_config,
    index_configs,
    transformer_config,
    vae_config,
)
from splitreel.h3.tiny_text import make_processor, make_tokenizer, text_encoder_config
from splitreel.h3.tiny_weights import adjust_audio_vae, adjust_vae, fill, latent_statistics
from splitreel.h3.vsa.gates import add_gates

# Part of the cache's folder names: raise it whenever the files would come out different.
MAKER_VERSION = 2
MARKER = "splitreel_tiny.json"
HUB_REPOSITORY = "MiniMaxAI/MiniMax-H3"
VIDEO_SHIFT = 12.0
AUDIO_SHIFT = 3.0
SHARDS = 3

# Making touches process-wide settings (see `_quiet_and_repeatable`), so one thread at a time.
_MAKING = threading.Lock()


def make_tiny(
    directory: str | os.PathLike[str],
    *,
    geometry: Geometry = "released",
    size: Size = "tiny",
    dtype: Dtype = "float32",
    seed: int = 0,
    vsa_gates: bool = False,
) -> Path:
    """Write a checkpoint into `directory` and return its path; a checkpoint made with the same parameters is kept.

    `vsa_gates` adds to both transformers the gates of sparse attention that FastH3's checkpoints have. The folder appears
    whole or not at all. Raises ConfigError for an unknown parameter, or when `directory` exists and holds anything else.
    """
    _check_choice("geometry", geometry, GEOMETRIES)
    _check_choice("size", size, SIZES)
    _check_choice("dtype", dtype, DTYPES)
    parameters: dict[str, Any] = {
        "dtype": dtype,
        "geometry": geometry,
        "maker_version": MAKER_VERSION,
        "seed": seed,
        "size": size,
    }
    if vsa_gates:
        parameters["vsa_gates"] = True
    target = Path(directory)
    with _MAKING:
        if not _is_made(target, parameters):
            _make(target, parameters)
    return target


def cached_tiny(geometry: Geometry = "released", size: Size = "tiny", dtype: Dtype = "float32", seed: int = 0) -> Path:
    """The checkpoint with these parameters, made on first use into the user's cache; callers may race."""
    name = f"tiny-{geometry}-{size}-{dtype}-{seed}-v{MAKER_VERSION}"
    return make_tiny(cache_directory() / name, geometry=geometry, size=size, dtype=dtype, seed=seed)


def cache_directory() -> Path:
    """`$SPLITREEL_CACHE`, else `$XDG_CACHE_HOME/splitreel`, else `~/.cache/splitreel`."""
    if own := os.environ.get("SPLITREEL_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "splitreel"


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, found {value!r}.")


def _is_made(target: Path, parameters: dict[str, Any]) -> bool:
    """Whether `target` already holds this checkpoint; raises ConfigError when it holds something else."""
    if not target.exists():
        return False
    if not target.is_dir():
        raise ConfigError(f"{target}: expected a directory, found a file. Choose another path.")
    if not any(target.iterdir()):
        return False
    marker = target / MARKER
    if not marker.is_file():
        raise ConfigError(
            f"{target}: expected no directory or an empty one, found other files. Choose another path or empty it."
        )
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))
    except ValueError:
        found = "unreadable parameters"
    if found != parameters:
        raise ConfigError(
            f"{target}: expected a tiny checkpoint of {parameters}, found one of {found}. "
            "Choose another path or remove it."
        )
    return True


def _make(target: Path, parameters: dict[str, Any]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.partial"
    partial.mkdir()
    try:
        with _quiet_and_repeatable():
            _write(
                partial,
                parameters["geometry"],
                parameters["size"],
                parameters["dtype"],
                parameters["seed"],
                vsa_gates=parameters.get("vsa_gates", False),
            )
        (partial / MARKER).write_text(_json(parameters), encoding="utf-8")
        try:
            partial.rename(target)
        except OSError:
            # Another process was faster; its checkpoint serves as well if it is the same one.
            if not _is_made(target, parameters):
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _quiet_and_repeatable() -> Iterator[None]:
    """Build on the CPU in float32 without progress bars; leave the caller's generator and settings as they were."""
    bars = transformers_logging.is_progress_bar_enabled()
    default = torch.get_default_dtype()
    transformers_logging.disable_progress_bar()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), warnings.catch_warnings():
            # diffusers' audio VAE is built with the older `weight_norm`, which torch announces to remove.
            warnings.filterwarnings("ignore", message=".*weight_norm.*", category=FutureWarning)
            yield
    finally:
        torch.set_default_dtype(default)
        if bars:
            transformers_logging.enable_progress_bar()


def _write(root: Path, geometry: Geometry, size: Size, dtype: Dtype, seed: int, *, vsa_gates: bool) -> None:
    spec, widths = GEOMETRY_SPECS[geometry], SIZE_SPECS[size]
    narrow = torch.bfloat16 if dtype == "bfloat16" else torch.float32

    for component in ("transformer", "transformer_ref"):
        transformer = MiniMaxH3Transformer3DModel(**transformer_config(spec, widths))
        if vsa_gates:
            add_gates(transformer)
        fill(transformer, component, seed)
        # The released partitions keep their patch projections, time embedder and heads in float32.
        _cast(transformer, narrow, keep=MiniMaxH3Transformer3DModel._keep_in_fp32_modules)
        transformer.save_pretrained(root / component, max_shard_size=_shard_bytes(transformer))

    statistics = latent_statistics(seed, "vae", spec.latent_channels)
    vae = AutoencoderKLMiniMaxH3(**vae_config(spec, widths), **statistics)
    fill(vae, "vae", seed)
    adjust_vae(vae)
    vae.save_pretrained(root / "vae")

    statistics = latent_statistics(seed, "audio_vae", spec.audio_latent_channels)
    audio_vae = AutoencoderKLMiniMaxH3Audio(**audio_vae_config(spec, widths), **statistics)
    fill(audio_vae, "audio_vae", seed)
    adjust_audio_vae(audio_vae)
    audio_vae.save_pretrained(root / "audio_vae")

    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(root / "tokenizer")
    make_processor(tokenizer).save_pretrained(root / "processor")
    text_encoder = Qwen3VLForConditionalGeneration(text_encoder_config(widths, tokenizer))
    fill(text_encoder, "text_encoder", seed)
    text_encoder.to(narrow)
    text_encoder.save_pretrained(root / "text_encoder", max_shard_size=_shard_bytes(text_encoder))

    MiniMaxH3Scheduler(shift=VIDEO_SHIFT).save_pretrained(root / "scheduler")
    MiniMaxH3Scheduler(shift=AUDIO_SHIFT).save_pretrained(root / "audio_scheduler")
    (root / "modular_model_index.json").write_text(_json(_index(spec, size)), encoding="utf-8")
    _settle_files(root)


def _cast(model: nn.Module, dtype: torch.dtype, keep: list[str]) -> None:
    """Cast parameters in place, except those with a module of `keep` in their path."""
    for name, parameter in model.named_parameters():
        if not set(name.split(".")) & set(keep):
            parameter.data = parameter.data.to(dtype)


def _shard_bytes(model: nn.Module) -> int:
    """A shard size that gives `SHARDS` files, or one more."""
    total: int = sum(value.nbytes for value in model.state_dict().values())
    return -(-total // SHARDS)


def _index(spec: GeometrySpec, size: Size) -> dict[str, Any]:
    """`modular_model_index.json` as diffusers writes it, each component pointing to the hub repository."""
    index = cast("dict[str, Any]", json.loads(MiniMaxH3Blocks().init_pipeline().to_json_string()))
    for name, entry in index.items():
        if isinstance(entry, list):
            loading = entry[2]
            loading["pretrained_model_name_or_path"] = HUB_REPOSITORY
            loading["subfolder"] = name
            index[name] = [*loading["type_hint"], loading]
    return index | index_configs(spec, size)


def _settle_files(root: Path) -> None:
    """Sorted JSON without this machine's paths, and the same permissions for every file."""
    mode = (root / "modular_model_index.json").stat().st_mode
    for path in sorted(root.rglob("*")):
        if path.suffix == ".json" and path.name != "tokenizer.json":
            values = json.loads(path.read_text(encoding="utf-8"))
            if values.get("_name_or_path") is not None:
                del values["_name_or_path"]
            path.write_text(_json(values), encoding="utf-8")
        if path.is_file():
            path.chmod(mode)


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2, sort_keys=True) + "\n"
