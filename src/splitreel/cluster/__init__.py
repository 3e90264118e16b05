"""THE BODY: where stages run. The only place that imports Ray.

Knows workers, nodes, placement and how payloads travel. Must not know the model (a `ModelDefinition` is handed in) or
the order of requests (the engine decides).
"""
