"""The config file: every mistake is named by its path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splitreel.config import Config, apply_override, load_config, parse_config, read_yaml
from splitreel.config_tools.convert import convert_file
from splitreel.config_tools.origins import as_yaml, settings_in_force
from splitreel.errors import ConfigError
from splitreel.request import Stage
from splitreel.serve.cli.failures import Refused
from splitreel.serve.cli.inputs import read_request


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
    ("device", base(roles={"encoder_decoder": {}, "dit": {"device": "gpu"}}), "roles.dit.device: expected cpu, cuda or cuda:NUMBER, found 'gpu'. Did you mean cuda?"),
    ("no section", base(engine=3), "engine: expected a section with settings of its own, found 3."),
    ("no whole number", base(engine={"look_ahead": None}), "engine.look_ahead: expected a whole number, found None."),
    ("more threads than any machine has", base(roles={"encoder_decoder": {}, "dit": {"threads": 100_000}}), "roles.dit.threads: input should be less than or equal to 1024, found 100000"),
    ("dtype", base(roles={"encoder_decoder": {}, "dit": {"dtype": "fp8"}}), "roles.dit.dtype:"),
    ("dtype map without default", base(roles={"encoder_decoder": {}, "dit": {"dtype": {"vae": "float32"}}}), "expected a `default`"),
    ("threads", base(roles={"encoder_decoder": {}, "dit": {"threads": 0}}), "roles.dit.threads:"),
    ("text where a number belongs", base(engine={"max_in_flight": "3"}), "engine.max_in_flight:"),
    ("zero in flight", base(engine={"max_in_flight": 0}), "engine.max_in_flight:"),
    ("a number without end", base(serve={"keep_days": float("inf")}), "serve.keep_days: input should be a finite number, found inf"),
    ("no number", base(engine={"stage_timeout": float("nan")}), "engine.stage_timeout: input should be a finite number, found nan"),
    ("more than can be counted", base(serve={"keep_gb": 1e300}), "serve.keep_gb: input should be less than or equal to 1000000000"),
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
    ("override", "message"),
    [
        ("engine.look_ahead=", "--set engine.look_ahead=: expected a whole number, found None."),
        ("model.pth=x", "--set model.pth=x: unknown setting. Did you mean path?"),
        ("engine={retrys: 1}", "--set engine={retrys: 1}: retrys: unknown setting. Did you mean retries?"),
        ("cluster.address=foo", "--set cluster.address=foo: expected HOST:PORT, auto, embedded or local, found 'foo'."),
    ],
)
def test_a_wrong_override_is_named_instead_of_the_file(tmp_path: Path, override: str, message: str) -> None:
    path = write(tmp_path, "model: {path: tiny}\nroles: {encoder_decoder: {}, dit: {}}\nserve: {port: 99999}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override])
    lines = str(caught.value).splitlines()
    assert message in lines
    assert [line for line in lines if line.startswith(f"{path}: serve.port: ")]


def test_the_last_override_holds_and_options_after_all() -> None:
    again = ["engine.retries=1", "engine.retries=2", "engine.retries=1"]
    assert parse_config(base(), again).engine.retries == 1
    assert parse_config(base(), again, {"engine.retries=3": "--retries 3"}).engine.retries == 3
    with pytest.raises(ConfigError, match=r"^--retries x: expected a whole number, found 'x'\.$"):
        parse_config(base(), again, {"engine.retries=x": "--retries x"})


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


# What people's files have ------------------------------------------------------------------------------------------------

MERGED = """\
model: {path: tiny}
serve: &serve
  port: 80
  database: postgresql://crew:pa@ss/w@db/jobs?sslpassword=key1&sslmode=require
trace: {otlp_endpoint: "http://crew:word@collector:4318/v1/traces"}
roles:
  encoder_decoder: &gpu
    device: cuda
    <<: &cpu {dtype: float32, threads: 1}
    threads: 2
  dit: {<<: *gpu, nodes: [b], device: cpu}
  decoder:
    <<: [{threads: 4}, *gpu]
"""


def test_merge_keys_work(tmp_path: Path) -> None:
    roles = load_config(write(tmp_path, MERGED)).roles
    assert (roles["dit"].device, roles["dit"].dtype, roles["dit"].threads, roles["dit"].nodes) == (
        "cpu",
        "float32",
        2,
        ["b"],
    )
    assert (roles["decoder"].device, roles["decoder"].threads) == ("cuda", 4)
    found = {
        each.name: (each.origin, each.detail.rpartition(":")[2]) for each in settings_in_force(tmp_path / "config.yaml")
    }
    assert found["roles.dit.device"] == ("file", "11")
    assert found["roles.dit.threads"] == ("file", "10")
    assert found["roles.dit.dtype"] == ("file", "9")
    assert found["roles.decoder.threads"] == ("file", "13")
    # A mapping that is merged elsewhere before it is read itself holds no key twice.
    later = "model: {path: tiny}\nroles: {all: {env: &e {<<: {A: x}, A: y}}}\n"
    assert read_yaml(f"{later}x: {{<<: *e}}\n")["x"] == {"A": "y"}


ODD = [
    ("template", "path: {{MODEL}}", "a mapping as a name, such as a template in {{ }} that was not filled in, in line 1"),
    ("list as a name", "? [a]\n: b", "a list as a name"),
    ("no date", "a: 2024-13-01", "'2024-13-01', which looks like YAML's timestamp and is none (in quotes it is a text), in line 1"),
    ("no number", "a: 0x_", "looks like YAML's int"),
    ("too long a number", f"a: {'9' * 5000}", "looks like YAML's int"),
    ("no bool", "a: !!bool perhaps", "looks like YAML's bool"),
    ("no timestamp", "a: !!timestamp soon", "looks like YAML's timestamp"),
    ("deep", "a: " + "[" * 100_000, "sections within sections without end"),
    ("merged into itself", "a: &a {<<: *a}", "a section merged into itself, in line 1"),
    ("merge of no mapping", "<<: 3", "behind << something else than a section or a list of them, in line 1"),
    ("twice in a merged one", "a: {<<: {b: 1, b: 2}}", "the key 'b' twice"),
    ("two merges", "a: {<<: {b: 1}, <<: {b: 2}}", "the key '<<' twice"),
    ("a tag of Python", "a: !!python/object:os.system {}", "could not determine a constructor"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "found"), ODD, ids=[case[0] for case in ODD])
def test_odd_yaml_is_an_error_of_ours(tmp_path: Path, name: str, text: str, found: str) -> None:
    file = write(tmp_path, text)
    readers: list[tuple[Callable[[], Any], str]] = [
        (lambda: load_config(file), f"{file}: expected YAML, found"),
        (lambda: apply_override({}, f"a.b={{{text}}}" if "\n" not in text else f"a.b={text}"), "--set a.b="),
        (lambda: read_request(file), f"--request: {file}: expected a YAML or JSON file, found"),
        (lambda: convert_file(file), f"{file}: expected a readable YAML file, found"),
    ]
    for read, begin in readers:
        with pytest.raises((ConfigError, Refused)) as caught:
            read()
        assert str(caught.value).startswith(begin)
        assert found.partition(", in line")[0] in str(caught.value)
    assert found in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_date_where_a_text_is_expected(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"model\.revision: .*, found 2024-12-01, a date to YAML\. Put it in quotes\."
    ):
        load_config(write(tmp_path, "model: {path: tiny, revision: 2024-12-01}\nroles: {all: {}}\n"))


def test_passwords_of_addresses_are_not_shown(tmp_path: Path) -> None:
    settings = settings_in_force(write(tmp_path, MERGED), ["lora.a.path=hf://owner/name/a.safetensors"])
    found = {each.name: each.value for each in settings}
    assert found["serve.database"] == "postgresql://crew:***@db/jobs?sslpassword=***&sslmode=require"
    assert found["trace.otlp_endpoint"] == "http://crew:***@collector:4318/v1/traces"
    assert found["lora.a.path"] == "hf://owner/name/a.safetensors"
    text = as_yaml(settings)
    assert not [word for word in ("pa@ss", "w@db", "key1", "word@") if word in text]
    for plain in ("env:DATABASE", "sqlite:///jobs/jobs.db", "postgresql://db/jobs", "postgresql://crew@db/jobs"):
        overrides = [f"serve.database={plain}"]
        assert {each.name: each.value for each in settings_in_force(tmp_path / "config.yaml", overrides)}[
            "serve.database"
        ] == plain
