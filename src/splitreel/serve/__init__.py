"""THE DOORS: where requests come in and films go out.

Knows sessions, terminals and HTTP. Must not know: Ray, torch, the model.
"""
