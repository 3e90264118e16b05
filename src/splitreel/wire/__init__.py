"""THE LANGUAGE: what travels between roles, and how it is checked.

Knows tensors, headers and bytes. Must not know what a field means, which model made it, or how bytes travel.
"""

from splitreel.wire.accounting import account
from splitreel.wire.packing import Packed, pack, unpack
from splitreel.wire.payload import Header, Payload
from splitreel.wire.spec import FieldSpec, PayloadSpec

__all__ = ["FieldSpec", "Header", "Packed", "Payload", "PayloadSpec", "account", "pack", "unpack"]
