"""Adapters as users change them, on the local backend and on Ray alike: per request, between requests, on all or none."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import MiniMaxH3Blocks, MiniMaxH3Transformer3DModel
from safetensors.torch import load_file, save_file

from configs import roles_config
from lora_files import Factors, by_hand, changed, make_factors, tensors_of, write
from splitreel import AdapterError, GenerateRequest, GenerateResult, InvalidRequest, LoraUse, Session
from splitreel.config import parse_config
from splitreel.h3.tiny import cached_tiny
from splitreel.roles.adapters.files import AdapterContent

pytestmark = pytest.mark.timeout(180)


def request(**fields: Any) -> GenerateRequest:
    return GenerateRequest(**{"prompt": "A lake.", "steps": 2, "seed": 4, "output": "tensor", **fields})


def film(result: GenerateResult) -> bytes:
    assert result.tensor is not None
    assert result.waveform is not None
    return result.tensor.tobytes() + result.waveform.tobytes()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], dict[str, Factors]]:
    """Three adapters that differ by their numbers."""
    folder = tmp_path_factory.mktemp("adapters")
    transformer = MiniMaxH3Transformer3DModel.from_pretrained(str(cached_tiny()), subfolder="transformer")
    factors = {name: make_factors(transformer, seed) for seed, name in enumerate(("one", "two", "three"))}
    return {name: write(folder / f"{name}.safetensors", tensors_of(pairs)) for name, pairs in factors.items()}, factors


def test_a_film_equals_the_unsplit_film_of_weights_changed_by_hand(
    session: Session, geometry_name: str, files: tuple[dict[str, Path], dict[str, Factors]]
) -> None:
    """Local and Ray. Unloading, scale 0 and an empty list give the base film, bit for bit."""
    if geometry_name != "released":
        pytest.skip("one geometry is enough")
    paths, factors = files
    base = film(session.generate(request()))
    receipt = session.lora.load(paths["one"], scale=0.5)
    assert receipt.name == "one"
    assert receipt.workers == ("dit",)
    assert len(receipt.sha256) == 64
    made = session.generate(request())
    assert made.effective.lora == (LoraUse("one", 0.5),)
    root = str(cached_tiny())
    unsplit = MiniMaxH3Blocks().get_workflow("t2va").init_pipeline(root)
    unsplit.load_components(pretrained_model_name_or_path=root, dtype=torch.float32)
    changed(unsplit.transformer, by_hand(factors["one"], 0.5, alpha=None))
    asked = request()
    state = unsplit(
        prompt=asked.prompt,
        num_frames=120,
        num_inference_steps=asked.steps,
        generator=torch.Generator("cpu").manual_seed(4),
        output_type="pt",
    )
    assert np.abs(state.get("videos")[0].numpy() - made.tensor).max() <= 1e-5
    assert np.abs(state.get("audio")[0].numpy() - made.waveform).max() <= 1e-5
    assert film(made) != base
    session.lora.fuse()
    assert session.lora.list()[0].fused
    assert film(session.generate(request())) == film(made), "fusing changes no bit"
    with pytest.raises(InvalidRequest, match=r"expected the fused adapters \(one=0\.5\) or no word of any, found none"):
        session.submit(request(lora=[]))
    with pytest.raises(AdapterError, match="expected no fused adapters for unloading one"):
        session.lora.unload("one")
    session.lora.unfuse()
    assert film(session.generate(request(lora=[]))) == base

    async def elsewhere() -> None:
        await session.aio.lora.set([])
        assert [(item.name, item.scale) for item in await session.aio.lora.list()] == [("one", None)]
        await session.aio.lora.unload("one")

    asyncio.run(elsewhere())
    assert film(session.generate(request())) == base
    assert session.lora.list() == ()


def two_replicas(**dit: Any) -> Any:
    role = {"device": "cpu", "dtype": "float32", "threads": 1}
    return parse_config(
        {
            "model": {"path": "tiny", "workflow": ["t2va", "ref2va"]},
            "cluster": {"address": "local"},
            "roles": {
                "encoder_decoder": role,
                "left": {**role, "stages": ["denoise"]},
                "right": {**role, "stages": ["denoise"], **dit},
            },
            "engine": {"start_timeout": 120.0},
        }
    )


@pytest.fixture(scope="module")
def replicas() -> Iterator[Session]:
    with Session(two_replicas()) as opened:
        yield opened


@pytest.fixture(scope="module")
def base(replicas: Session) -> bytes:
    return film(replicas.generate(request()))


@pytest.fixture(autouse=True)
def _nothing_loaded(replicas: Session) -> Iterator[None]:
    yield
    for item in replicas.lora.list():
        replicas.lora.unload(item.name)


def test_adapters_per_request_alternate_in_the_pipeline(
    replicas: Session, base: bytes, files: tuple[dict[str, Path], dict[str, Factors]]
) -> None:
    """Each pipelined film equals its solo film, whichever replica made it; changes fall between requests."""
    one = replicas.lora.load(files[0]["one"])
    assert one.workers == ("left", "right")
    replicas.lora.load(files[0]["two"], "two", active=False)
    choices: list[Any] = [[], None, [{"name": "one", "scale": 0.5}, {"name": "two", "scale": -0.3}]]
    solo = [base, *(film(replicas.generate(request(lora=lora))) for lora in choices[1:])]
    assert len(set(solo)) == 3
    jobs = [(index, replicas.submit(request(lora=choices[index]))) for index in (0, 1, 2, 1, 0, 2)]
    replicas.lora.set("two", 0.25)  # from here on, and not for those under way
    late = replicas.submit(request())
    replicas.lora.unload("one")  # those under way keep it
    results = [(index, job.result(120)) for index, job in jobs]
    workers: dict[int, set[str]] = {}
    for index, result in results:
        assert film(result) == solo[index], index
        denoise = next(timing for timing in result.timings if timing.stage == "denoise")
        workers.setdefault(index, set()).add(denoise.worker)
    assert {"left", "right"} <= set().union(*workers.values()), "both replicas worked"
    assert late.effective.lora == (LoraUse("two", 0.25),)
    assert film(late.result(120)) not in solo
    with pytest.raises(InvalidRequest, match=r"expected a loaded adapter \(two\), found 'one'"):
        replicas.check(request(lora=["one"]))


def test_names_and_scales_are_checked_before_anything_starts(
    replicas: Session, files: tuple[dict[str, Path], dict[str, Factors]]
) -> None:
    with pytest.raises(InvalidRequest, match=r"expected a loaded adapter \(none is\), found 'turbo'"):
        replicas.submit(request(lora=["turbo"]))
    for wrong in (math.nan, math.inf, "1", True):
        with pytest.raises(InvalidRequest, match="expected a finite number as scale"):
            request(lora=[{"name": "one", "scale": wrong}])
    with pytest.raises(InvalidRequest, match="expected a finite number as scale, found nan"):
        replicas.lora.load(files[0]["one"], scale=math.nan)
    with pytest.raises(InvalidRequest, match="expected each adapter once, found 'one' twice"):
        request(lora=["one", "one"])
    with pytest.raises(InvalidRequest, match=r"expected a list of adapters, found 'one'"):
        request(lora="one")
    with pytest.raises(InvalidRequest, match="expected a scale for each of 2 names, found 1"):
        replicas.lora.set(["one", "two"], [1.0])
    assert replicas.lora.list() == ()
    replicas.lora.load(files[0]["one"])
    with pytest.raises(AdapterError, match="expected a new name, found it loaded"):
        replicas.lora.load(files[0]["two"], "one")
    with pytest.raises(AdapterError, match="expected a target that this deployment denoises with"):
        replicas.lora.load(files[0]["two"], target="vae")
    replicas.lora.load(files[0]["two"], target="transformer_ref")
    with pytest.raises(
        InvalidRequest, match="expected an adapter of transformer, which t2va denoises with, found 'two'"
    ):
        replicas.submit(request(lora=["two"]))
    assert replicas.check(request()).lora == (LoraUse("one"),), "the standing ones are those of the workflow"


def test_a_failure_on_one_replica_leaves_all_unchanged(
    tmp_path: Path, base: bytes, files: tuple[dict[str, Path], dict[str, Factors]]
) -> None:
    """One replica's transformer has a block less: the adapter does not fit there, so nobody gets it. Nor is it kept, not
    even until the garbage collector comes by.
    """
    copy = tmp_path / "model"
    shutil.copytree(cached_tiny(), copy)
    shorten(copy / "transformer", blocks=2)
    with Session(two_replicas(model_path=str(copy))) as session:
        hosts = session._engine.backend._hosts  # type: ignore[attr-defined]
        bound = {name: hosts[name]._role.adapters._components["transformer"].bound for name in ("left", "right")}
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(
                AdapterError, match=r"role right, lora one, .*do not: transformer_blocks\.2\.adaln_proj"
            ):
                session.lora.load(files[0]["one"])
            assert not [item for item in gc.get_objects() if type(item) is AdapterContent]
        finally:
            gc.enable()
        assert session.lora.list() == ()
        assert bound == {"left": {}, "right": {}}
        fits = {key: value for key, value in tensors_of(files[1]["one"]).items() if "_blocks.2." not in key}
        session.lora.load(write(tmp_path / "fits.safetensors", fits), "one")
        assert {len(item) for item in bound.values()} == {1}


def shorten(folder: Path, blocks: int) -> None:
    """Drop the last blocks of a transformer on disk."""
    config = json.loads((folder / "config.json").read_text())
    config["num_layers"] = blocks
    (folder / "config.json").write_text(json.dumps(config))
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(shard)
        shard.unlink()
    (folder / "diffusion_pytorch_model.safetensors.index.json").unlink()
    kept = {
        key: value
        for key, value in tensors.items()
        if not any(key.startswith(f"transformer_blocks.{index}.") for index in range(blocks, 100))
    }
    save_file(kept, folder / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})


def test_a_file_that_changed_keeps_a_restarted_worker_from_serving(
    tmp_path: Path, replicas: Session, files: tuple[dict[str, Path], dict[str, Factors]]
) -> None:
    """What requests were promised cannot be had there: better no worker than another film."""
    path = tmp_path / "one.safetensors"
    shutil.copy(files[0]["one"], path)
    replicas.lora.load(path)
    worker = next(item for item in replicas._engine.backend.workers if item.name == "left")
    replicas._wait(replicas._adapters.restore(worker))
    shutil.copy(files[0]["two"], path)
    with pytest.raises(
        AdapterError, match=r"as it was loaded \(sha256 [0-9a-f]{12}\), found it changed. Put the file back"
    ):
        replicas._wait(replicas._adapters.restore(worker))


def test_adapters_of_the_config(files: tuple[dict[str, Path], dict[str, Factors]]) -> None:
    """Loaded as the session opens; one that cannot be is what keeps it from opening."""
    plain = roles_config("local").model_dump()
    config = parse_config({**plain, "lora": {"style": {"path": str(files[0]["one"]), "scale": 0.5}}})
    with Session(config) as session:
        assert [(item.name, item.scale) for item in session.lora.list()] == [("style", 0.5)]
        assert session.check(request()).lora == (LoraUse("style", 0.5),)
    bad = parse_config({**plain, "lora": {"style": {"path": "nowhere/at/all.bin"}}})
    with pytest.raises(AdapterError, match=r"found 'nowhere/at/all\.bin', which is nothing on this machine"):
        Session(bad)


Spoil = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
FLUX = {f"transformer.single_transformer_blocks.0.attn.to_q.lora_{half}.weight": torch.ones(4, 4) for half in "AB"}
FOREIGN: dict[str, tuple[Spoil, str]] = {
    "another model's": (lambda good: FLUX, "found none among 2 keys: transformer.single_transformer_blocks.0"),
    "of other sizes": (
        lambda good: {**good, "proj_in.lora_A.weight": torch.ones(4, 8)},
        r"expected proj_in\.lora_A\.weight of shape \(rank, 96\), found \(4, 8\)",
    ),
    "for the other transformer": (
        lambda good: {f"transformer_ref.{key}": value for key, value in good.items()},
        "keys that begin with transformer_ref",
    ),
    "with a key too many": (
        lambda good: {**good, "transformer_blocks.0.attn.to_gate_compress.set_weight": torch.ones(128, 64)},
        "found 1 of .* do not: transformer_blocks.0.attn.to_gate_compress.set_weight .*has no gates",
    ),
    "with alpha 0": (
        lambda good: {**good, "proj_in.alpha": torch.tensor(0.0)},
        "proj_in: expected an alpha other than 0",
    ),
    "a checkpoint": (lambda good: {"proj_in.weight": torch.ones(4, 4)}, "It is no adapter"),
}


@pytest.mark.parametrize("kind", list(FOREIGN))
def test_a_foreign_file_is_refused_before_anything_loads(
    tmp_path: Path, files: tuple[dict[str, Path], dict[str, Factors]], kind: str
) -> None:
    spoil, words = FOREIGN[kind]
    path = write(tmp_path / "foreign.safetensors", spoil(tensors_of(files[1]["one"])))
    config = parse_config({**roles_config("local").model_dump(), "lora": {"style": {"path": str(path)}}})
    loaded: list[Any] = []
    with pytest.raises(AdapterError, match=words) as caught:
        Session(config, on_load=loaded.append)
    assert loaded == []
    assert f"lora style, {path}: " in str(caught.value)


def test_what_is_closed_on_a_role_is_known_before_it_loads(
    tmp_path: Path, files: tuple[dict[str, Path], dict[str, Factors]]
) -> None:
    """AdaLN as tables, and quantised projections, take no updates; the same words as after loading."""
    loaded: list[Any] = []
    for memory, words in (
        ({"adaln": "tables"}, "this worker holds AdaLN as tables"),
        ({"quantization": {"transformer": "int8"}}, "its weights are quantised on this worker"),
    ):
        plain = roles_config("local", dit={"memory": memory}).model_dump()
        config = parse_config({**plain, "lora": {"style": {"path": str(files[0]["one"])}}})
        with pytest.raises(AdapterError, match=words):
            Session(config, on_load=loaded.append)
    assert loaded == []
