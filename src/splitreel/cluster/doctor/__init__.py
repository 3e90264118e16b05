"""What is wrong with a set-up, found out before anything loads: on the driver, and on every node that roles go to.

Knows machines, networks, Ray and the files of a role. Loads no weights, downloads nothing, changes nothing. Must not
know the model: a `ModelDefinition` is handed in. One file per family of checks; `families` lists them, `examine` runs
them.
"""

from __future__ import annotations

from splitreel.cluster.doctor.finding import Finding, Report, Status

__all__ = ["Finding", "Report", "Status"]
