"""`--lora` and `lora` fields: what they mean, and what is refused before anything starts."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from configs import roles_config
from splitreel import AdapterError, Config, GenerateRequest, InvalidRequest, LoraUse
from splitreel.config import parse_config
from splitreel.errors import ConfigError
from splitreel.lora import checked_alpha
from splitreel.roles.adapters.files import find_adapter
from splitreel.serve.cli.adapters import check_names, read_adapters
from splitreel.serve.cli.failures import Refused, exit_code_of
from splitreel.serve.cli.inputs import Order
from splitreel.serve.jobs.spec import restore_request, store_request


@pytest.fixture
def config(tmp_path: Path) -> Config:
    plain = roles_config("local").model_dump()
    return parse_config({**plain, "lora": {"style": {"path": "owner/style", "scale": 0.3, "active": False}}})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "turbo=2.safetensors"
    save_file({"proj_in.lora_A.weight": torch.zeros(1, 4)}, path)
    return path


def test_files_names_and_scales(config: Config, file: Path) -> None:
    changed, uses = read_adapters([f"{file}=0.5", str(file), "style", "hf://owner/name/other.safetensors=-1"], config)
    assert uses == (
        LoraUse("turbo=2", 0.5),
        LoraUse("turbo=2-2", 1.0),
        LoraUse("style", 0.3),
        LoraUse("other", -1.0),
    )
    assert [(name, item.path, item.active) for name, item in changed.lora.items()] == [
        ("style", "owner/style", False),
        ("turbo=2", str(file), False),
        ("turbo=2-2", str(file), False),
        ("other", "hf://owner/name/other.safetensors", False),
    ]
    request = GenerateRequest(prompt="A lake.", lora=uses)
    assert [use.name for use in request.lora or ()] == ["other", "style", "turbo=2", "turbo=2-2"], "in one order"
    check_names([Order(request, Path("x.mp4"))], changed)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The repositories that the hub was asked for; it has none of them."""
    found: list[str] = []

    def download(repo_id: str, **options: object) -> str:
        found.append(repo_id)
        raise OSError("not found there")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loras").mkdir()
    return found


@pytest.mark.parametrize(
    "source",
    [
        "/nowhere/turbo",
        "./turbo",
        "../turbo",
        "./a/turbo.safetensors",
        "~/turbo",
        "turbo",
        "turbo.safetensors",
        "other/turbo.safetensors",
        "owner/name/file.safetensors",
        "a/b/c",
        "loras/turbo",  # `loras` is a folder here
        "other/turbo/",
        "C:\\loras\\turbo",
        ".hidden/turbo",
    ],
)
def test_what_looks_like_a_path_is_never_asked_of_the_hub(asked: list[str], config: Config, source: str) -> None:
    with pytest.raises(AdapterError, match=f"found {re.escape(repr(source))}, which is nothing on this machine"):
        find_adapter(source)
    with pytest.raises(AdapterError, match="nothing on this machine"):
        read_adapters([source], config)
    assert asked == []


def test_hub_ids_are(asked: list[str], config: Config) -> None:
    for source in ("owner/my.lora-v1.5", "hf://owner/name", "hf://owner/name/a/b.safetensors"):
        read_adapters([source], config)
        assert asked == [], "the command line leaves that to the session"
    for source in ("owner/name", "hf://owner/name", "hf://owner/name/a/b.safetensors"):
        with pytest.raises(AdapterError, match=r"could not be fetched from the hub: OSError: not found there"):
            find_adapter(source)
    assert asked == ["owner/name"] * 3
    with pytest.raises(
        AdapterError, match=r"expected hf://owner/name or hf://owner/name/file.safetensors, found 'hf://x'"
    ):
        find_adapter("hf://x")


def test_refused_before_anything_starts(config: Config, file: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(file.read_bytes()[:-3])
    for text, kind, message in (
        (f"{file}=nan", InvalidRequest, "expected a finite number as scale, found nan"),
        ("style=much", InvalidRequest, "--lora: expected a number after =, found 'much'"),
        ("nowhere", AdapterError, "nothing on this machine"),
        (str(tmp_path / "broken.safetensors"), AdapterError, r"lora: expected \d+ bytes in"),
    ):
        with pytest.raises(kind, match=message) as caught:
            read_adapters([text], config)
        assert exit_code_of(caught.value) == 2
    order = Order(GenerateRequest(prompt="A lake.", lora=["turbo"]), Path("x.mp4"), "p.jsonl line 3")
    with pytest.raises(
        Refused, match=r"p\.jsonl line 3: lora: expected an adapter of the config or of --lora \(style\)"
    ):
        check_names([order], config)


def test_requests_take_names_mappings_and_uses() -> None:
    request = GenerateRequest.from_dict(
        {"prompt": "A lake.", "lora": ["b", {"name": "a", "scale": 2}, LoraUse("c", 0.5)]}
    )
    assert request.lora == (LoraUse("a", 2.0), LoraUse("b", 1.0), LoraUse("c", 0.5))
    assert GenerateRequest(prompt="A lake.").lora is None
    for wrong in ({"name": "a"}, [{"scale": 1.0}], [{"name": "a", "weight": 1}], [3], ["a", "a"], [""], [("a", 1.0)]):
        with pytest.raises(InvalidRequest, match="lora"):
            GenerateRequest(prompt="A lake.", lora=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="expected a finite number"):
        LoraUse("a", math.inf)


def test_a_stored_job_keeps_its_adapters(tmp_path: Path) -> None:
    request = GenerateRequest(prompt="A lake.", lora=["b", LoraUse("a", 0.5)])
    plain = json.loads(json.dumps(store_request(request, tmp_path)[0]))
    assert restore_request(plain, tmp_path, "r1").lora == request.lora


def test_the_config_refuses_what_it_does_not_know() -> None:
    plain = roles_config("local").model_dump()
    with pytest.raises(ConfigError, match=r"lora\.style\.scal.*Did you mean scale"):
        parse_config({**plain, "lora": {"style": {"path": "a.safetensors", "scal": 1.0}}})
    with pytest.raises(ConfigError, match=r"lora\.style\.alpha.*expected a number other than 0"):
        parse_config({**plain, "lora": {"style": {"path": "a.safetensors", "alpha": 0}}})
    with pytest.raises(InvalidRequest, match=r"lora alpha: expected a number other than 0, found 0"):
        checked_alpha(0, "lora alpha")
    with pytest.raises(ConfigError, match=r"lora\.style\.scale"):
        parse_config({**plain, "lora": {"style": {"path": "a.safetensors", "scale": math.nan}}})
