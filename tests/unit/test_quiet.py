"""What libraries say at the wrong time does not reach users; what concerns them does."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path

import pytest

from splitreel.cluster._stderr import without_ray_lines
from splitreel.roles import quiet_imports

NOISY = """
import logging
logging.getLogger("noisy").warning("an old thing is deprecated, says %s", "us")
logging.getLogger("noisy").error("something is really wrong")
logging.getLogger("other").warning("an old thing is deprecated")
"""


def test_a_known_note_of_an_import_becomes_a_debug_line_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "noisy_library.py").write_text(NOISY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(quiet_imports, "WATCHED", ("noisy_library",))
    monkeypatch.setattr(quiet_imports, "KNOWN", {"noisy": "is deprecated"})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    quiet_imports.watch_imports()
    quiet_imports.watch_imports()
    caplog.set_level(logging.DEBUG)
    importlib.import_module("noisy_library")
    said = [(record.levelname, record.name, record.getMessage()) for record in caplog.records]
    assert said == [
        ("DEBUG", "splitreel.roles.quiet_imports", "noisy: an old thing is deprecated, says us"),
        ("ERROR", "noisy", "something is really wrong"),
        ("WARNING", "other", "an old thing is deprecated"),
    ]
    assert logging.getLogger("noisy").filters == []


def test_rays_log_lines_are_kept_off_stderr_and_no_others(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with without_ray_lines():
            os.write(2, b"[2026-11-30 14:56:19,348 W 14546 14606] gcs_client.cc:210: Failed to get cluster ID\n")
            os.write(2, b"[2026-11-30 14:59:46,107 W 16603 16605] rpc_client.h:153: Failed to connect to GCS\n")
            os.write(2, b"[2026-11-30] a line of the user\n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    print("afterwards", file=sys.stderr)
    assert capfd.readouterr().err == "[2026-11-30] a line of the user\nafterwards\n"
