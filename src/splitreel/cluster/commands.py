"""What to type on each machine of a config so that Ray is up there: exports and `ray start`, ready to paste.

Needs no Ray: the commands are read off the config.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass, field

from splitreel.config import Config
from splitreel.errors import ConfigError

DEFAULT_PORT = 6379
STORE_BYTES = 2 * 1024**3  # payloads are 5 to 100 MB, films a few MB; Ray's own default is 30 % of the memory
MIN_STORE_BYTES = 75 * 1024**2  # Ray refuses less
HEAP_BYTES = 4 * 1024**3  # bookkeeping for tasks of others: our workers ask for none
_NODE_ID = re.compile(r"[0-9a-f]{8,56}")


@dataclass(frozen=True)
class NodeCommands:
    """One machine: its address (empty: the one at hand), the roles that go there, and its lines."""

    address: str
    roles: tuple[str, ...]
    head: bool
    lines: tuple[str, ...]


@dataclass
class _Place:
    roles: list[str] = field(default_factory=list)
    gpus: float = 0.0


def node_commands(
    config: Config, *, unified: bool = False, store_bytes: int = STORE_BYTES, token: bool = True
) -> list[NodeCommands]:
    """The commands of each machine, the head first. Raises ConfigError for a config that does not say the addresses.

    `unified`: CPU and GPU share memory (DGX Spark), so Ray's memory monitor is turned off. `token`: Ray's token
    authentication, with the token in ~/.ray/auth_token on every machine.
    """
    if store_bytes < MIN_STORE_BYTES:
        raise ConfigError(
            f"--object-store: expected {MIN_STORE_BYTES / 1024**3:.2f} GiB or more, which Ray asks for, found "
            f"{store_bytes / 1024**3:.2f}. Leave it out for {STORE_BYTES / 1024**3:g} GiB."
        )
    places = _places(config)
    host, port = _head(config, places)
    if host not in places:
        places = {host: _Place(), **places}
    ordered = sorted(places, key=lambda address: address != host)
    return [
        NodeCommands(
            address=address,
            roles=tuple(places[address].roles),
            head=address == host,
            lines=tuple(
                _lines(
                    address,
                    places[address],
                    host=host,
                    port=port,
                    unified=unified,
                    store_bytes=store_bytes,
                    token=token,
                    others=[other for other in ordered if other != host],
                )
            ),
        )
        for address in ordered
    ]


def _places(config: Config) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    if config.cluster.address in ("local", "embedded"):
        raise ConfigError(
            f"cluster.address: expected HOST:PORT of a head that is to be started, found {config.cluster.address}, which "
            "needs no cluster. Nothing is to be run by hand."
        )
    named = any(node is not None for role in config.roles.values() for node in role.placements)
    for name, role in config.roles.items():
        for node in role.placements:
            if node is None and named:
                raise ConfigError(
                    f"roles.{name}.node: expected an address because other roles have one, found none. Add it, so that the "
                    "role's GPU is counted on its machine."
                )
            where = _address(name, node)
            place = places.setdefault(where, _Place())
            place.roles.append(name)
            place.gpus += role.gpus
    return places


def _address(role: str, node: str | None) -> str:
    if node is None:
        return ""
    if "=" in node or _NODE_ID.fullmatch(node):
        kind = "a label" if "=" in node else "a node id"
        raise ConfigError(
            f"roles.{role}.node: expected an address or host name to start Ray at, found {kind} ({node}), which only a running "
            "cluster knows. Name the address here."
        )
    return node


def _head(config: Config, places: dict[str, _Place]) -> tuple[str, int]:
    address = config.cluster.address
    if address == "auto":
        return next(iter(places)), DEFAULT_PORT
    matched = re.fullmatch(r"\[?(.+?)\]?:(\d+)", address)
    if matched is None:
        raise ConfigError(
            f"cluster.address: expected HOST:PORT, found {address}. For example {next(iter(places)) or '192.168.23.1'}:"
            f"{DEFAULT_PORT}."
        )
    host = matched[1]
    if list(places) == [""]:
        places[host] = places.pop("")
    return host, int(matched[2])


def _lines(
    address: str,
    place: _Place,
    *,
    host: str,
    port: int,
    unified: bool,
    store_bytes: int,
    token: bool,
    others: list[str],
) -> list[str]:
    head = address == host
    lines = []
    if token:
        lines.append("export RAY_AUTH_MODE=token")
        if head:
            lines.append("ray get-auth-token --generate > /dev/null   # writes ~/.ray/auth_token, once")
            for other in others:
                copy = f"scp -p ~/.ray/auth_token {shlex.quote(_bracketed(other))}:.ray/"
                lines.append(f"ssh {shlex.quote(other)} mkdir -p -m 700 .ray && {copy}")
    if unified:
        lines.append(
            "export RAY_memory_monitor_refresh_ms=0   # weights on a GPU that shares memory would look like a leak"
        )
    ray = ["ray start"]
    ray.append("--head" if head else f"--address={shlex.quote(f'{_bracketed(host)}:{port}')}")
    if address:
        ray.append(f"--node-ip-address={shlex.quote(address)}")
    if head:
        ray.append(f"--port={port}")
    ray += [
        f"--num-gpus={math.ceil(place.gpus)}",
        f"--object-store-memory={store_bytes}",
        f"--memory={HEAP_BYTES}",
        "--disable-usage-stats",
    ]
    lines.append(" ".join(ray))
    return lines


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def as_text(commands: list[NodeCommands]) -> str:
    """The commands with a heading for each machine."""
    parts = []
    for each in commands:
        what = " + ".join(each.roles) if each.roles else "no role"
        where = each.address or "this machine"
        parts.append("\n".join([f"# on {where}: {what}{', head' if each.head else ''}", *each.lines]))
    return "\n\n".join(parts)
