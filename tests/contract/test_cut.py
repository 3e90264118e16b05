"""The cut and the payload specs, held against diffusers' own blocks."""

from __future__ import annotations

import pytest
from diffusers import MiniMaxH3Blocks

from splitreel.errors import CheckpointError
from splitreel.h3.cut import CUT, WORKFLOWS, check_cut, component_types, stage_blocks
from splitreel.h3.geometry import Geometry
from splitreel.h3.payloads import payload_spec
from splitreel.request import Stage

RELEASED = Geometry(16, 24, 17, 5, 32000, 32, (1, 2, 2), 5120, 768, 768 * 1344, 2048)
# Inputs that a stage is given by its program rather than by the payload's tensors, each from the header's values.
FROM_VALUES = {
    "height", "width", "num_frames", "num_inference_steps", "generator", "keyframe_anchors", "normalized_references",
    "output_type",
}  # fmt: skip
# Inputs that diffusers offers and a request has no word for: noise given instead of drawn, and attention options.
NOT_OFFERED = {"latents", "audio_latents", "attention_kwargs", None}


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_block_has_exactly_one_stage(workflow: str) -> None:
    blocks = list(MiniMaxH3Blocks().get_workflow(workflow).sub_blocks)
    assert list(CUT[workflow]) == blocks
    cut = [name for stage in Stage for name in stage_blocks(workflow, stage).sub_blocks]
    assert cut == blocks, "the stages, one after the other, are the workflow"


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_the_denoise_payload_holds_what_its_blocks_need_and_no_more(workflow: str) -> None:
    needed = {param.name for param in stage_blocks(workflow, Stage.DENOISE).inputs} - FROM_VALUES - NOT_OFFERED
    spec = payload_spec(Stage.DENOISE, workflow, RELEASED)
    assert {field.name for field in spec.fields} == needed


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_the_decode_payload_holds_what_its_blocks_need_and_no_more(workflow: str) -> None:
    needed = {param.name for param in stage_blocks(workflow, Stage.DECODE).inputs} - FROM_VALUES
    assert {field.name for field in payload_spec(Stage.DECODE, workflow, RELEASED).fields} == needed


def test_components_of_the_default_roles() -> None:
    encoder_decoder = {*component_types("ref2va", Stage.ENCODE), *component_types("ref2va", Stage.DECODE)}
    assert encoder_decoder == {"text_encoder", "tokenizer", "processor", "vae", "audio_vae"}
    assert set(component_types("t2va", Stage.DENOISE)) == {"transformer", "scheduler", "audio_scheduler"}
    assert set(component_types("ref2va", Stage.DENOISE)) == {"transformer_ref", "scheduler", "audio_scheduler"}


def test_a_diffusers_with_other_blocks_is_named() -> None:
    names = [*CUT["t2va"], "decode.smell"]
    with pytest.raises(
        CheckpointError, match=r"diffusers .*: expected the t2va blocks of 0\.42\.1, found new decode\.smell"
    ):
        check_cut("t2va", names)
    with pytest.raises(CheckpointError, match="without text_encoder"):
        check_cut("t2va", list(CUT["t2va"])[1:])


def test_the_released_arithmetic() -> None:
    legal = RELEASED.legal_num_frames()
    assert (legal[0], legal[1], legal[-1]) == (124, 141, 345)
    assert RELEASED.latent_frames(124) == 37
    assert RELEASED.audio_latents(124) == 207
    assert RELEASED.canvas_multiple == 32
