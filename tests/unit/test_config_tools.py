"""Starting, explaining and converting config files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from foreign_run import smoke_run
from splitreel.cluster.environment import shown
from splitreel.config import load_config, parse_config
from splitreel.config_tools.convert import Conversion, convert
from splitreel.config_tools.foreign import BACKEND, DENSE, FAST, NO_VSA, SETTINGS, WHOLE_SECTIONS
from splitreel.config_tools.origins import as_yaml, json_schema, settings_in_force
from splitreel.config_tools.starter import starter
from splitreel.errors import ConfigError

# init -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nodes", [(), ("10.0.0.1",), ("10.0.0.1", "10.0.0.2"), ("a", "b", "c", "d"), ("fd00::1", "fd00::2")]
)
def test_a_new_config_is_whole_and_commented(nodes: tuple[str, ...]) -> None:
    text = starter(nodes)
    config = parse_config(yaml.safe_load(text))
    commented = [line for line in text.splitlines() if "#" in line]
    assert len(commented) > 8
    assert max(map(len, text.splitlines())) <= 125
    if len(nodes) < 2:
        assert config.cluster.address == "local"
    else:
        assert config.roles["encoder_decoder"].node == nodes[0]
        assert config.roles["dit"].nodes == list(nodes[1:])
        assert config.cluster.address in (f"{nodes[0]}:6379", f"[{nodes[0]}]:6379")
        assert config.max_in_flight == 4 * (len(nodes) - 1) + 1


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (("10.0.0.1", "10.0.0.1"), "found 10.0.0.1 twice"),
        (("127.0.0.1", "10.0.0.2"), "other machines reach this node, found 127.0.0.1"),
        (("0.0.0.0", "10.0.0.2"), "found 0.0.0.0"),
        (("1.2.3.4:2201", "1.2.3.4:2202"), "an address without a port"),
        (("", "a"), "expected an address or host name"),
    ],
)  # fmt: skip
def test_addresses_that_cannot_be_are_refused(nodes: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        starter(nodes)


def test_paths_that_yaml_would_misread_are_quoted() -> None:
    for path in ("/models/h3", "yes", "a: b", "C:\\models", "#1", "~/m", "1e3"):
        assert parse_config(yaml.safe_load(starter(model=path))).model.path == path


# show -----------------------------------------------------------------------------------------------------------------


def test_every_setting_says_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(starter(("10.0.0.1", "10.0.0.2")))
    overrides = ["engine.retries=2", "roles.dit.env={HF_TOKEN: secret, A: b}", "roles.dit.device=cpu"]
    found = {each.name: each for each in settings_in_force(file, overrides, mask=shown)}
    assert (found["engine.retries"].value, found["engine.retries"].origin) == (2, "--set")
    assert found["model.path"].origin == "file"
    line = found["model.path"].detail.rpartition(":")[2]
    assert "path: MiniMaxAI" in file.read_text().splitlines()[int(line) - 1]
    assert found["engine.heartbeat"].origin == "default"
    assert (found["roles.dit.num_gpus"].value, found["roles.dit.num_gpus"].origin) == (0.0, "derived")
    assert (found["roles.dit.env.HF_TOKEN"].value, found["roles.dit.env.A"].value) == ("***", "b")
    text = as_yaml(list(found.values()))
    assert "secret" not in text
    # What is shown is a config again, with the same meaning.
    again = yaml.safe_load(text)
    again["roles"]["dit"]["env"]["HF_TOKEN"] = "secret"
    for role in again["roles"].values():  # node and nodes are shown both; one of them is null
        role.update({name: None for name in ("node", "nodes") if role[name] is None})
    before, after = load_config(file, overrides), parse_config(again)
    assert before.role_spec("dit") == after.role_spec("dit")
    assert before.engine.retries == after.engine.retries
    assert before.max_in_flight == after.max_in_flight


def test_an_alias_counts_as_where_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: {path: tiny}\nroles:\n  encoder_decoder: &one\n    device: cpu\n  dit: *one\n")
    found = {each.name: each for each in settings_in_force(file)}
    assert found["roles.dit.device"].detail.endswith(":4")


def test_the_schema_knows_every_setting() -> None:
    schema = json_schema()
    json.dumps(schema)
    assert set(schema["properties"]) == {"model", "cluster", "roles", "engine", "trace", "serve", "lora"}
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["EngineConfig"]["properties"]["retries"]["maximum"] == 10


# convert --------------------------------------------------------------------------------------------------------------


def foreign(**changes: Any) -> dict[str, Any]:
    """The smoke test's content; keys are dotted names with __ for the dots."""
    content = yaml.safe_load(smoke_run())
    for name, value in changes.items():
        *path, last = name.split("__")
        section = content
        for part in path:
            section = section.setdefault(part, {})
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
    return content


def lost(found: Conversion) -> dict[str, str]:
    return {item.name: item.why for item in found.left_out if item.changes}


def test_the_smoke_run_converts_whole() -> None:
    found = convert(foreign())
    assert found.config == {
        "model": {"path": "tiny", "workflow": "t2va"},
        "cluster": {"address": "10.0.0.1:6379"},
        "roles": {
            "encoder_decoder": {"node": "10.0.0.1", "device": "cuda", "dtype": "bfloat16"},
            "dit": {"nodes": ["10.0.0.2"], "device": "cuda", "dtype": "bfloat16"},
        },
    }
    assert found.request == {
        "prompt": "An alpine lake at sunrise, with thin mist over the water.",
        "seed": 2026,
        "num_frames": 124,
        "height": 256,
        "width": 256,
        "steps": 2,
    }
    # Only the name of the file to write is said elsewhere; all else is how splitreel works anyway.
    assert set(lost(found)) == {"request.output.output_path"}
    assert {item.name for item in found.left_out} >= {"generator.engine.num_gpus", "request.sampling.guidance_scale"}


CHANGED: list[tuple[str, dict[str, Any], str, str]] = [
    ("attention kernel", {"generator__pipeline__experimental__attention_backend": "SAGE_ATTN"}, "generator.pipeline.experimental.attention_backend", "roles.NAME.attention.backend"),
    ("sparsity of dense attention", {"generator__pipeline__experimental__VSA_sparsity": 0.9}, "generator.pipeline.experimental.VSA_sparsity", "roles.NAME.attention.vsa"),
    ("distilled checkpoint", {"generator__model_path": "FastVideo/FastVideo-FastH3-8-Step-V2"}, "generator.model_path", "model.preset"),
    ("preset", {"generator__pipeline__preset": "h3_fast"}, "generator.pipeline.preset", "model.preset: h3,"),
    ("teacache", {"request__runtime": {"enable_teacache": True}}, "request.runtime.enable_teacache", "roles.NAME.cache"),
    ("decode by several", {"generator__pipeline__experimental__vae_parallel_decode": True}, "generator.pipeline.experimental.vae_parallel_decode", "engine.parallel_decode"),
    ("two GPUs", {"generator__engine__num_gpus": 2}, "generator.engine.num_gpus", "one GPU"),
    ("offload", {"generator__engine__offload__vae": True}, "generator.engine.offload.vae", "resident"),
    ("compile", {"generator__engine__compile__enabled": True}, "generator.engine.compile.enabled", "roles.NAME.compile"),
    ("compile details", {"generator__engine__compile__extras": {"options": {"a": 1}}}, "generator.engine.compile.extras", "roles.NAME.compile"),
    ("small decoder", {"generator__pipeline__experimental__video_decode_backend": "taeh3"}, "generator.pipeline.experimental.video_decode_backend", "own video VAE"),
    ("negative prompt", {"request__negative_prompt": "blur"}, "request.negative_prompt", "guidance-distilled"),
    ("guidance", {"request__sampling__guidance_scale": 5.0}, "request.sampling.guidance_scale", "guidance-distilled"),
    ("rate", {"request__sampling__fps": 16}, "request.sampling.fps", "24 frames"),
    ("quantization", {"generator__engine__quantization": {"transformer_quant": "fp8"}}, "generator.engine.quantization.transformer_quant", "roles.NAME.memory.quantization"),
    ("two pictures", {"request__inputs__image_path": ["a.png", "b.png"]}, "request.inputs.image_path", "first and which the last"),
    ("server", {"server": {"port": 80}}, "server", "section serve:"),
    ("true where 1 means no", {"generator__engine__num_gpus": True}, "generator.engine.num_gpus", "one GPU"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "setting", "why"), CHANGED, ids=[case[0] for case in CHANGED])
def test_what_has_no_equivalent_is_listed_with_its_reason(
    name: str, changes: dict[str, Any], setting: str, why: str
) -> None:
    found = convert(foreign(**changes))
    assert why in lost(found)[setting]
    text = found.config_text("run.yaml") + found.request_text("run.yaml")
    assert setting in text or setting == "server"
    yaml.safe_load(found.config_text("run.yaml"))


VSA = "generator__pipeline__experimental__"
SPARSE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("fasth3", {f"{VSA}VSA_sparsity": 0.9, f"{VSA}VSA_tile_size": 64}, {"tile": 64, "sparsity": 0.9}),
    ("what FastVideo takes by itself", {}, {"tile": 256, "sparsity": 0.0}),
    ("null", {f"{VSA}VSA_sparsity": 0, f"{VSA}VSA_tile_size": 64}, {"tile": 64, "sparsity": 0.0}),
]


@pytest.mark.parametrize(("name", "changes", "vsa"), SPARSE, ids=[case[0] for case in SPARSE])
def test_sparse_attention_is_carried_over(name: str, changes: dict[str, Any], vsa: dict[str, Any]) -> None:
    found = convert(foreign(**{f"{VSA}attention_backend": "VIDEO_SPARSE_ATTN_H3"}, **changes))
    assert found.config["roles"]["dit"]["attention"] == {"vsa": vsa}
    assert "attention" not in found.config["roles"]["encoder_decoder"]
    assert set(lost(found)) == {"request.output.output_path"}
    spec = parse_config(yaml.safe_load(found.config_text("run.yaml"))).role_spec("dit").attention.vsa
    assert spec is not None
    assert (spec.tile, spec.sparsity, spec.mode, spec.dense_first_steps, spec.dense_layers) == (
        vsa["tile"], vsa["sparsity"], "exempt", 0, (),
    )  # fmt: skip


def test_an_adapter_is_carried_over() -> None:
    found = convert(foreign(generator__pipeline__components={"lora_path": "FastVideo/adapter"}))
    assert found.config["lora"] == {"default": {"path": "FastVideo/adapter"}}
    assert parse_config(found.config).lora["default"].scale == 1.0
    assert set(lost(found)) == {"request.output.output_path"}
    alone = foreign(
        generator__pipeline__experimental__h3_disaggregated=False, generator__engine__execution_backend="mp",
        generator__pipeline__components={"lora_path": "a.safetensors"},
        generator__pipeline__experimental__attention_backend="VIDEO_SPARSE_ATTN_H3",
    )  # fmt: skip
    config = convert(alone).config
    assert config["lora"] == {"default": {"path": "a.safetensors"}}
    assert config["roles"]["all"]["attention"]["vsa"]["tile"] == 256


def test_every_setting_that_a_reason_names_is_one() -> None:
    properties = {name for section in json_schema()["$defs"].values() for name in section.get("properties", {})}
    properties |= set(json_schema()["properties"])
    reasons = {known.why for known in SETTINGS.values()} | set(WHOLE_SECTIONS.values()) | {BACKEND, DENSE, FAST, NO_VSA}
    named = {name for why in reasons for name in re.findall(r"\b(?:roles\.NAME|model|engine)(?:\.[a-z_]+)+", why)}
    assert len(named) > 10
    for name in named:
        assert all(part in properties for part in name.split(".") if part != "NAME"), name


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("typo", {"generator__engine__num_gpu": 1}, "generator.engine.num_gpu: expected a setting of FastVideo's run file, found an unknown one. Did you mean generator.engine.num_gpus?"),
    ("wrong section", {"generator__h3_disaggregated": True}, "Did you mean generator.pipeline.experimental.h3_disaggregated?"),
    ("unknown section", {"generator__pipelines": {"a": 1}}, "generator.pipelines.a: expected a setting"),
    ("section without settings", {"generator__engine": "ray"}, "generator.engine: expected a section, found ray"),
    ("shell variable", {"generator__pipeline__experimental__h3_dit_node_ip": "$B_IP"}, "Write $B_IP out"),
    ("no model", {"generator__model_path": None}, "generator.model_path: expected a text"),
    ("no node", {"generator__pipeline__experimental__h3_dit_node_ip": None}, "h3_dit_node_ip: expected a text because h3_disaggregated is set, found null"),
    ("one node", {"generator__pipeline__experimental__h3_dit_node_ip": "10.0.0.1"}, "found 10.0.0.1 for both"),
    ("not on ray", {"generator__engine__execution_backend": "mp"}, "expected ray because h3_disaggregated is set"),
    ("no generator", {"generator": None}, "generator: expected a section"),
    ("frames as text", {"request__sampling__num_frames": "many"}, "request: num_frames: expected a whole number"),
    ("one step", {"request__sampling__num_inference_steps": 1}, "request: steps: expected 2 or more"),
    ("prompts", {"request__prompt": ["a", "b"]}, "request.prompt: expected one text, found a list of 2"),
    ("another model", {"generator__pipeline__components": {"override_pipeline_cls_name": "WanPipeline"}}, "expected a pipeline of the H3 model, found WanPipeline"),
    ("sparsity of 1", {"generator__pipeline__experimental__attention_backend": "VIDEO_SPARSE_ATTN_H3", "generator__pipeline__experimental__VSA_sparsity": 1}, "VSA_sparsity: expected a number from 0 to less than 1, found 1"),
    ("another tile", {"generator__pipeline__experimental__attention_backend": "VIDEO_SPARSE_ATTN_H3", "generator__pipeline__experimental__VSA_tile_size": 128}, "VSA_tile_size: expected 64 or 256, found 128"),
    ("adapter without a name", {"generator__pipeline__components": {"lora_path": 3}}, "components.lora_path: expected a text, found 3"),
    ("pictures, not films", {"generator__pipeline__workload_type": "t2i"}, "expected t2v or i2v, found t2i"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "message"), WRONG, ids=[case[0] for case in WRONG])
def test_what_cannot_be_converted_is_an_error(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(foreign(**changes), origin="run.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("run.yaml: ")


def test_a_config_of_ours_is_told_so() -> None:
    with pytest.raises(
        ConfigError, match=r"^run\.yaml: generator: expected a section, found none, a config of splitreel already\."
    ):
        convert(yaml.safe_load(starter()), origin="run.yaml")


def test_workflows_follow_the_inputs() -> None:
    picture = convert(foreign(request__inputs__image_path="a.png"))
    assert picture.config["model"]["workflow"] == "fl2va"
    assert picture.request is not None
    assert picture.request["image"] == "a.png"
    ref = {"override_pipeline_cls_name": "MiniMaxH3Ref2VAModularPipeline"}
    assert convert(foreign(generator__pipeline__components=ref)).config["model"]["workflow"] == "ref2va"
    alone = convert(
        foreign(generator__pipeline__experimental__h3_disaggregated=False, generator__engine__execution_backend="mp")
    )
    assert alone.config["cluster"]["address"] == "local"
    assert "h3_disaggregated is not set" in lost(alone)["generator.pipeline.experimental.h3_dit_node_ip"]
    assert convert({"generator": {"model_path": "m"}}).request is None
