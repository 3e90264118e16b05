"""The lines to paste that people read in the README are those that `splitreel cluster commands` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splitreel.cluster.commands import node_commands
from splitreel.config import load_config, parse_config
from splitreel.config_tools.origins import json_schema

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_starts_ray_as_cluster_commands_does() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Two machines")[2]
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    shown = [line.partition(" #")[0].strip() for line in blocks[0].splitlines()]
    config = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]
    import yaml

    head, other = node_commands(parse_config(yaml.safe_load(config)))
    printed = [line.partition(" #")[0].strip() for line in (*head.lines, *other.lines)]
    own = [line for line in shown if line.startswith(("ray ", "ssh ", "export "))]
    assert len(own) == 5
    assert own[0] == "export RAY_AUTH_MODE=token"
    for line in own:
        # The README leaves out sizes that Ray has defaults for, and nothing else.
        assert any(
            set(line.split()) <= set(full.split()) and full.startswith(line.split("=")[0]) for full in printed
        ), line
    assert {"ray get-auth-token --generate > /dev/null", "export RAY_AUTH_MODE=token"} <= set(own)


def test_every_setting_is_named_in_some_page() -> None:
    """But those of `serve`: docs/serve.md is held against the server's own words elsewhere."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    code = set(re.findall(r"\w+", "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))))
    sections = {name: each for name, each in json_schema()["$defs"].items() if name not in ("ServeConfig", "KeyConfig")}
    named = [(section, name) for section, each in sections.items() for name in each.get("properties", ())]
    assert len(named) > 60
    assert [each for each in named if each[1] not in code] == []


@pytest.mark.parametrize("name", ["two_machines", "two_gpus"])
def test_examples_point_to_the_commands_that_ask_for_a_token(name: str) -> None:
    path = ROOT / "examples" / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    assert "ray start --" not in text
    assert f"splitreel cluster commands --config examples/{name}.yaml" in text
    for node in node_commands(load_config(path)):
        assert "export RAY_AUTH_MODE=token" in node.lines
