"""Adapters per request, on random weights: python examples/lora.py (in the repository; no GPU needed)."""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from splitreel import GenerateRequest, Session

# A file as a trainer would leave it: two factors for a projection of each of the tiny transformer's three blocks.
SIZES = {"attn.to_q": (128, 64), "attn.to_out.0": (64, 128), "ff.net.2": (64, 128)}


def make_adapter(path: Path) -> Path:
    """Write a rank-4 adapter of random numbers."""
    tensors = {}
    for block in range(3):
        for module, (rows, columns) in SIZES.items():
            tensors[f"transformer.transformer_blocks.{block}.{module}.lora_A.weight"] = torch.randn(4, columns) * 0.1
            tensors[f"transformer.transformer_blocks.{block}.{module}.lora_B.weight"] = torch.randn(rows, 4) * 0.1
    save_file(tensors, path)
    return path


# The guard is needed as in every program that uses Ray: workers may import this file.
if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Session.from_config("examples/demo.yaml") as session:
        print(session.lora.load(make_adapter(Path(folder) / "style.safetensors"), active=False))
        requests = [
            GenerateRequest(prompt="An alpine lake.", steps=5, seed=7, lora=lora)
            for lora in ([], ["style"], [{"name": "style", "scale": 0.5}])
        ]
        for number, film in enumerate(session.stream(requests)):  # pipelined: each keeps its own adapters
            print(film.save(f"outputs/lora-{number}.mp4"), film.effective.lora)
