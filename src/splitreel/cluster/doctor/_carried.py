"""Sent to nodes as source, since they may have another splitreel, or none: the standard library only."""

from __future__ import annotations


def look_around(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of packages in this interpreter, as `splitreel.cluster.host.versions` gives them, and the interpreter."""
    import importlib
    import importlib.metadata
    import platform
    import sys

    found = {"python": ".".join(platform.python_version_tuple()[:2]), "executable": sys.executable}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    try:
        found["splitreel"] = importlib.import_module("splitreel.version").__version__
    except Exception as error:
        found["splitreel"] = f"none ({type(error).__name__}: {error})"
    return found
