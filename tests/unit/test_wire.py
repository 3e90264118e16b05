"""Payloads cross with dtype, shape and bits; what is wrong is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from splitreel.errors import GeometryMismatch, InvalidPayload, SchemaMismatch
from splitreel.wire import FieldSpec, Header, Packed, Payload, PayloadSpec, pack, unpack

HEADER = Header("r1", "t2va", "encoded", (1, 0), "g0", {"seed": 7})
SPEC = PayloadSpec(
    "encoded",
    (1, 0),
    (
        FieldSpec("states", ("bfloat16", "float32"), (1, "rows", 8), finite=True, on_device=True),
        FieldSpec("tags", ("int64",), ("rows",)),
        FieldSpec("conditions", ("float32",), (1, 4, None), repeated=True, optional=True, finite=True),
    ),
    {"seed": int},
)


def payload(**changes: object) -> Payload:
    tensors = {"states": torch.randn(1, 5, 8).to(torch.bfloat16), "tags": torch.arange(5), **changes}
    return Payload(HEADER, {name: value for name, value in tensors.items() if value is not None})  # type: ignore[misc]


TENSORS = {
    "bfloat16": torch.randn(3, 5).to(torch.bfloat16),
    "float64 positions": torch.linspace(0, 1, 7, dtype=torch.float64),
    "int64 tags": torch.tensor([2**62, -1]),
    "no rows": torch.empty(0, 4),
    "scalar": torch.tensor(1.5),
    "bool": torch.tensor([True, False, True]),
    "NaN bits": torch.tensor([float("nan"), -0.0, float("inf")]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_round_trip_keeps_dtype_shape_and_bits(name: str) -> None:
    sent = TENSORS[name]
    packed = pack(Payload(HEADER, {"x": sent, "list": [sent, sent]}))
    got = unpack(packed)
    assert got.header == HEADER
    for tensor in (got.tensors["x"], *got.tensors["list"]):
        assert isinstance(tensor, torch.Tensor)
        assert tensor.dtype == sent.dtype
        assert tensor.shape == sent.shape
        assert np.array_equal(tensor.reshape(-1).view(torch.uint8).numpy(), sent.reshape(-1).view(torch.uint8).numpy())


def test_read_only_buffers_arrive_without_a_copy() -> None:
    packed = pack(payload())
    for buffer in packed.buffers:
        buffer.flags.writeable = False
    got = unpack(packed).tensors["states"]
    assert isinstance(got, torch.Tensor)
    assert got.data_ptr() == packed.buffers[0].__array_interface__["data"][0]


def test_a_view_takes_only_its_own_bytes_along() -> None:
    whole = torch.randn(1000, 8)
    packed = pack(Payload(HEADER, {"x": whole[:2]}))
    assert sum(buffer.nbytes for buffer in packed.buffers) == 2 * 8 * 4
    assert packed.num_bytes < 2 * 8 * 4 + 400


def test_bytes_are_about_the_tensors_bytes() -> None:
    big = payload(states=torch.zeros(1, 5000, 8).to(torch.bfloat16), tags=torch.zeros(5000, dtype=torch.int64))
    assert big.num_bytes == 5000 * 8 * 2 + 5000 * 8
    assert pack(big).num_bytes <= 1.01 * big.num_bytes


def test_a_good_payload_passes() -> None:
    SPEC.check(payload(conditions=[torch.zeros(1, 4, 2), torch.zeros(1, 4, 9)]), geometry="g0")
    newer = Payload(replace(HEADER, schema=(1, 3)), {**payload().tensors, "news": torch.zeros(1)})
    SPEC.check(newer, geometry="g0")


BAD = [
    ("missing", {"tags": None}, "tags: expected to be present, found nothing"),
    ("unknown", {"extra": torch.zeros(1)}, "extra: expected one of states, tags, conditions, found an unknown field"),
    ("dtype", {"tags": torch.zeros(5)}, "tags: expected dtype int64, found float32"),
    ("rank", {"tags": torch.zeros(5, 1, dtype=torch.int64)}, r"tags: expected 1 dims \(rows\), found \(5, 1\)"),
    ("size", {"states": torch.zeros(1, 5, 9)}, r"states: expected dims \(1, rows, 8\) with 8 = 8, found \(1, 5, 9\)"),
    ("rows differ", {"tags": torch.arange(6)}, r"tags: expected dims \(rows\) with rows = 5, found \(6,\)"),
    ("NaN", {"states": torch.full((1, 5, 8), float("nan"))}, "states: expected finite values, found 40 of 40 not finite"),
    ("list wanted", {"conditions": torch.zeros(1, 4, 2)}, "conditions: expected a list of tensors, found one tensor"),
    ("inner", {"conditions": [torch.zeros(1, 4, 2), torch.zeros(1, 3, 2)]}, r"conditions\[1\]: expected dims"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), BAD, ids=[case[0] for case in BAD])
def test_a_bad_payload_names_the_field(name: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidPayload, match=message):
        SPEC.check(payload(**change), geometry="g0")


def test_headers_are_checked() -> None:
    with pytest.raises(SchemaMismatch, match=r"expected wire schema 1\.0, found 2\.0"):
        SPEC.check(Payload(replace(HEADER, schema=(2, 0)), payload().tensors), geometry="g0")
    with pytest.raises(GeometryMismatch):
        SPEC.check(payload(), geometry="g1")
    with pytest.raises(InvalidPayload, match="kind: expected encoded, found denoised"):
        SPEC.check(Payload(replace(HEADER, kind="denoised"), payload().tensors), geometry="g0")
    with pytest.raises(InvalidPayload, match="seed: expected int, found str"):
        SPEC.check(Payload(replace(HEADER, values={"seed": "7"}), payload().tensors), geometry="g0")
    with pytest.raises(InvalidPayload, match="seed: expected to be present"):
        SPEC.check(Payload(replace(HEADER, values={}), payload().tensors), geometry="g0")


def test_everything_is_placed_on_the_receivers_device_in_one_place() -> None:
    placed = SPEC.place(payload(), "meta")
    assert placed.tensors["states"].device.type == "meta"  # type: ignore[union-attr]
    assert placed.tensors["tags"].device.type == "cpu"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "packed",
    [
        Packed(b"not json", ()),
        Packed(b"{}", ()),
        Packed(pack(payload()).header, ()),
        Packed(pack(payload()).header, (np.zeros(3, np.uint8), np.zeros(40, np.uint8))),
        Packed(pack(payload()).header, (*pack(payload()).buffers, np.zeros(1, np.uint8))),
    ],
)
def test_damaged_wire_forms_are_refused(packed: Packed) -> None:
    with pytest.raises(InvalidPayload):
        unpack(packed)
