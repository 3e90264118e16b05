"""Adapters on a role's components: read a file, bind its keys to parameters, apply them to exactly one request.

Knows safetensors, parameters and the arithmetic. Must not know a model's module names (`ModelDefinition` translates
those), nor which adapters a request should use (its payload says so), nor how the bytes came here.
"""
