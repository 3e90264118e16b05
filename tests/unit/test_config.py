"""The config file: every mistake is named by its path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from splitreel.config import Config, load_config, parse_config
from splitreel.errors import ConfigError
from splitreel.request import Stage


def base(**changes: Any) -> dict[str, Any]:
    return {"model": {"path": "tiny"}, "roles": {"encoder_decoder": {}, "dit": {}}, **changes}


def test_defaults() -> None:
    config = parse_config(base())
    assert config.model.workflows == ("t2va",)
    assert config.stages_of("encoder_decoder") == (Stage.ENCODE, Stage.DECODE)
    assert config.max_in_flight == 5
    assert parse_config(base(roles={"encoder_decoder": {}, "dit": {"nodes": ["a", "b"]}})).max_in_flight == 9
    assert parse_config(base(engine={"look_ahead": 1})).max_in_flight == 3
    assert config.roles["dit"].gpus == 0
    spec = config.role_spec("dit")
    assert (spec.stages, spec.workflows, spec.model_path) == ((Stage.DENOISE,), ("t2va",), "tiny")


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("unknown section", base(rolls={}), "rolls: unknown setting. Did you mean roles?"),
    ("unknown model setting", base(model={"path": "tiny", "worklow": "t2va"}), "model.worklow: unknown setting. Did you mean workflow?"),
    ("unknown role setting", base(roles={"encoder_decoder": {}, "dit": {"devise": "cpu"}}), "roles.dit.devise: unknown setting. Did you mean device?"),
    ("no path", base(model={}), "model.path: expected a value, found none"),
    ("empty path", base(model={"path": ""}), "model.path:"),
    ("wrong workflow", base(model={"path": "tiny", "workflow": "t2v"}), "model.workflow:"),
    ("no workflow", base(model={"path": "tiny", "workflow": []}), "model.workflow: expected t2va, fl2va, ref2va or a list of them, found []"),
    ("a typing error in the address", base(cluster={"address": "embeded"}), "Did you mean embedded?"),
    ("an impossible port", base(cluster={"address": "10.0.0.1:99999"}), "cluster.address: expected HOST:PORT, auto, embedded or local"),
    ("no roles", base(roles={}), "roles:"),
    ("device", base(roles={"encoder_decoder": {}, "dit": {"device": "gpu"}}), "roles.dit.device:"),
    ("dtype", base(roles={"encoder_decoder": {}, "dit": {"dtype": "fp8"}}), "roles.dit.dtype:"),
    ("dtype map without default", base(roles={"encoder_decoder": {}, "dit": {"dtype": {"vae": "float32"}}}), "expected a `default`"),
    ("threads", base(roles={"encoder_decoder": {}, "dit": {"threads": 0}}), "roles.dit.threads:"),
    ("text where a number belongs", base(engine={"max_in_flight": "3"}), "engine.max_in_flight:"),
    ("zero in flight", base(engine={"max_in_flight": 0}), "engine.max_in_flight:"),
    ("negative deadline", base(engine={"stage_timeout": -1.0}), "engine.stage_timeout:"),
    ("node and nodes", base(roles={"encoder_decoder": {}, "dit": {"node": "a", "nodes": ["b"]}}), "roles.dit: expected node or nodes, found both"),
    ("no nodes", base(roles={"encoder_decoder": {}, "dit": {"nodes": []}}), "roles.dit.nodes: expected at least one node"),
    ("role without stages", base(roles={"encoder_decoder": {}, "shooter": {}}), "roles.shooter.stages: expected the stages"),
    ("unknown stage", base(roles={"encoder_decoder": {}, "shooter": {"stages": ["shoot"]}}), "expected stages out of encode, denoise, decode"),
    ("stage missing", base(roles={"encoder_decoder": {}}), "roles: expected one that holds denoise for t2va, found none"),
    ("workflow not served", base(model={"path": "tiny", "workflow": ["t2va", "ref2va"]}, roles={"encoder_decoder": {}, "dit": {"workflows": ["t2va"]}}), "roles: expected one that holds denoise for ref2va"),
    ("workflow of a role unknown to the model", base(roles={"encoder_decoder": {}, "dit": {"workflows": ["fl2va"]}}), "roles.dit.workflows: expected some of model.workflow"),
    ("nixl within one process", base(cluster={"address": "local", "transport": "nixl"}), "transport: expected none with address local"),
    ("transport", base(cluster={"transport": "carrier_pigeon"}), "cluster.transport:"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), MISTAKES, ids=[case[0] for case in MISTAKES])
def test_mistakes_are_named(name: str, content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(content)
    assert message in str(caught.value)


def test_all_mistakes_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(base(engine={"max_in_flight": 0, "retrys": 1}))
    assert str(caught.value).count("\n") == 1


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_file_and_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "model: {path: tiny}\nroles: {encoder_decoder: {}, dit: {}}\n")
    config = load_config(path, ["engine.max_in_flight=2", "roles.dit.threads=1", "model.workflow=[t2va, fl2va]"])
    assert isinstance(config, Config)
    assert config.engine.max_in_flight == 2
    assert config.roles["dit"].threads == 1
    assert config.model.workflows == ("t2va", "fl2va")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found nothing"),
        ("- a\n", "found a list"),
        ("model: [\n", "expected YAML"),
        ("model: {path: tiny}\nmodel: {path: x}\n", "the key 'model' twice"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


@pytest.mark.parametrize("override", ["engine", "=3", "engine.=3", "model.path.x=1", "engine.max_in_flight=["])
def test_bad_overrides(override: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        parse_config(base(), [override])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="a folder, pipe or device"):
        load_config(tmp_path / "pipe.yaml")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"nowhere\.yaml: expected a readable YAML file, found no such file or directory\. Name a config",
    ):
        load_config(tmp_path / "nowhere.yaml")
