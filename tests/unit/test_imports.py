"""What surrounds the import of large packages."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from splitreel import imports

Writer = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    """Writes modules; `large_one` counts as a large package."""
    monkeypatch.setattr(imports, "LARGE", ("large_one",))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "large_one").mkdir()
    before = set(sys.modules)
    imports.rest_while_large_ones_load()

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


COLLECTS = "import gc\ncollects = gc.isenabled()\n"


def test_the_collector_rests_inside_and_works_after(write: Writer) -> None:
    write("small.py", COLLECTS)
    write("large_one/__init__.py", COLLECTS + "from large_one import below\nafter = gc.isenabled()\n")
    write("large_one/below.py", COLLECTS)
    large, small = importlib.import_module("large_one"), importlib.import_module("small")
    assert (large.collects, large.below.collects, large.after) == (False, False, False)
    assert small.collects
    assert gc.isenabled()


def test_it_works_again_after_an_import_that_fails(write: Writer) -> None:
    write("large_one/__init__.py", "raise ImportError('no such thing')")
    with pytest.raises(ImportError, match="no such thing"):
        importlib.import_module("large_one")
    assert gc.isenabled()


def test_who_turned_it_off_finds_it_off(write: Writer) -> None:
    write("large_one/__init__.py", "")
    gc.disable()
    try:
        importlib.import_module("large_one")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_loader_that_modules_share_is_left_alone(
    write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrapped for each of them anew it would end in a RecursionError."""
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        for name in ("__init__", "one", "two"):
            archive.writestr(f"large_two/{name}.py", "")
    monkeypatch.setattr(imports, "LARGE", ("large_two",))
    monkeypatch.syspath_prepend(tmp_path / "zipped.zip")
    for name in ("large_two", "large_two.one", "large_two.two"):
        loader = importlib.import_module(name).__loader__
        assert "exec_module" not in vars(loader)


@pytest.mark.parametrize(("first", "some"), [("splitreel", False), ("json", True)])
def test_no_full_collection_while_torch_is_imported(first: str, some: bool) -> None:
    """Without us there are three, each of all that has been imported by then."""
    count = "gc.get_stats()[2]['collections']"
    code = f"import gc, {first}; before = {count}; import torch; print({count} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (int(done.stdout) > 0) == some
