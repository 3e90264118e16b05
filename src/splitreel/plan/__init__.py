"""THE FORECAST: what a deployment needs and how fast it will be, before anything loads.

Knows sizes, the scheduler and a virtual clock. Must not know: torch, Ray, nodes that live.
"""
