"""The checks that are made on each node, in the order of making them: what is cheap and sure first.

The process that looks may die of the last ones (a broken attention package can take it along); what was found before
has been sent by then.
"""

from __future__ import annotations

from splitreel.cluster.doctor import files, gpus, machine, network, software
from splitreel.cluster.doctor.finding import Check

# Name, checks, and the seconds that they may take together.
FAMILIES: dict[str, tuple[tuple[tuple[str, Check], ...], float]] = {
    "network": (network.CHECKS, 5.0),
    "machine": (machine.CHECKS, 8.0),
    "software": (software.CHECKS, 8.0),
    "gpus": ((*gpus.CHECKS, ("memory.unified", machine.unified)), 15.0),
    "files": (files.CHECKS, 32.0),  # importing diffusers takes 9 s of CPU time, once
    "attention": (software.LAST, 12.0),
}
