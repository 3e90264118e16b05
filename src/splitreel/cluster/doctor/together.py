"""What holds of all workers together, as a session would compare it before it loads: memory and the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from splitreel.cluster.doctor.finding import DRIVER, Finding, of_error, ok, skip
from splitreel.cluster.handshake import by_memory, check_memory, compare_geometry, needed_and_free
from splitreel.cluster.replies import WorkerFacts
from splitreel.errors import ClusterError, GeometryMismatch


def look_together(facts: Sequence[WorkerFacts]) -> Iterator[Finding]:
    """One finding for each memory and node (two of Ray's nodes may be one machine), and one on the checkpoint.

    `facts`: of the workers whose files are here already.
    """
    if not facts:
        yield skip("memory.budget", "the files are not here yet; splitreel plan knows the release's sizes", node=DRIVER)
        return
    for sharers in by_memory(facts):
        try:
            check_memory(sharers)
        except ClusterError as error:
            found = of_error("memory.budget", error)
        else:
            needed, free = needed_and_free(sharers)
            shown = f"{sharers[0].device}: {needed / 1e9:.2f} GB of weights, {free / 1e9:.1f} GB free"
            found = ok("memory.budget", shown)
        for node in dict.fromkeys(item.node.name for item in sharers):
            yield replace(found, node=node)
    try:
        compare_geometry(facts)
    except GeometryMismatch as error:
        yield of_error("checkpoint.equal", error, node=error.details.get("node") or DRIVER)
    else:
        print_of = f"one checkpoint everywhere (geometry {facts[0].fingerprint[:12]})"
        yield ok("checkpoint.equal", print_of, node=DRIVER)
