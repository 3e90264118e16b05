"""THE MIND: decides which request runs which stage on which worker, and drives the backend by it.

`events` are what can happen and what can be ordered; `scheduler` answers one with the other and is pure: no clock, no
I/O, no asyncio, no randomness. Nothing in this package knows torch, ray or diffusers.
"""
