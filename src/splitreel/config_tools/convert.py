"""From a FastVideo run file to a config and a request of ours, with a word on every setting that is not carried over."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from splitreel.config import parse_config, read_yaml
from splitreel.config_tools.foreign import (
    BACKEND,
    DENSE,
    FAST,
    NO_VSA,
    SETTINGS,
    VSA_BACKEND,
    VSA_SPARSITY,
    VSA_TILE,
    WHOLE_SECTIONS,
)
from splitreel.errors import ConfigError, InvalidRequest
from splitreel.request import GenerateRequest
from splitreel.words import kind_of, plainly

_SECTIONS = {name.rsplit(".", depth)[0] for name in SETTINGS for depth in range(1, name.count(".") + 1)}
_SAMPLED = {
    "seed": "seed",
    "num_frames": "num_frames",
    "height": "height",
    "width": "width",
    "num_inference_steps": "steps",
}


@dataclass(frozen=True)
class LeftOut:
    """A setting that is not in the files written, with its value and why. `changes`: films come out otherwise."""

    name: str
    value: Any
    why: str
    changes: bool


@dataclass(frozen=True)
class Conversion:
    """What to write. `request` is None when the file had no `request:` section; `left_out` in the file's order."""

    config: dict[str, Any]
    request: dict[str, Any] | None
    left_out: tuple[LeftOut, ...]

    def config_text(self, source: str) -> str:
        """The config file."""
        return self._text(self.config, f"# Converted from {source}.", "generator")

    def request_text(self, source: str) -> str:
        """The request file, for `splitreel generate --request`."""
        return self._text(
            self.request or {}, f"# Converted from {source}. Options of the command line go before.", "request"
        )

    def _text(self, content: dict[str, Any], title: str, section: str) -> str:
        notes = [
            f"#   {item.name}: {_short(item.value)} — {item.why}."
            for item in self.left_out
            if item.changes and item.name.startswith(section)
        ]
        head = [title, *(["# No equivalent:", *notes] if notes else [])]
        return "\n".join(head) + "\n" + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def convert_file(path: Path, *, device: str = "cuda", dtype: str = "bfloat16") -> Conversion:
    """Read and convert; `device` and `dtype` are those of every role. Raises ConfigError naming each wrong setting."""
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{path}: expected a readable YAML file, found {plainly(error, path)}. Give a FastVideo run file."
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: expected generator: and request: sections, found {kind_of(content)}. Give a FastVideo run file."
        )
    return convert(content, origin=str(path), device=device, dtype=dtype)


def convert(
    content: Mapping[str, Any], *, origin: str = "file", device: str = "cuda", dtype: str = "bfloat16"
) -> Conversion:
    """Convert the file's content. Raises ConfigError."""
    if "generator" not in content:
        ours = ", a config of splitreel already" if {"model", "roles"} <= set(content) else ""
        raise ConfigError(f"{origin}: generator: expected a section, found none{ours}. Give a FastVideo run file.")
    values = dict(_settings(content))
    wrong = [f"{origin}: {problem}" for name, value in values.items() if (problem := _problem(name, value))]
    if wrong:
        raise ConfigError("\n".join(wrong))
    config, notes = _config(values, origin, device, dtype)
    request, request_notes = _request(values, origin) if "request" in content else (None, [])
    if request is not None and "image" in request and config["model"]["workflow"] == "t2va":
        config["model"]["workflow"] = "fl2va"
    parse_config(config, origin=f"{origin}: converted")
    return Conversion(config, request, (*_left_out(values), *notes, *request_notes))


def _settings(content: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """The settings by dotted name: sections are entered, anything else is a value."""
    for key, value in content.items():
        name = f"{at}.{key}" if at else str(key)
        if name in WHOLE_SECTIONS:
            yield name, value
        elif isinstance(value, Mapping) and (name in _SECTIONS or (name not in SETTINGS and value)):
            yield from _settings(value, name)
        elif not (value is None and name in _SECTIONS):
            yield name, value


def _problem(name: str, value: Any) -> str | None:
    if name in WHOLE_SECTIONS:
        return None
    if name in _SECTIONS and name not in SETTINGS:
        return f"{name}: expected a section, found {_short(value)}. Indent its settings below it."
    if name not in SETTINGS:
        last, parent = name.rpartition(".")[2], name.rpartition(".")[0]
        near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.75)
        others = [
            other for other in SETTINGS if other.rpartition(".")[2] == last and other.rpartition(".")[0] != parent
        ]
        guess = others[0] if others else near[0] if near else None
        return f"{name}: expected a setting of FastVideo's run file, found an unknown one. " + (
            f"Did you mean {guess}?" if guess else "Remove it, if it means nothing to the film."
        )
    if isinstance(value, str) and (unset := re.search(r"\$\{?[A-Za-z_]\w*\}?", value)) and name != "request.prompt":
        return (
            f"{name}: expected a value, found {value!r}. Write {unset[0]} out: a shell puts it in when it makes the file, "
            "YAML does not."
        )
    return None


def _left_out(values: Mapping[str, Any]) -> Iterator[LeftOut]:
    for name, value in values.items():
        if name in WHOLE_SECTIONS:
            yield LeftOut(name, value, WHOLE_SECTIONS[name], changes=True)
            continue
        known = SETTINGS[name]
        if known.carried:
            continue
        always = any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in known.always)
        yield LeftOut(name, value, known.why, changes=not always)


def _config(values: Mapping[str, Any], origin: str, device: str, dtype: str) -> tuple[dict[str, Any], list[LeftOut]]:
    generator = "generator."
    engine, pipeline = f"{generator}engine.", f"{generator}pipeline."
    experimental = f"{pipeline}experimental."
    notes = []

    def text(name: str, required_by: str = "") -> str | None:
        value = values.get(name)
        if value is None and not required_by:
            return None
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{origin}: {name}: expected a text{required_by}, found {_short(value)}. Add it.")
        return value.strip()

    model: dict[str, Any] = {"path": text(f"{generator}model_path", " that names the model")}
    model["workflow"] = "t2va"
    workload = values.get(f"{pipeline}workload_type")
    if workload not in (None, "t2v", "i2v"):
        raise ConfigError(
            f"{origin}: {pipeline}workload_type: expected t2v or i2v, found {_short(workload)}. The model makes films only."
        )
    if workload == "i2v":
        model["workflow"] = "fl2va"
    pipeline_class = values.get(f"{pipeline}components.override_pipeline_cls_name")
    if pipeline_class is not None:
        if not str(pipeline_class).endswith("H3ModularPipeline") and "Ref2VA" not in str(pipeline_class):
            raise ConfigError(
                f"{origin}: {pipeline}components.override_pipeline_cls_name: expected a pipeline of the H3 model, found "
                f"{_short(pipeline_class)}. Other models do not run here."
            )
        if "Ref2VA" in str(pipeline_class):
            model["workflow"] = "ref2va"
    if (revision := text(f"{generator}revision")) is not None:
        model["revision"] = revision

    split = values.get(f"{experimental}h3_disaggregated", False)
    backend = values.get(f"{engine}execution_backend", "mp")
    if not isinstance(split, bool) or backend not in ("mp", "ray"):
        name, value = (
            (f"{engine}execution_backend", backend) if isinstance(split, bool) else ("h3_disaggregated", split)
        )
        raise ConfigError(
            f"{origin}: {name}: expected {'mp or ray' if isinstance(split, bool) else 'true or false'}, found {_short(value)}."
        )
    compute = {"device": device, "dtype": dtype}
    denoise: dict[str, Any] = {**compute}
    sparse, attention_notes = _attention(values, experimental, origin)
    notes += attention_notes
    if sparse is not None:
        denoise["attention"] = {"vsa": sparse}
    if "fasth3" in model["path"].lower():
        notes.append(LeftOut(f"{generator}model_path", model["path"], FAST, changes=True))
    lora_path = f"{pipeline}components.lora_path"
    adapters = {"lora": {"default": {"path": text(lora_path)}}} if values.get(lora_path) not in (None, "") else {}
    if not split:
        notes += [
            LeftOut(
                f"{experimental}{name}", values[f"{experimental}{name}"], "h3_disaggregated is not set", changes=True
            )
            for name in ("h3_encoder_node_ip", "h3_dit_node_ip", "h3_ray_address")
            if values.get(f"{experimental}{name}") is not None
        ]
        address = "local" if backend == "mp" else "auto"
        return {"model": model, "cluster": {"address": address}, "roles": {"all": denoise}, **adapters}, notes
    if backend != "ray":
        raise ConfigError(
            f"{origin}: {engine}execution_backend: expected ray because h3_disaggregated is set, found {backend}. "
            "Set it to ray."
        )
    because = " because h3_disaggregated is set"
    encoder = text(f"{experimental}h3_encoder_node_ip", because)
    dit = text(f"{experimental}h3_dit_node_ip", because)
    if encoder == dit:
        raise ConfigError(
            f"{origin}: {experimental}h3_dit_node_ip: expected another node than h3_encoder_node_ip, found {dit} for both. "
            "Use the address by which each machine is known to Ray."
        )
    return {
        "model": model,
        "cluster": {"address": text(f"{experimental}h3_ray_address") or "auto"},
        "roles": {"encoder_decoder": {"node": encoder, **compute}, "dit": {"nodes": [dit], **denoise}},
        **adapters,
    }, notes


def _attention(values: Mapping[str, Any], at: str, origin: str) -> tuple[dict[str, Any] | None, list[LeftOut]]:
    """`attention.vsa` of the role that denoises: just what the file means there, FastVideo's own defaults included."""
    backend = values.get(f"{at}attention_backend")
    sizes = {name: values[f"{at}{name}"] for name in ("VSA_sparsity", "VSA_tile_size") if f"{at}{name}" in values}
    if backend != VSA_BACKEND:
        plain = backend in (None, "TORCH_SDPA")
        notes = [LeftOut(f"{at}{name}", value, NO_VSA, changes=value not in (0, None)) for name, value in sizes.items()]
        if f"{at}attention_backend" in values:
            notes.insert(0, LeftOut(f"{at}attention_backend", backend, DENSE if plain else BACKEND, changes=not plain))
        return None, notes
    sparsity, tile = sizes.get("VSA_sparsity"), sizes.get("VSA_tile_size")
    sparsity, tile = VSA_SPARSITY if sparsity is None else sparsity, VSA_TILE if tile is None else tile
    if isinstance(sparsity, bool) or not isinstance(sparsity, int | float) or not 0 <= sparsity < 1:
        raise ConfigError(
            f"{origin}: {at}VSA_sparsity: expected a number from 0 to less than 1, found {_short(sparsity)}. Correct it."
        )
    if isinstance(tile, bool) or tile not in (64, 256):
        raise ConfigError(f"{origin}: {at}VSA_tile_size: expected 64 or 256, found {_short(tile)}. Correct it.")
    return {"tile": tile, "sparsity": float(sparsity)}, []


def _request(values: Mapping[str, Any], origin: str) -> tuple[dict[str, Any], list[LeftOut]]:
    notes = []
    prompt = values.get("request.prompt")
    if isinstance(prompt, list):
        raise ConfigError(
            f"{origin}: request.prompt: expected one text, found a list of {len(prompt)}. One request makes one film: write "
            "one prompt per line into a file and give it with splitreel generate --prompts FILE."
        )
    request: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    image = values.get("request.inputs.image_path")
    if isinstance(image, str):
        request["image"] = image
    elif image is not None:
        why = "say which is the first and which the last frame: image: PATH, last_image: PATH"
        notes.append(LeftOut("request.inputs.image_path", image, why, changes=True))
    for theirs, ours in _SAMPLED.items():
        if (value := values.get(f"request.sampling.{theirs}")) is not None:
            request[ours] = value
    try:
        GenerateRequest.from_dict({"prompt": "-", **request})
    except InvalidRequest as error:
        raise ConfigError(f"{origin}: request: {error.message}") from None
    return request, notes


def _short(value: Any) -> str:
    text = (
        yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000).removesuffix("\n...\n").strip()
    )
    return text if len(text) <= 60 else f"{text[:57]}..."
