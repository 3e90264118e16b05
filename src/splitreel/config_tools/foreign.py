"""The settings of FastVideo's run files (`generator:`, `request:`), and what each one is here.

A table rather than code: each setting is carried over, is how splitreel always works, or has no equivalent and says why.
Names are those of FastVideo's run config and of its two-machine mode for this model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ONE_GPU = "a worker computes on one GPU; more machines under roles.dit.nodes serve more films at once"
RESIDENT = "every component of a role stays resident; roles.NAME.memory makes them smaller, another machine takes some"
COMPILED = (
    "what is compiled is roles.NAME.compile: {transformer: true}, text_encoder and vae likewise; options of the compiler have no "
    "equivalent"
)
DISTILLED = "the model is guidance-distilled: it takes no negative prompt and no guidance scale"
DENSE = "attention is dense, unless roles.NAME.attention.vsa or model.preset says otherwise"
BACKEND = "kernels have other names here: roles.NAME.attention.backend, and attention.vsa for sparse attention"
NO_VSA = (
    "it acts with attention_backend: VIDEO_SPARSE_ATTN_H3 alone, which is not set; here it is roles.NAME.attention.vsa"
)
FAST = (
    "carried over, but of a FastH3 checkpoint model.preset says more: fasth3-4step or fasth3-8step-v2 for the steps "
    "and noise levels that it was made for"
)
RATE = "films are made and saved at 24 frames per second, with sound of the same length"
ONE_FILM = "one request makes one film; for several: splitreel generate --prompts FILE"
OTHER_MODEL = "an input of other models"
SERVER = "the server's settings are the section serve: of the config, with names of its own"
STREAMED = "films are delivered whole; the server's settings are the section serve: of the config"
DEFAULTS = "each request names its own settings; what it leaves out is model.preset's"
WHOLE = "a component is always the one in the folder of model.path, or of roles.NAME.model_path"
VSA_BACKEND = "VIDEO_SPARSE_ATTN_H3"
# What FastVideo takes where a file with that backend says nothing (fastvideo_args.py).
VSA_SPARSITY, VSA_TILE = 0.0, 256


@dataclass(frozen=True)
class Known:
    """One setting. `always`: values that say what happens here anyway. `why`: said of any other value.

    `carried`: a function of the converter takes the value over; then `always` and `why` do not matter.
    """

    always: tuple[Any, ...] = ()
    why: str = ""
    carried: bool = False


def _all(names: str, always: tuple[Any, ...], why: str) -> dict[str, Known]:
    return {name: Known(always, why) for name in names.split()}


def _carried(names: str) -> dict[str, Known]:
    return {name: Known(carried=True) for name in names.split()}


_OFF: tuple[Any, ...] = (False, None, {}, [], "")

_ENGINE = {
    **_carried("execution_backend"),
    **_all("num_gpus", (1,), ONE_GPU),
    **_all("parallelism.tp_size parallelism.sp_size", (1, -1, None), ONE_GPU),
    **_all("parallelism.hsdp_replicate_dim parallelism.hsdp_shard_dim", (1, -1, None), ONE_GPU),
    **_all("parallelism.dist_timeout", (None,), "deadlines are engine.start_timeout, hop_timeout and stage_timeout"),
    **_all("use_fsdp_inference", _OFF, ONE_GPU),
    **_all(
        "offload.dit offload.dit_layerwise offload.text_encoder offload.image_encoder offload.vae "
        "offload.pin_cpu_memory offload.lazy_module_load",
        _OFF,
        RESIDENT,
    ),
    **_all(
        "compile.enabled compile.backend compile.fullgraph compile.mode compile.dynamic compile.extras "
        "compile.text_encoder_enabled compile.vae_enabled compile.audio_vae_enabled compile.dit_kwargs "
        "compile.text_encoder_kwargs compile.vae_kwargs compile.audio_vae_kwargs",
        _OFF,
        COMPILED,
    ),
    **_all("enable_stage_verification", (True,), "payloads are always checked on both sides"),
    **_all("disable_autocast", (True, False, None), "the dtype of each role is roles.NAME.dtype"),
    **_all("use_batched_cfg", _OFF, DISTILLED),
    **_all(
        "quantization quantization.text_encoder_quant quantization.transformer_quant",
        _OFF,
        "8 bits are roles.NAME.memory.quantization: {transformer: int8}, fp8 likewise; there are no other methods",
    ),
}

_PIPELINE = {
    **_carried("workload_type components.override_pipeline_cls_name components.lora_path"),
    **_all(
        "preset preset_version preset_overrides",
        _OFF,
        "presets have other names here: model.preset: h3, fasth3-4step, fasth3-8step-v2",
    ),
    **_all(
        "components.config_root components.pipeline_config_path components.text_encoder_weights "
        "components.transformer_weights components.transformer_2_weights components.vae_weights "
        "components.upsampler_weights components.override_transformer_cls_name",
        _OFF,
        WHOLE,
    ),
    **_all("vae_tiling", _OFF, "the VAEs run as diffusers has them"),
}

_EXPERIMENTAL = {
    **_carried(
        "h3_disaggregated h3_encoder_node_ip h3_dit_node_ip h3_ray_address attention_backend VSA_sparsity VSA_tile_size"
    ),
    **_all("h3_sequential_load lazy_module_load", _OFF, RESIDENT),
    **_all("vae_parallel_encode", _OFF, ONE_GPU),
    **_all("vae_parallel_decode", _OFF, f"{ONE_GPU}; several decode one film together with engine.parallel_decode"),
    **_all("video_decode_backend", ("h3-vae", None), "films are decoded by the model's own video VAE"),
}

_SAMPLING = {
    **_carried("seed num_frames height width num_inference_steps"),
    **_all("num_videos_per_prompt", (1,), ONE_FILM),
    **_all("fps", (24,), RATE),
    **_all("guidance_scale true_cfg_scale", (1, 1.0, None), DISTILLED),
    **_all("guidance_scale_2", (None,), DISTILLED),
    **_all("batch_cfg cfg_normalization use_embedded_guidance", _OFF, DISTILLED),
    **_all("cfg_truncation", (1, 1.0, None), DISTILLED),
    **_all("guidance_rescale", (0, 0.0, None), DISTILLED),
    **_all("max_sequence_length", (None,), "a prompt is read whole"),
    **_all("height_sr width_sr num_inference_steps_sr boundary_ratio", (None,), OTHER_MODEL),
    **_all(
        "sigmas",
        (None,),
        "the schedule is the checkpoint's own or model.preset's, with as many sigma points as the request's steps",
    ),
}

_REQUEST = {
    **_carried("prompt inputs.image_path"),
    **_all("negative_prompt", ("", None), DISTILLED),
    **_all("inputs.prompt_path", (None,), ONE_FILM),
    **_all(
        "inputs.video_path",
        (None,),
        "references are named with their kind and order: references: [{kind: video, source: PATH}]",
    ),
    **_all(
        "inputs.pil_image inputs.pose inputs.mouse_cond inputs.keyboard_cond inputs.grid_sizes "
        "inputs.c2ws_plucker_emb inputs.action_path inputs.refine_from inputs.stage1_video",
        (None,),
        OTHER_MODEL,
    ),
    **_all(
        "runtime.enable_teacache",
        _OFF,
        "steps that reuse earlier ones are roles.NAME.cache, by other methods: first_block, taylor_seer",
    ),
    **_all(
        "runtime.return_trajectory_latents runtime.return_trajectory_decoded",
        _OFF,
        "only the film leaves the last stage",
    ),
    **_all(
        "output.output_path output.output_video_name",
        (None,),
        "the file to write is named on the command line: splitreel generate --output PATH.mp4",
    ),
    **_all("output.save_video", (True,), "splitreel generate writes the film"),
    **_all("output.return_frames", _OFF, "frames instead of a file are asked for from Python: output='frames'"),
    **_all("output.return_state", _OFF, "only the film leaves the last stage"),
    **_all("stage_overrides state plan extensions", _OFF, "the stages are the roles of the config"),
}

# Sections whose every setting is left out for one reason.
WHOLE_SECTIONS = {"server": SERVER, "streaming": STREAMED, "default_request": DEFAULTS}

SETTINGS: dict[str, Known] = {
    **_carried("generator.model_path generator.revision"),
    "generator.trust_remote_code": Known(_OFF, "no code out of a model's repository is ever run"),
    **{f"generator.engine.{name}": known for name, known in _ENGINE.items()},
    **{f"generator.pipeline.{name}": known for name, known in _PIPELINE.items()},
    **{f"generator.pipeline.experimental.{name}": known for name, known in _EXPERIMENTAL.items()},
    **{f"request.{name}": known for name, known in _REQUEST.items()},
    **{f"request.sampling.{name}": known for name, known in _SAMPLING.items()},
}
