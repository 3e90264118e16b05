"""docs/two-machines.md as a newcomer follows it: its own lines, pasted into two machines, down to the film.

What differs from the page: the tiny checkpoint on the CPU, fewer steps, and `cp` where the printed lines say `ssh` and
`scp`. The machines are namespaces, each with a network, a host name, a /tmp and a home of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from namespaces import Side, Unavailable, joined
from splitreel.cluster.embedded import SOURCES
from splitreel.media import film_facts

pytestmark = [pytest.mark.timeout(300)]

GUIDE = Path(__file__).parents[2] / "docs" / "two-machines.md"
NET = "192.168.23"  # as the page has it


class Machine:
    """A shell on one side."""

    def __init__(self, side: Side, home: Path) -> None:
        self._side, self.home = side, home
        (home / "tmp").mkdir(parents=True)
        self._environment = {
            "HOME": str(home),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/sbin", "/usr/bin", "/sbin", "/bin"]),
            "PYTHONPATH": str(SOURCES),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    def paste(self, lines: str, timeout: float = 120) -> str:
        """What the lines print. Every one has to succeed."""
        inside = f"set -e; mount --bind {shlex.quote(str(self.home / 'tmp'))} /tmp; cd\n{lines}"
        done = subprocess.run(
            self._side.command("unshare", "--mount", "bash", "-c", inside),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    try:
        # Not below /tmp, over which each machine mounts its own.
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, joined(NET) as (a, b):
            yield Machine(a, Path(folder, "a")), Machine(b, Path(folder, "b"))
    except Unavailable as error:
        pytest.skip(str(error))


def lines_of_the_page(start: str) -> str:
    """The one block of shell lines that starts with these words."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (block,) = [block for block in blocks if block.startswith(start)]
    return str(block)


def test_from_nothing_to_a_film(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    config = lines_of_the_page("splitreel config init").replace(f"{NET}.2\n", f"{NET}.2 --model tiny --device cpu\n", 1)
    assert "--device cpu" in config
    assert f"It fits: encoder_decoder on {NET}.1, dit on {NET}.2" in a.paste(config)

    commands, *after = lines_of_the_page("splitreel cluster commands").splitlines()
    printed = a.paste(commands).split("\n\n")
    on_a, on_b, on_mine = (part.split("\n", 1)[1] for part in printed)
    assert printed[0].startswith(f"# on {NET}.1")
    assert printed[1].startswith(f"# on {NET}.2")
    assert "ssh " in on_a
    a.paste("\n".join(line for line in on_a.splitlines() if not line.startswith("ssh ")))
    token = Path(".ray", "auth_token")
    (b.home / ".ray").mkdir(mode=0o700)
    (b.home / token).write_bytes((a.home / token).read_bytes())
    b.paste(on_b)
    seen = a.paste("\n".join([on_mine, *after]))
    assert f"Ray at {NET}.1:6379: 2 nodes" in seen
    assert "128.0 GB" not in seen, "the nodes themselves say now how much memory they have"
    assert f"It fits: encoder_decoder on {NET}.1, dit on {NET}.2" in seen

    film = lines_of_the_page('splitreel generate --prompt "').replace("--steps 50", "--steps 3")
    a.paste(f"{on_mine}\n{film}")
    facts = film_facts(a.home / "lake.mp4")
    assert (facts.frames, facts.fps) == (124, 24)
