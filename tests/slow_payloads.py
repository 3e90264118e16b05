"""Payloads that are late, or slow to deserialise; importable by Ray's workers."""

from __future__ import annotations

import time
from typing import Any

from clockwork import submitted
from splitreel.wire import Packed

DELAY = 0.3


class SlowToRead(Packed):
    """Takes its time to be deserialised."""

    def __reduce__(self) -> Any:
        return _slowly, (self.header, self.buffers)


def _slowly(header: bytes, buffers: tuple[Any, ...]) -> Packed:
    time.sleep(DELAY)
    return Packed(header, buffers)


def produce_encoded(seconds: float, slow_to_read: bool) -> Packed:
    """An `encoded` payload of 8 MB, too large to travel with the reference."""
    time.sleep(seconds)
    packed = submitted("probe", size=8_000_000)
    encoded = Packed(packed.header.replace(b'"submitted"', b'"encoded"'), packed.buffers)
    return SlowToRead(encoded.header, encoded.buffers) if slow_to_read else encoded
