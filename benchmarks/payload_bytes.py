"""What crosses for one film: bytes into denoise, and bytes to the driver. Prints JSON.

    python benchmarks/payload_bytes.py

t2va, 832 x 480, 124 frames, 512 text rows of 5,120 bfloat16. Baselines: a payload that also carries the drawn noise, the
packed sequence's layout and its row indices (the fields of FastVideo's pull request 1830), and the decoded film as a
float32 tensor. Real payloads are packed by the real code; only their numbers are made up.
"""

from __future__ import annotations

import numpy as np
import torch
from claims import Claim, report

from splitreel.h3.model import MiniMaxH3
from splitreel.h3.payloads import KINDS, SCHEMA
from splitreel.media import Clip, Sound, film_bytes
from splitreel.request import Stage
from splitreel.wire import Header, Payload, pack

TEXT_ROWS, TEXT_DIM = 512, 5120
FRAMES, HEIGHT, WIDTH = 124, 480, 832
LATENTS, GRID = 37, (15, 26)
VIDEO_ROWS, SOUND_ROWS = LATENTS * GRID[0] * GRID[1], 207 * 2
FPS, RATE = 24, 32000


def into_denoise() -> Payload:
    """The `encoded` payload of this request."""
    values = {"num_frames": FRAMES, "height": HEIGHT, "width": WIDTH, "steps": 5, "seed": 7, "output": "mp4"}
    tensors = {
        "prompt_embeds": torch.randn(1, TEXT_ROWS, TEXT_DIM).to(torch.bfloat16),
        "text_token_tags": torch.zeros(TEXT_ROWS, dtype=torch.int64),
    }
    return Payload(Header("r" * 12, "t2va", KINDS[Stage.DENOISE], SCHEMA, "0" * 16, values), tensors)


def reference_bytes() -> int:
    """prompt_embeds; video and sound noise rows float32; layout: positions (L, 3) float64, tags and three indices int64."""
    rows = TEXT_ROWS + VIDEO_ROWS + SOUND_ROWS
    noise = 4 * (VIDEO_ROWS * 96 + SOUND_ROWS * 32)
    layout = rows * 3 * 8 + rows * 8 + (TEXT_ROWS + VIDEO_ROWS + SOUND_ROWS) * 8
    return TEXT_ROWS * TEXT_DIM * 2 + noise + layout


def smooth_clip() -> Clip:
    """Moving colour gradients and two tones."""
    y, x = np.meshgrid(np.linspace(0, 1, HEIGHT), np.linspace(0, 1, WIDTH), indexing="ij")
    frames = np.empty((FRAMES, HEIGHT, WIDTH, 3), np.uint8)
    for index in range(FRAMES):
        phase = 2 * np.pi * index / FRAMES
        waves = [np.sin(3 * x + phase), np.sin(4 * y - phase), np.sin(2 * (x + y) + phase)]
        frames[index] = np.stack([127 + 100 * wave for wave in waves], -1).astype(np.uint8)
    time = np.arange(round(FRAMES / FPS * RATE)) / RATE
    sound = np.stack([np.sin(2 * np.pi * 440 * time), np.sin(2 * np.pi * 880 * time)]).astype(np.float32) / 2
    return Clip(frames, float(FPS), Sound(sound, RATE))


def main() -> None:
    payload = into_denoise()
    wire = pack(payload).num_bytes
    needed = sum(tensor.numel() * tensor.element_size() for _, tensor in payload.named_tensors())
    assert set(payload.tensors) == {
        field.name for field in MiniMaxH3().payload_spec(Stage.DENOISE, "t2va", _Sizes()).fields
    }
    film = len(film_bytes(smooth_clip()))
    tensor = FRAMES * 3 * HEIGHT * WIDTH * 4
    report(
        Claim(
            1,
            "bytes into denoise",
            "noise, layout and indices sent along",
            wire / reference_bytes(),
            0.5,
            details={"bytes": wire, "baseline_bytes": reference_bytes()},
        ),
        Claim(1, "bytes into denoise", "prompt states and tags alone", wire / needed, 1.02, details={"bytes": wire}),
        Claim(
            2,
            "result bytes to the driver (mp4)",
            "float32 video tensor",
            film / tensor,
            0.02,
            details={"bytes": film, "baseline_bytes": tensor},
        ),
        size=f"{WIDTH}x{HEIGHT}x{FRAMES}, {TEXT_ROWS} text rows",
    )


class _Sizes:
    """As much geometry as the payload's spec asks for."""

    text_dim = TEXT_DIM
    latent_channels = 24
    audio_channels = 32


if __name__ == "__main__":
    main()
