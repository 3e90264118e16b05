"""What `plan` counts beside the checkpoint's own components, against what a loaded role says that it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from diffusers import MiniMaxH3Transformer3DModel
from typer.testing import CliRunner

from configs import roles_config
from lora_files import ALPHA, make_factors, tensors_of, write
from splitreel import AdapterError
from splitreel.config import Config, parse_config
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.released import RELEASED, FilmSize
from splitreel.h3.tiny import cached_tiny, make_tiny
from splitreel.lora import InstallAdapter
from splitreel.plan.adapters import with_settings
from splitreel.plan.memory import Machine, forecast, workers_of
from splitreel.plan.sizes import Sizes, sizes_of
from splitreel.roles.adapters.files import read_adapter
from splitreel.roles.role import Role
from splitreel.serve.cli.app import app

pytestmark = pytest.mark.timeout(120)
MACHINES = [Machine("a", 10**9), Machine("b", 10**9)]


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("gated") / "model", vsa_gates=True)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformer = MiniMaxH3Transformer3DModel.from_pretrained(str(cached_tiny()), subfolder="transformer")
    tensors = tensors_of(make_factors(transformer), alpha=ALPHA)
    return write(tmp_path_factory.mktemp("adapters") / "turbo.safetensors", tensors)


def config(model: Path | str, lora: dict[str, Any] | None = None, **dit: Any) -> Config:
    plain = roles_config("local", str(model), ["t2va", "ref2va"], dit=dit).model_dump()
    return parse_config({**plain, "lora": lora or {}})


def planned(settings: Config) -> tuple[dict[str, int], Sizes]:
    """The DiT's parts."""
    workflows = settings.model.workflows
    sizes = with_settings(sizes_of(settings.model.path, workflows), settings, workflows, online=False)
    found = forecast(workers_of(settings, MACHINES), MACHINES, sizes, FilmSize(64, 128, 124, 8))
    needs = {need.worker.role: need.weights for load in found.loads for need in load.needs}
    assert not any(name.startswith("lora") for name in needs["encoder_decoder"])
    return needs["dit"], sizes


def loaded(settings: Config) -> Role:
    role = Role(MiniMaxH3(), settings.role_spec("dit"))
    role.prepare()
    role.load()
    return role


@pytest.mark.parametrize("memory", [{}, {"quantization": {"transformer": "int8"}}], ids=["plain", "int8"])
def test_gates_count_where_they_are_loaded(gated: Path, memory: Any) -> None:
    """And only there: they are in the files of both."""
    parts: dict[str, dict[str, int]] = {}
    held: dict[str, dict[str, int]] = {}
    for case, vsa in (("sparse", {}), ("dense", None)):
        settings = config(gated, attention={"vsa": vsa}, memory=memory)
        parts[case], sizes = planned(settings)
        held[case] = loaded(settings).resident
        assert {sizes.values[name].gates for name in ("transformer", "transformer_ref")} == {3 * 128 * 64}
    for name in ("transformer", "transformer_ref"):
        more = held["sparse"][name] - held["dense"][name]
        # Float32, or one byte and a scale of five bytes per row.
        assert more == (3 * 128 * (64 + 5) if memory and name == "transformer" else 4 * 3 * 128 * 64)
        assert parts["sparse"][name] - parts["dense"][name] == more
        if not memory:  # beside the files' tensors a component holds its buffers, less than a kilobyte here
            assert parts["sparse"][name] == pytest.approx(held["sparse"][name], abs=1000)


def test_adapters_count_on_the_workers_that_hold_their_target(adapter: Path) -> None:
    lora = {"turbo": {"path": str(adapter)}, "ref": {"path": str(adapter), "target": "transformer_ref"}}
    parts, _ = planned(config("tiny", lora))
    content = read_adapter(str(adapter))
    receipt = loaded(config("tiny")).adapters.carry_out(
        InstallAdapter("turbo#1", "turbo", str(adapter), content.sha256, "transformer"), lambda: content.content
    )
    assert receipt is not None
    assert parts["lora turbo"] == parts["lora ref"]
    # The file repeats the factor that query, key and value share; in memory too, as three tensors.
    assert parts["lora turbo"] == receipt.num_bytes


def test_on_the_hub_it_is_said_when_it_is_not_counted(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    parts, sizes = planned(config("tiny", {"far": {"path": "someone/an-adapter"}}))
    assert "lora far" not in parts
    assert sizes.source.endswith("; lora far is not counted: someone/an-adapter is not in the hub's cache here")
    with pytest.raises(AdapterError, match="nothing on this machine"):
        planned(config("tiny", {"gone": {"path": str(tmp_path / "gone.safetensors")}}))


def test_ways_out_and_the_command_count_them_too(adapter: Path, tmp_path: Path) -> None:
    file = tmp_path / "splitreel.yaml"
    file.write_text(json.dumps(config("tiny", {"turbo": {"path": str(adapter)}}).model_dump(mode="json")))
    done = CliRunner().invoke(
        app, ["plan", "--config", str(file), "--node", "a=80", "--node", "b=80", "--offline", "--json"]
    )
    assert done.exit_code == 0, done.output
    workers = [worker for item in json.loads(done.output)["memory"]["machines"] for worker in item["workers"]]
    assert [worker["role"] for worker in workers if "lora turbo" in worker["weights"]] == ["dit"]


def test_the_released_table_has_no_gates() -> None:
    values = RELEASED["transformer"]
    assert values.without_gates() == values
    gates = replace(values, plain=values.plain + 50, matrices=values.matrices + 50, gates=50, gate_rows=0)
    assert gates.without_gates() == values
