"""Checks that every relative link in the Markdown files leads to a file, and every #anchor to a heading."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """GitHub's anchors of a Markdown file."""
    found = set()
    for heading in HEADING.findall(text):
        plain = re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


def without_code(text: str) -> str:
    """The text without fenced code, where brackets mean other things."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def main() -> int:
    """Print each broken link; the exit code says whether there was one."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    broken = []
    for name in listed:
        file = ROOT / name
        for groups in LINK.findall(without_code(file.read_text(encoding="utf-8"))):
            target = groups[0] or groups[1]
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            linked = (file.parent / path).resolve() if path else file
            if not linked.exists():
                broken.append(f"{name}: {target}: no such file")
            elif anchor and linked.suffix == ".md" and anchor not in anchors(linked.read_text(encoding="utf-8")):
                broken.append(f"{name}: {target}: no such heading")
    print("\n".join(broken) if broken else f"docs: {len(listed)} files, all links lead somewhere")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
