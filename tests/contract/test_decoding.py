"""The chunk by chunk decode is diffusers' decode, for every length and geometry, and gives its frames early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from splitreel.h3.decoding import decoded_chunks, num_clips
from splitreel.share import Share


@pytest.fixture(scope="module")
def vae(tiny_root: Path) -> Any:
    loaded = diffusers.AutoencoderKLMiniMaxH3.from_pretrained(tiny_root, subfolder="vae").eval()
    return loaded.requires_grad_(False)


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_chunks_are_the_whole_decode(vae: Any, chunks: int, extra: int) -> None:
    tokens = vae.tokens_chunk_size * (chunks + int(vae.config.token_drop > 0)) - vae.config.token_drop + extra
    latents = torch.randn(
        (1, vae.config.latent_channels, tokens, 2, 4), generator=torch.Generator().manual_seed(chunks)
    )
    clips = []
    vae._decode_clip, original = lambda z: clips.append(z) or original(z), vae._decode_clip
    try:
        pieces = []
        decoded = decoded_chunks(vae, latents)
        for index, piece in enumerate(decoded):
            pieces.append(piece)
            if not extra and index < chunks:
                assert len(clips) == index + 1  # given out before the next clip is decoded
    finally:
        del vae._decode_clip
    assert torch.equal(torch.cat(pieces, dim=2), vae.decode(latents, return_dict=False)[0])


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("chunks", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_shares_are_the_whole_decode(vae: Any, chunks: int, extra: int, count: int) -> None:
    """Each share decoded alone, joined in order; every share but the first decodes one clip more than it gives."""
    tokens = vae.tokens_chunk_size * (chunks + int(vae.config.token_drop > 0)) - vae.config.token_drop + extra
    latents = torch.randn(
        (1, vae.config.latent_channels, tokens, 2, 4), generator=torch.Generator().manual_seed(chunks)
    )
    whole = list(decoded_chunks(vae, latents))
    shares = [Share(index, count).of(num_clips(vae, latents)) for index in range(count)]
    apart = [piece for share in shares if share for piece in decoded_chunks(vae, latents, share)]
    assert [piece.shape for piece in apart] == [piece.shape for piece in whole]
    assert torch.equal(torch.cat(apart, dim=2), vae.decode(latents, return_dict=False)[0])
