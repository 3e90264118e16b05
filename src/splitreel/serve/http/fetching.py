"""Fetching media that a request names by URL: only https, only hosts of `serve.fetch_hosts`, only public addresses.

The name is resolved once, every address it has must be public, and the connection goes to one of those very addresses, so
that the name cannot mean something else a moment later. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from splitreel.errors import InvalidRequest

_TIMEOUT = 30.0
_CHUNK = 65_536
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: Address) -> bool:
    """Whether an address is one of the internet's: not private, loopback, link-local, multicast or reserved."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (_last_bits(address) if address in _NAT64 else None)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _last_bits(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)


def fetch(
    url: str,
    target: Path,
    where: str,
    *,
    hosts: Sequence[str],
    max_bytes: int,
    allow: Callable[[Address], bool] = is_public,
    context: ssl.SSLContext | None = None,
) -> None:
    """Fetch a URL into a file. Blocks, for 30 s at most between bytes. Raises InvalidRequest."""

    def refuse(expected: str, found: str, todo: str) -> InvalidRequest:
        return InvalidRequest(f"{where}: expected {expected}, found {found}. {todo}", field=where)

    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or 443
    except ValueError as error:
        raise refuse("an https URL", f"one that cannot be read ({error})", "Check it.") from None
    if parts.scheme != "https" or not host or parts.username is not None or parts.password is not None:
        raise refuse(
            "an https URL without user and password", f"{parts.scheme or 'no scheme'}", "Upload the file instead."
        )
    if host not in hosts:
        allowed = ", ".join(hosts) or "none"
        raise refuse(f"a host that this server fetches from ({allowed})", repr(host[:80]), "Upload the file instead.")
    addresses = _resolve(host, port)
    if not addresses or not all(allow(address) for address in addresses):
        raise refuse("a host with public addresses only", f"{host} without or with others", "Upload the file instead.")
    connection = _Pinned(host, port, str(addresses[0]), context or ssl.create_default_context())
    deadline = time.monotonic() + 10 * _TIMEOUT
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "image/*, video/*, audio/*", "Accept-Encoding": "identity"})
        response = connection.getresponse()
        if response.status != 200:
            raise refuse("the file itself", f"status {response.status} from {host}", "Redirects are not followed.")
        left = max_bytes
        with target.open("wb") as stream:
            while chunk := response.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise refuse(f"at most {max_bytes} bytes", f"more from {host}", "Send a smaller file.")
                if time.monotonic() > deadline:
                    raise refuse(f"the file within {10 * _TIMEOUT:g} s", f"a slower {host}", "Upload it instead.")
                stream.write(chunk)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise refuse(
            "a file that can be fetched", f"{type(error).__name__} from {host}", "Upload it instead."
        ) from None
    finally:
        connection.close()


def _resolve(host: str, port: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    except (OSError, ValueError, UnicodeError):
        return []


class _Pinned(http.client.HTTPSConnection):
    """Connects to one address, whatever the name would resolve to now; the certificate is checked for the name."""

    def __init__(self, host: str, port: int, address: str, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=_TIMEOUT, context=context)
        self._address, self._tls = address, context

    def connect(self) -> None:
        """Open the socket."""
        plain = socket.create_connection((self._address, self.port), self.timeout)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
