"""API keys: made once and shown once; only their digests are kept, and compared in constant time."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Sequence

from splitreel.config import KeyConfig, ServeConfig
from splitreel.errors import ConfigError

_PREFIX = "sr-"


def make_key() -> tuple[str, str]:
    """A new key and its digest. 256 random bits: a plain SHA-256 cannot be searched."""
    key = _PREFIX + secrets.token_urlsafe(32)
    return key, key_digest(key)


def key_digest(key: str) -> str:
    """What the config holds of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def owner_of(header: str | None, keys: Sequence[KeyConfig]) -> str | None:
    """The name of the key in an Authorization header, None if it is no key of ours. Looks at every key, always.

    `Bearer KEY`, or `Basic` with the key as password, which is what a browser sends when it asked for one.
    """
    offered = key_digest(_key_in(header))
    found = None
    for key in keys:
        if hmac.compare_digest(offered, key.sha256):
            found = key.name
    return found


def _key_in(header: str | None) -> str:
    scheme, _, rest = (header or "").partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def check_exposure(settings: ServeConfig) -> None:
    """Refuse to listen to a network without keys. Raises ConfigError."""
    if is_loopback(settings.host) or settings.keys or settings.allow_without_key:
        return
    raise ConfigError(
        f"serve.host: expected a loopback address such as 127.0.0.1 while there are no keys, found {settings.host}. "
        "Make a key with `splitreel key NAME` and add it to serve.keys, or set serve.allow_without_key: true if whoever "
        "can connect may use it."
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's own, as seen from itself only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
