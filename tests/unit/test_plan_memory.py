"""Whether a model fits: the released checkpoint on machines that people have, and what is said when it does not."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from splitreel.config import MemorySpec, parse_config
from splitreel.config_tools.starter import starter
from splitreel.errors import CheckpointError, ConfigError, IncompleteCheckpoint, InvalidRequest
from splitreel.h3.released import RELEASED, Dims, FilmSize
from splitreel.plan.memory import GB, Machine, best_layout, describe_layout, forecast, parse_machine, workers_of
from splitreel.plan.report import memory_json, memory_text, shortfalls
from splitreel.plan.sizes import RELEASE, film_size, read_sizes, sizes_of
from splitreel.request import GenerateRequest, Stage

SIZES = sizes_of(RELEASE, ("t2va", "ref2va"))


def machines(*texts: str) -> list[Machine]:
    return [parse_machine(f"{'abcdefgh'[index]}={text}") for index, text in enumerate(texts)]


# Published sizes of the released components (GB, as stored), beside what the shipped table says.
PUBLISHED = {
    ("text_encoder", "bfloat16"): 66.7,
    ("vae", "float32"): 10.4,
    ("audio_vae", "float32"): 0.6,
    ("transformer", "bfloat16"): 66.3,
    ("transformer_ref", "bfloat16"): 66.3,
}


@pytest.mark.parametrize(("component", "dtype"), PUBLISHED)
def test_the_shipped_table_agrees_with_the_published_sizes(component: str, dtype: str) -> None:
    everything = MemorySpec(text_encoder="full")
    assert SIZES.bytes_of(component, dtype, everything) / GB == pytest.approx(PUBLISHED[component, dtype], abs=0.05)


def test_modules_pinned_to_float32_do_not_shrink() -> None:
    assert SIZES.bytes_of("audio_vae", "bfloat16") == SIZES.bytes_of("audio_vae", "float32")
    assert SIZES.bytes_of("vae", "bfloat16") / GB == pytest.approx(5.57, abs=0.01)


VERDICTS = [
    (("128:unified", "128:unified"), ("t2va",), True, "dit on a, encoder_decoder on b"),
    (("80", "80"), ("t2va",), True, "dit on a, encoder_decoder on b"),
    (("80", "80"), ("ref2va",), True, "dit on a, encoder_decoder on b"),
    (("48", "48"), ("t2va",), False, ""),
    (("24", "24", "24", "24"), ("t2va",), False, ""),
    (("128:unified",), ("t2va",), False, ""),
    (("192:unified",), ("t2va",), True, "all on a"),
    (("128:unified", "128:unified"), ("t2va", "ref2va"), False, ""),
    (("128:unified", "128:unified", "128:unified"), ("t2va", "ref2va"), True, "dit on a, dit_ref on b, encoder_decoder on c"),
    (("128:unified",) * 4, ("t2va",), True, "dit on a, encoder_decoder on b, dit on c, dit on d"),
    (("74", "60", "16"), ("t2va",), True, "encoder on b, dit on a, decoder on c"),
    (("24", "80", "80"), ("t2va",), True, "dit on b, encoder_decoder on c"),
]  # fmt: skip


@pytest.mark.parametrize(("memory", "workflows", "fits", "layout"), VERDICTS)
def test_verdicts_for_the_release(memory: tuple[str, ...], workflows: tuple[str, ...], fits: bool, layout: str) -> None:
    found = best_layout(machines(*memory), SIZES, FilmSize(), workflows)
    assert found.fits is fits
    if fits:
        assert sorted(describe_layout(found).split(", ")) == sorted(layout.split(", "))
        assert not shortfalls(found)
    else:
        assert shortfalls(found)
        assert found.ways_out


def test_two_of_74_gb_are_tight_and_two_of_80_too_small_for_15_seconds() -> None:
    found = best_layout(machines("74", "74"), SIZES, FilmSize(), ("t2va",))
    assert {load.machine.name: load.verdict for load in found.loads} == {"a": "tight", "b": "fits"}
    assert "Tight: a has" in memory_text(found)
    longest = best_layout(machines("80", "80"), SIZES, replace(FilmSize(), num_frames=345), ("t2va",))
    assert not longest.fits
    assert any(way.startswith("smaller films: up to ") for way in longest.ways_out)


def test_a_shortfall_is_named_with_its_largest_part() -> None:
    found = best_layout(machines("48", "48"), SIZES, FilmSize(), ("t2va",))
    assert shortfalls(found)[0] == (
        "a: encoder_decoder: expected 62.3 GB of memory, found 47.0 GB of 48.0 GB usable: 15.3 GB short. The largest part is "
        "text_encoder, 51.5 GB."
    )
    assert found.ways_out == (
        "together: the text encoder in 8 bits, which changes results: memory.quantization: {text_encoder: int8} for the role "
        "that encodes; the transformer in 8 bits, which changes results: memory.quantization: {transformer: int8} for the "
        "role that denoises",
    )
    one = best_layout(machines("128:unified"), SIZES, FilmSize(), ("t2va",))
    assert one.ways_out[0].startswith("the transformer's AdaLN as tables, with the same result: memory.adaln: tables")
    assert one.ways_out[3] == "one more machine of 128.0 GB: dit on a, encoder_decoder on one more"
    assert memory_json(one)["machines"][0]["verdict"] == "short"


def test_combinations_and_more_machines_are_tried() -> None:
    small = best_layout(machines("40", "40"), SIZES, FilmSize(), ("t2va",)).ways_out
    assert len(small) == 1
    assert small[0].startswith("together: the transformer's AdaLN as tables")
    assert small[0].count("memory.quantization") == 2
    smaller = best_layout(machines("32", "32"), SIZES, FilmSize(), ("t2va",)).ways_out
    assert smaller[0].startswith(
        "one more machine of 32.0 GB: dit on a, encoder on b, decoder on one more; with the trans"
    )
    none = best_layout(machines("24", "24"), SIZES, FilmSize(), ("t2va",)).ways_out
    assert none == (
        "larger machines: the evenest cut takes 62.3 GB for encoder_decoder and 72.7 GB for dit; with tables and 8 bits 27.3 "
        "GB for encoder and 34.0 GB for dit_decoder; a component is never split",
    )


def test_settings_that_are_named_fit_when_they_are_taken() -> None:
    nodes = machines("48", "48")
    roles = {
        "encoder_decoder": {"node": "a", "memory": {"quantization": {"text_encoder": "int8"}}},
        "dit": {"node": "b", "memory": {"quantization": {"transformer": "int8"}}},
    }
    config = parse_config({"model": {"path": RELEASE}, "roles": roles})
    assert forecast(workers_of(config, nodes), nodes, SIZES, FilmSize()).fits
    del roles["dit"]["memory"]
    config = parse_config({"model": {"path": RELEASE}, "roles": roles})
    left = forecast(workers_of(config, nodes), nodes, SIZES, FilmSize())
    assert left.ways_out[0].startswith("the transformer in 8 bits")


def test_one_spark_holds_the_whole_model_with_tables() -> None:
    config = parse_config(
        {
            "model": {"path": RELEASE},
            "roles": {"all": {"node": "a", "memory": {"adaln": "tables", "adaln_steps": [50]}}},
        }
    )
    nodes = machines("128:unified")
    found = forecast(workers_of(config, nodes), nodes, SIZES, FilmSize())
    (need,) = found.loads[0].needs
    assert found.fits
    # 66.3 GB less 26.1 of projections, and 49 steps' tables of three rows each.
    assert need.weights["transformer"] / GB == pytest.approx(66.28 - 26.08 + 0.474, abs=0.01)


def test_every_way_out_that_changes_the_config_fits_when_it_is_taken() -> None:
    config = parse_config(
        {
            "model": {"path": RELEASE, "workflow": ["t2va", "ref2va"]},
            "roles": {"encoder_decoder": {"node": "a", "dtype": "float32"}, "dit": {"node": "b"}},
        }
    )
    nodes = machines("128:unified", "128:unified")
    ways = forecast(workers_of(config, nodes), nodes, SIZES, FilmSize()).ways_out
    assert "one workflow at a time: model.workflow: t2va" not in ways  # the float32 encoder alone is too large still
    halved = [replace(worker, dtypes=(("default", "bfloat16"),)) for worker in workers_of(config, nodes)]
    assert "one workflow at a time: model.workflow: t2va" in forecast(halved, nodes, SIZES, FilmSize()).ways_out


def test_a_config_names_the_nodes() -> None:
    import yaml

    config = parse_config(yaml.safe_load(starter(("10.0.0.1", "10.0.0.2"))))
    nodes = [parse_machine("10.0.0.1=128:unified"), parse_machine("10.0.0.2=128:unified")]
    assert forecast(workers_of(config, nodes), nodes, SIZES, FilmSize()).fits
    with pytest.raises(
        ConfigError, match=r"roles\.dit: expected the memory of node 10\.0\.0\.2, found only that of 10\.0\.0\.1"
    ):
        workers_of(config, nodes[:1])


@pytest.mark.parametrize("text", ["a", "a=", "a=x", "a=0", "=80", "a=80:shared", "a=-1"])
def test_wrong_nodes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--node: expected NAME=GB"):
        parse_machine(text)


def test_units() -> None:
    assert parse_machine("a=80").bytes == 80 * 10**9
    assert parse_machine("a=80GiB").bytes == 80 * 2**30
    assert parse_machine("10.0.0.1=1.5GB:unified") == Machine("10.0.0.1", 1_500_000_000, unified=True)


def test_payloads_and_rows_of_a_film() -> None:
    dims, film = Dims(), FilmSize(480, 832)
    assert film.latent_frames(dims) == 37
    assert film.rows(dims) == 14_430 + 414 + 512
    assert film.encoded_bytes(dims) / 1e6 == pytest.approx(5.2, abs=0.05)
    assert film.denoised_bytes(dims) / 1e6 == pytest.approx(5.6, abs=0.05)


def sized(workflow: str = "t2va", **size: int) -> tuple[FilmSize, tuple[str, ...]]:
    return film_size(GenerateRequest(prompt="A lake.", **size), 512, (workflow,), Dims())  # type: ignore[arg-type]


def test_a_film_is_as_long_and_large_as_a_request_for_it() -> None:
    assert sized()[0] == FilmSize(768, 1344, 124)
    assert sized("fl2va", height=480, width=832)[0].condition_rows == 2 * 15 * 26
    rounded, (note,) = sized(height=480, width=832, num_frames=110)
    assert rounded.num_frames == 124
    assert note == "num_frames 110 was rounded up to 124 frames (5.167 s): the video VAE needs 17 n + 5"


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (
            {"height": 33, "width": 64},
            "height, width: expected multiples of 32, found 64 wide, 33 high. Nearest: 64 wide, 32 high.",
        ),
        ({"height": 32, "width": 1344}, "height, width: expected an aspect ratio between 1:4 and 4:1, found 42.00:1"),
        (
            {"height": 2048, "width": 4096},
            "height, width: expected at most 4128768 pixels, found 8388608 (4096 wide, 2048 high)",
        ),
        ({"height": 768}, "height, width: expected both or neither, found '768 x None'"),
        ({"num_frames": 5}, "num_frames: expected 124 to 345 frames of the form 17 n + 5"),
        ({"num_frames": 346}, "found 346, which rounds up to 362 frames or 15.083 s. Nearest: 345 frames (14.375 s)."),
        ({"num_frames": -3}, "num_frames: expected"),
    ],
)
def test_sizes_that_generate_refuses_are_refused(size: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        sized(**size)
    assert message in str(refused.value)


def write_component(folder: Path, tensors: dict[str, tuple[str, list[int], int]], config: dict[str, object]) -> Path:
    """A safetensors file with a true header and a hole for its numbers."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    file = folder / "model.safetensors"
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)
    return file


def test_sizes_are_read_from_headers_alone(tmp_path: Path) -> None:
    (tmp_path / "modular_model_index.json").write_text("{}")
    write_component(tmp_path / "text_encoder", {"a": ("BF16", [10, 10], 200)}, {"text_config": {"hidden_size": 7}})
    write_component(tmp_path / "vae", {"encoder.w": ("F32", [10], 40), "decoder.w": ("F32", [10], 40)}, {})
    write_component(tmp_path / "audio_vae", {"decoder.w": ("F32", [3], 12)}, {})
    file = write_component(tmp_path / "transformer", {"w": ("F32", [1000, 1000], 4_000_000)}, {})
    sizes = read_sizes(tmp_path, ("t2va",))
    assert {name: sizes.bytes_of(name, "bfloat16") for name in sizes.values} == {
        "audio_vae": 12,
        "vae": 60,
        "text_encoder": 200,
        "transformer": 2_000_000,
    }
    assert sizes.dims.text_dim == 7
    with file.open("r+b") as out:
        out.truncate(100)
    with pytest.raises(IncompleteCheckpoint, match="transformer: expected"):
        read_sizes(tmp_path, ("t2va",))


def test_a_model_that_is_nowhere_is_refused() -> None:
    for path in ("someone/else", "/no/such/folder"):
        with pytest.raises(CheckpointError, match=r"model\.path: expected a directory"):
            sizes_of(path, ("t2va",))


def test_every_stage_takes_more_for_a_longer_film() -> None:
    short, long = FilmSize(), FilmSize(num_frames=345)
    for stage in (Stage.DENOISE, Stage.DECODE):
        assert long.activation_bytes(stage, Dims()) > 2.5 * short.activation_bytes(stage, Dims())
    assert set(RELEASED) == {"text_encoder", "vae", "audio_vae", "transformer", "transformer_ref"}


def test_results_that_encode_keeps_count_where_they_lie() -> None:
    config = {"model": {"path": "tiny"}, "roles": {"encoder_decoder": {"device": "cuda"}, "dit": {"device": "cuda"}}}

    def kept(memory: str, role: dict[str, object]) -> list[int | None]:
        settings = parse_config({**config, "roles": {**config["roles"], "encoder_decoder": role}})  # type: ignore[dict-item]
        given = machines(memory, memory)
        found = forecast(workers_of(settings, given), given, SIZES, FilmSize(), search=False)
        return [need.weights.get("prompt_cache") for load in found.loads for need in load.needs]

    assert kept("128:unified", {"device": "cuda"}) == [1 << 28, None]
    assert kept("128:unified", {"device": "cuda", "prompt_cache_bytes": 5}) == [5, None]
    assert kept("128:unified", {"device": "cuda", "prompt_cache_bytes": 0}) == [None, None]
    assert kept("80", {"device": "cuda"}) == [None, None]
    assert kept("80", {"device": "cpu"}) == [1 << 28, None]
    best = best_layout(machines("128:unified", "128:unified"), SIZES, FilmSize(), ("t2va",))
    assert [need.worker.prompt_cache for load in best.loads for need in load.needs] == [0, 1 << 28]


GUIDE = Path(__file__).parents[2] / "docs" / "two-machines.md"


@pytest.mark.parametrize(
    ("row", "memory"),
    [
        ("2 × 128 GB unified", ("128:unified", "128:unified")),
        ("2 × 80 GB", ("80", "80")),
        ("2 × 48 GB", ("48", "48")),
        ("4 × 24 GB", ("24", "24", "24", "24")),
    ],
)
def test_the_guide_says_what_the_plan_says(row: str, memory: tuple[str, ...]) -> None:
    line = next(line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {row} |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    found = best_layout(machines(*memory), SIZES, FilmSize(), ("t2va",))
    loads = {need.worker.role: load for load in found.loads for need in load.needs}
    for role, cell in zip(("encoder_decoder", "dit"), cells[1:3], strict=True):
        load = loads[role]
        assert cell == f"{load.needed / GB:.1f} of {load.usable / GB:.1f} GB"
    assert cells[3].startswith("fits" if found.fits else "does not fit")
    assert ("tight" in cells[3]) == any(load.verdict == "tight" for load in found.loads)
