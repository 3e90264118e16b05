"""What workers must agree on before anything loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from splitreel.cluster.replies import WorkerFacts
from splitreel.errors import GeometryMismatch, PlacementError, VersionMismatch

# Ray stops spilling at 95 % (local_fs_capacity_threshold); said somewhat earlier.
NEARLY_FULL = 0.93


def compare(facts: Sequence[WorkerFacts], driver: dict[str, str]) -> None:
    """Raise VersionMismatch or GeometryMismatch, listing every difference, unless all workers agree.

    `driver`: the versions of the driving process, which exchanges requests and films with the workers.
    """
    found = {"driver": driver, **{f"{item.role} on {item.node.name}": item.versions for item in facts}}
    different = differences(found, tuple(driver))
    schemas = {f"{item.role} on {item.node.name} {item.schema[0]}.{item.schema[1]}": item.schema[0] for item in facts}
    if len(set(schemas.values())) > 1:
        different.append(f"wire schema: {', '.join(schemas)}")
    if different:
        raise VersionMismatch(
            "versions: expected the same everywhere, found "
            + "; ".join(different)
            + ". Install the same on every node.",
            differences=different,
        )
    compare_geometry(facts)


def differences(found: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> list[str]:
    """One line per package that is not of one version everywhere. `found`: versions by the place where they are."""
    lines = []
    for name in names:
        versions = {place: packages.get(name, "none") for place, packages in found.items()}
        if len(set(versions.values())) > 1:
            lines.append(f"{name}: {', '.join(f'{place} {version}' for place, version in versions.items())}")
    return lines


def compare_geometry(facts: Sequence[WorkerFacts]) -> None:
    """Raise GeometryMismatch unless all workers read the same checkpoint."""
    first = facts[0]
    for other in facts[1:]:
        if other.fingerprint != first.fingerprint:
            different = sorted(
                f"{name}: {first.geometry.get(name)} / {other.geometry.get(name)}"
                for name in {*first.geometry, *other.geometry}
                if first.geometry.get(name) != other.geometry.get(name)
            )
            raise GeometryMismatch(
                f"geometry: expected the same checkpoint on both, found {first.role} on {first.node.name} and {other.role} "
                f"on {other.node.name} to differ in {'; '.join(different)}. Give both the same model.",
                node=other.node.name,
                role=other.role,
            )


def by_memory(facts: Sequence[WorkerFacts]) -> list[list[WorkerFacts]]:
    """The workers that put their weights into the same memory, together."""
    found: dict[str, list[WorkerFacts]] = {}
    for item in facts:
        found.setdefault(item.memory_id, []).append(item)
    return list(found.values())


def needed_and_free(sharers: Sequence[WorkerFacts]) -> tuple[int, int]:
    """Bytes of the weights of workers that share a memory, and bytes that are free in it."""
    return sum(sum(item.memory_needed.values()) for item in sharers), min(item.memory_free for item in sharers)


def check_memory(facts: Sequence[WorkerFacts]) -> None:
    """Raise PlacementError when the weights of the workers that share a memory do not fit into what is free there."""
    for sharers in by_memory(facts):
        needed, free = needed_and_free(sharers)
        if needed > free:
            node = sharers[0].node.name
            parts = ", ".join(
                f"{name} {_gb(size)} ({item.role})" for item in sharers for name, size in item.memory_needed.items()
            )
            raise PlacementError(
                f"memory of {sharers[0].device} on node {node}: expected room for {_gb(needed)} of weights ({parts}), "
                f"found {_gb(free)} free. Move a role to another node, use a smaller dtype, or free memory there.",
                node=node,
            )


def spill_warnings(facts: Sequence[WorkerFacts]) -> list[str]:
    """One line per node whose spill disk is so full that Ray is about to stop, or has stopped, writing objects to it."""
    full = {item.node.name: item for item in facts if item.spill_full >= NEARLY_FULL}
    return [
        f"node {name}: the disk of {item.spill_folder}, to which Ray spills objects, is {item.spill_full:.0%} full; from 95 % "
        "on Ray writes no more, and requests whose payloads do not fit into the object store fail. Free space there, "
        "or start Ray with --temp-dir elsewhere."
        for name, item in sorted(full.items())
    ]


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
