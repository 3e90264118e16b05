"""THE MODEL: the only place that says MiniMax."""
