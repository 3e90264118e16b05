"""THE BODY: where roles run, on this machine or on a Ray cluster. The only place that imports ray."""
