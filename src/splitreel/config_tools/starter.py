"""A commented config file to start from, for one machine, two, or more."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence

import yaml

from splitreel.config import parse_config
from splitreel.errors import ConfigError

DEFAULT_MODEL = "MiniMaxAI/MiniMax-H3"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*|\d{1,3}(\.\d{1,3}){3}(:\d+)?")
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

_MODEL = """\
model:
  path: {path}
  # A hub id (each node downloads only what its role needs), a directory (at the same place on every node; a role may
  # name its own with model_path), or tiny: a checkpoint of random weights, to try things out.
  workflow: {workflow}  # t2va (text), fl2va (first and last frame), ref2va (references), or a list
"""
_COMPUTE = """\
    device: {device}  # cuda, cuda:1 or cpu
    dtype: {dtype}  # one for all components, or {{default: bfloat16, vae: float32}}
"""
_ENGINE = """\
engine:
  look_ahead: 3  # films that may be encoded ahead for each transformer worker
  max_waiting: 64  # films that may wait; one more is refused
  retries: 1  # how often a stage runs again after its worker was lost
  start_timeout: 1800  # seconds until every role is resident
"""


def starter(
    nodes: Sequence[str] = (), *, model: str = DEFAULT_MODEL, workflow: str = "t2va", device: str = "cuda"
) -> str:
    """The text of a config for these nodes; none or one: everything on one machine, without Ray.

    The first node encodes, decodes and is Ray's head; each further one is a transformer worker. Raises ConfigError.
    """
    _check_nodes(nodes)
    fill: dict[str, object] = {
        "path": quoted(model),
        "workflow": workflow,
        "device": device,
        "dtype": "float32" if device == "cpu" else "bfloat16",
    }
    text = _one(fill) if len(nodes) < 2 else _several(nodes, fill)
    parse_config(yaml.safe_load(text), origin="config init")
    return "".join(_aligned(line) for line in text.splitlines(keepends=True))


def _aligned(line: str) -> str:
    """A line whose comment, if it has one behind a setting, begins at the same column as all others."""
    setting, mark, comment = line.partition(" # ")
    return f"{setting.rstrip():<34} # {comment}" if mark and setting.strip() else line


def _one(fill: dict[str, object]) -> str:
    return (
        "# Everything in one process on one machine, without Ray.\n"
        "# The released model needs about 150 GB for that: see `splitreel plan --config FILE` before you load it.\n"
        + _MODEL.format(**fill)
        + "cluster:\n  address: local  # no Ray: this process does it all\n"
        "roles:\n  all:  # all three stages: encode, denoise, decode\n"
        + _COMPUTE.format(**fill)
        + _ENGINE.format(**fill)
    )


def _several(nodes: Sequence[str], fill: dict[str, object]) -> str:
    head = f"[{nodes[0]}]" if ":" in nodes[0] else nodes[0]
    dits = ", ".join(quoted(node) for node in nodes[1:])
    workers = "the transformer" if len(nodes) == 2 else f"the transformer, {len(nodes) - 1} workers: one film each"
    return (
        f"# {len(nodes)} machines. `splitreel cluster commands --config FILE` prints what to run on each before the start.\n"
        + _MODEL.format(**fill)
        + f"cluster:\n  address: {quoted(f'{head}:6379')}  # Ray's head, on the first machine\n"
        "roles:\n  encoder_decoder:  # reads the prompt, develops pictures and sound\n"
        f"    node: {quoted(nodes[0])}  # an address, a host name, a Ray node id, or a label as key=value\n"
        + _COMPUTE.format(**fill)
        + f"  dit:  # {workers}\n    nodes: [{dits}]\n"
        + _COMPUTE.format(**fill)
        + _ENGINE.format(**fill)
    )


def _check_nodes(nodes: Sequence[str]) -> None:
    for node in nodes:
        if not node.strip() or any(mark in node for mark in " \t\n,"):
            raise ConfigError(f"nodes: expected an address or host name, found {node!r}. Give one for each machine.")
        try:
            address = ipaddress.ip_address(node)
        except ValueError:
            if re.search(r":\d+$", node):
                raise ConfigError(
                    f"nodes: expected an address without a port, found {node!r}. Ports belong to cluster.address; those of "
                    "SSH say nothing about Ray."
                ) from None
            continue
        if address.is_unspecified or (address.is_loopback and len(nodes) > 1 and node == "127.0.0.1"):
            raise ConfigError(
                f"nodes: expected an address at which the other machines reach this node, found {node}. "
                "Take one of its LAN, QSFP or overlay addresses (ip -br addr)."
            )
    twice = sorted({node for node in nodes if list(nodes).count(node) > 1})
    if twice:
        raise ConfigError(
            f"nodes: expected a different address for each machine, found {twice[0]} twice. Machines that share a "
            "public address have addresses of their own behind it (ip -br addr): use those."
        )


def quoted(text: str) -> str:
    """A text as YAML reads it back, with quotes only where they are needed."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)
