"""THE MEMORY: logs, spans and reports.

Knows names and durations. Must not change what runs: it is written to, never asked what to do.
"""
