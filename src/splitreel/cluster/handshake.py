"""What workers must agree on before anything loads."""

from __future__ import annotations

from collections.abc import Sequence

from splitreel.cluster.host import WorkerFacts
from splitreel.errors import GeometryMismatch, VersionMismatch


def compare(facts: Sequence[WorkerFacts], driver: dict[str, str]) -> None:
    """Raise VersionMismatch or GeometryMismatch, listing every difference, unless all workers agree.

    `driver`: the versions of the driving process, which exchanges requests and films with the workers.
    """
    differences = []
    for name in driver:
        found = {f"driver {driver[name]}": driver[name]}
        for item in facts:
            found[f"{item.role} on {item.node.name} {item.versions.get(name, 'none')}"] = item.versions.get(
                name, "none"
            )
        if len(set(found.values())) > 1:
            differences.append(f"{name}: {', '.join(found)}")
    schemas = {f"{item.role} on {item.node.name} {item.schema[0]}.{item.schema[1]}": item.schema[0] for item in facts}
    if len(set(schemas.values())) > 1:
        differences.append(f"wire schema: {', '.join(schemas)}")
    if differences:
        raise VersionMismatch(
            "versions: expected the same everywhere, found "
            + "; ".join(differences)
            + ". Install the same on every node.",
            differences=differences,
        )
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
