"""THE HANDS: load exactly one role's components and run its pruned chains of blocks.

Knows diffusers pipelines, safetensors files and devices. Must not know a model's name, fields or geometry (a
`ModelDefinition` brings those), nor Ray, nor how payloads travel.
"""

from splitreel.roles.quiet_imports import watch_imports

watch_imports()
