"""The same prompt again skips the encoder, and makes exactly the film that it would have made without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from configs import roles_config
from samples import Samples
from splitreel import GenerateRequest, GenerateResult, Session
from splitreel.config import TraceConfig
from splitreel.observe.files import read_spans
from splitreel.roles.results import ResultCache, result_key
from splitreel.wire import Header, Payload

REQUEST = GenerateRequest(prompt="A lake at dawn.", steps=2, seed=1, output="frames")


@dataclass
class Kept:
    """A session that keeps prompt states (the default) with its trace, and one that keeps none."""

    keeping: Session
    forgetful: Session
    trace: Path

    def lookups(self, request_id: str) -> list[str]:
        """hit or miss, as the trace has it."""
        spans = [span for span in read_spans(self.trace) if span.request_id == request_id]
        return [span.attributes["cache"] for span in spans if span.name == "cache"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    trace = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    config = roles_config("local", workflow=["t2va", "fl2va"])
    traced = config.model_copy(update={"trace": TraceConfig(file=str(trace))})
    none = roles_config("local", workflow=["t2va", "fl2va"], encoder_decoder={"prompt_cache_bytes": 0})
    with Session(traced) as keeping, Session(none) as forgetful:
        yield Kept(keeping, forgetful, trace)


def same(one: GenerateResult, other: GenerateResult) -> bool:
    assert one.frames is not None
    assert one.waveform is not None
    return np.array_equal(one.frames, other.frames) and np.array_equal(one.waveform, other.waveform)  # type: ignore[arg-type]


def test_another_seed_hits_and_changes_nothing_else(kept: Kept) -> None:
    kept.keeping.generate(replace(REQUEST, request_id="new"))
    assert kept.lookups("new") == ["miss"]
    for name, again in {"seed": replace(REQUEST, seed=2), "steps": replace(REQUEST, steps=3)}.items():
        hit, made = kept.keeping.generate(replace(again, request_id=name)), kept.forgetful.generate(again)
        assert kept.lookups(name) == ["hit"]
        assert same(hit, made)
        assert hit.effective == made.effective


def test_what_decides_the_conditioning_misses(kept: Kept, samples: Samples) -> None:
    kept.keeping.generate(replace(REQUEST, request_id="before"))
    picture = np.asarray(Image.open(samples.first).convert("RGB"))
    touched = picture.copy()
    touched[0, 0] ^= 128
    sized = replace(REQUEST, height=64, width=128)
    changes = {
        "prompt": replace(sized, prompt="A lake at dusk."),
        "width": replace(REQUEST, height=64, width=96),
        "first": replace(sized, image=picture),
        "touched": replace(sized, image=touched),
        "last": replace(sized, last_image=picture),
    }
    for name, request in changes.items():
        made = kept.keeping.generate(replace(request, request_id=name))
        assert kept.lookups(name) == ["miss"], name
        if name == "touched":
            assert same(made, kept.forgetful.generate(request))


def payload(prompt: str, seed: int = 0) -> Payload:
    values = {"prompt": prompt, "seed": seed}
    return Payload(Header(f"{prompt}-{seed}", "t2va", "submitted", (1, 0), "g", values), {"x": torch.arange(4.0)})


def test_the_least_recently_used_go_first_and_the_bound_holds() -> None:
    passing = frozenset({"seed"})
    cache = ResultCache(40)  # two results of 16 bytes
    keys = {name: result_key(payload(name), passing) for name in "abc"}
    for name in "ab":
        cache.put(keys[name], payload(name))
    assert cache.get(keys["a"], payload("a", 7), passing) is not None
    cache.put(keys["c"], payload("c"))
    assert cache.num_bytes == 32
    assert [cache.get(keys[name], payload(name), passing) is not None for name in "abc"] == [True, False, True]
    found = cache.get(keys["a"], payload("a", 9), passing)
    assert found is not None
    assert found.header.request_id == "a-9"
    assert found.header.values == {"prompt": "a", "seed": 9}
    large = replace(payload("d"), tensors={"x": torch.zeros(11)})
    cache.put(result_key(large, passing), large)
    assert cache.num_bytes == 32
