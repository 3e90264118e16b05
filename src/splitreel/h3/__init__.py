"""THE MODEL: MiniMax-H3's cut, payloads, geometry, rules and tiny checkpoint.

The only place that says MiniMax. Knows diffusers' blocks for it. Must not know nodes, Ray, or how payloads travel.
"""

from splitreel.roles.quiet_imports import watch_imports

watch_imports()
