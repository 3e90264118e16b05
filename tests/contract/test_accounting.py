"""What is reported of payloads is what the tensors weigh, for every workflow; and the parts of a request add up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from configs import roles_config
from samples import Samples
from splitreel import AudioReference, GenerateRequest, ImageReference, Session, VideoReference
from splitreel.h3.media import prepare
from splitreel.h3.model import MiniMaxH3
from splitreel.observe.accounts import FieldAccount
from splitreel.request import Stage
from splitreel.roles.control import StageControl
from splitreel.roles.role import Role
from splitreel.wire import Payload

WORKFLOWS = ["t2va", "fl2va", "ref2va"]


def requests(samples: Samples) -> dict[str, GenerateRequest]:
    plain: dict[str, Any] = {"prompt": "A lake.", "steps": 3, "seed": 3, "output": "tensor"}
    references = [ImageReference(samples.first), VideoReference(samples.clip), AudioReference(samples.mono)]
    return {
        "t2va": GenerateRequest(**plain),
        "fl2va": GenerateRequest(**plain, image=samples.first, last_image=samples.last),
        "ref2va": GenerateRequest(**plain, references=references),
    }


@pytest.fixture(scope="module")
def local_session() -> Any:
    with Session(roles_config("local", workflow=WORKFLOWS)) as session:
        yield session


@pytest.fixture(scope="module")
def role() -> Role:
    config = roles_config("local", workflow=WORKFLOWS)
    spec = config.role_spec("encoder_decoder")
    both = {**spec.__dict__, "stages": tuple(Stage)}
    made = Role(MiniMaxH3(), type(spec)(**both))
    made.prepare()
    made.load()
    return made


def weighed(payload: Payload) -> list[tuple[str, tuple[int, ...], str, int]]:
    """Every tensor by hand: elements times bytes of one."""
    sizes = {torch.float32: 4, torch.int64: 8, torch.uint8: 1}
    found = []
    for name, value in payload.tensors.items():
        items = (
            [(name, value)] if isinstance(value, torch.Tensor) else [(f"{name}[{i}]", t) for i, t in enumerate(value)]
        )
        for item, tensor in items:
            count = 1
            for dim in tensor.shape:
                count *= dim
            found.append((item, tuple(tensor.shape), str(tensor.dtype).split(".")[1], count * sizes[tensor.dtype]))
    return found


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_bytes_are_those_of_the_tensors(workflow: str, local_session: Session, role: Role, samples: Samples) -> None:
    request = requests(samples)[workflow]
    _, payload = prepare(request, local_session.geometry, tuple(WORKFLOWS))
    payloads = [payload]
    for stage in Stage:
        payloads.append(role.run(stage, role.receive(stage, payloads[-1]), StageControl("r", stage)))
    timings = local_session.generate(request).timings
    names = ["driver-to-encode", "encode-to-denoise", "denoise-to-decode", "decode-to-driver"]
    assert [hop.name for hop in timings.hops] == names, "each hop is reported once"
    for hop, travelled in zip(timings.hops, payloads, strict=True):
        account = hop.payload
        assert account is not None
        by_hand = weighed(travelled)
        assert [(f.name, f.dims, f.dtype, f.num_bytes) for f in account.fields] == by_hand
        assert {f.device for f in account.fields} <= {"cpu"}
        assert account.logical_bytes == travelled.num_bytes == sum(item[3] for item in by_hand)
        assert 0 < account.wire_bytes - account.logical_bytes < 4000, "the rest is the header"
    assert isinstance(timings.hops[1].payload.fields[0], FieldAccount)  # type: ignore[union-attr]


def test_the_parts_of_a_film_add_up_to_its_time(session: Session) -> None:
    """On the local backend and on two nodes: queue, hops, stages and calls explain all but 2 % of the time."""
    timings = session.generate(GenerateRequest(prompt="A lake.", steps=4, seed=1)).timings
    assert [item.stage for item in timings] == ["encode", "denoise", "decode"]
    assert sum(seconds for _, seconds in timings.parts) == pytest.approx(timings.seconds)
    assert abs(timings.unaccounted) <= 0.02 * timings.seconds
    assert all(seconds >= 0 for name, seconds in timings.parts if name != "unaccounted")
    for item, part, count in ((timings[1], "denoise.step", 3), (timings[2], "decode.chunk", None)):
        inside = [seconds for name, seconds in item.spans if name == part]
        assert count is None or len(inside) == count
        assert 0 < sum(inside) <= item.seconds
    assert {"encode_file", "pack"} <= {name for name, _ in timings[2].spans}
