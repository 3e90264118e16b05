"""Everything around the config file but its schema: starting one, explaining one, converting one from elsewhere.

Knows the config's schema and YAML. Must not know: nodes that live, torch, Ray, terminals.
"""
