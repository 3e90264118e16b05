"""A machine's addresses: whether it has the one that others are told, and what variables say of them."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterator, Mapping

import psutil

from splitreel.cluster.doctor.context import Context
from splitreel.cluster.doctor.finding import DRIVER, Check, Finding, ok, skip, warn

# Variables by which programs around Ray and torch are told this host's address; one that was copied from another host,
# or is left from another network, sends peers to the wrong place.
_ADDRESSES = re.compile(r"(RAY|VLLM|SGLANG|TRTLLM|SPLITREEL)?_?(OVERRIDE_)?(NODE|HOST)_IP(_ADDRESS)?")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")
MTU_CHECK = "link.mtu"


def addresses() -> dict[str, str]:
    """This machine's addresses and the interface that has each. All of 127/8 is `lo` on Linux, listed or not."""
    return {
        item.address.partition("%")[0]: interface
        for interface, items in psutil.net_if_addrs().items()
        for item in items
        if item.family in (socket.AF_INET, socket.AF_INET6)
    }


def has_address(address: str, own: Mapping[str, str]) -> bool:
    """Whether an address is this machine's."""
    try:
        return address in own or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def own_address(context: Context) -> Iterator[Finding]:
    """Whether the machine has the address by which Ray knows it."""
    if context.address == DRIVER:
        return
    own = addresses()
    try:
        found = socket.gethostbyname(context.address)  # a node may be registered by its host name
    except OSError:
        found = context.address
    others = sorted(other for other in own if other != found and not other.startswith(("127.", "::1", "fe80:")))
    if has_address(found, own):
        where = own.get(found, "lo")
        rest = f"; it also has {', '.join(others)}" if others else ""
        yield ok("address.own", f"{context.address} is on {where}{rest}")
    else:
        yield warn(
            "address.own",
            f"Ray calls this node {context.address}, which none of its interfaces has (it has {', '.join(others) or 'none'}): "
            "forwarded, behind NAT, or given wrongly",
            "Start Ray there with --node-ip-address and one of its own addresses that the others reach on every port.",
        )


def variables(context: Context) -> Iterator[Finding]:
    """Whether variables that name this host's address or interface name one that it has."""
    wrong = list(wrong_variables(os.environ, addresses(), set(psutil.net_if_addrs())))
    if wrong:
        yield warn(
            "address.variables",
            "; ".join(f"{name}={value}, but this host has {has}" for name, value, has in wrong),
            f"Unset {' and '.join(name for name, _, _ in wrong)} or set it right "
            + ("in this shell." if context.address == DRIVER else "where Ray is started there, and start Ray anew."),
        )
    else:
        yield ok("address.variables", "no variable names an address or interface that this host lacks")


def wrong_variables(
    environment: Mapping[str, str], own: Mapping[str, str], interfaces: set[str]
) -> Iterator[tuple[str, str, str]]:
    """Name, value, and what the host has instead."""
    for name, value in sorted(environment.items()):
        if _ADDRESSES.fullmatch(name) and value and not has_address(value, own):
            yield name, value, ", ".join(sorted(key for key in own if ":" not in key)) or "no address"
        elif name in _INTERFACES and value:
            # NCCL's form: ^ excludes, = asks for the exact name, else prefixes; UCX adds :port to devices of its own.
            asked = [part.lstrip("=") for part in value.split(",") if ":" not in part]
            known = any(interface.startswith(part) for part in asked for interface in interfaces)
            if asked and not known and not value.startswith("^") and value != "all":
                yield name, value, ", ".join(sorted(interfaces))


def mtu(context: Context) -> Iterator[Finding]:
    """The largest packet of the interface that has the node's address."""
    interface = addresses().get(context.address)
    stats = psutil.net_if_stats().get(interface or "lo")
    if context.address == DRIVER or stats is None:
        yield skip(MTU_CHECK, "no interface of its own")
        return
    yield ok(MTU_CHECK, f"{stats.mtu} on {interface or 'lo'}")


CHECKS: tuple[tuple[str, Check], ...] = (
    ("address.own", own_address),
    ("address.variables", variables),
    (MTU_CHECK, mtu),
)
