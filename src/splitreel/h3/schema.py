"""The version of MiniMax-H3's payloads, apart so that it can be read without importing diffusers."""

from __future__ import annotations

SCHEMA = (1, 0)
