"""A FastVideo run file: the settings and values of its two-machine smoke test, with placeholders as its shell fills them."""

from __future__ import annotations

from string import Template

_SMOKE = Template("""\
generator:
  model_path: "$model"
  engine:
    num_gpus: 1
    execution_backend: ray
    use_fsdp_inference: false
    parallelism: {tp_size: 1, sp_size: 1}
    offload:
      dit: false
      dit_layerwise: false
      text_encoder: false
      image_encoder: false
      vae: false
      pin_cpu_memory: false
      lazy_module_load: false
    compile: {enabled: false, text_encoder_enabled: false, vae_enabled: false, audio_vae_enabled: false}
  pipeline:
    experimental:
      h3_disaggregated: true
      h3_encoder_node_ip: "$a"
      h3_dit_node_ip: "$b"
      h3_ray_address: "$a:6379"
      h3_sequential_load: false
      vae_parallel_encode: false
      vae_parallel_decode: false
      video_decode_backend: h3-vae
      attention_backend: TORCH_SDPA
request:
  prompt: >-
    An alpine lake at sunrise,
    with thin mist over the water.
  negative_prompt: ""
  sampling:
    seed: 2026
    height: 256
    width: 256
    num_frames: 124
    fps: 24
    num_inference_steps: 2
    guidance_scale: 1.0
    batch_cfg: false
  output:
    output_path: outputs/smoke/
    save_video: true
    return_frames: false
""")


def smoke_run(model: str = "tiny", a: str = "10.0.0.1", b: str = "10.0.0.2") -> str:
    """The file's text."""
    return _SMOKE.substitute(model=model, a=a, b=b)
