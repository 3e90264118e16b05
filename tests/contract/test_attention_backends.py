"""Every attention backend of diffusers on this machine: it computes what native does, or start-up says why not."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers.models import attention_dispatch

from configs import roles_config
from splitreel import Session
from splitreel.config import ATTENTION_BACKENDS, AttentionSpec, Config
from splitreel.errors import ConfigError, WorkerNotReady
from splitreel.h3.model import MiniMaxH3
from splitreel.h3.warmup import transformer_inputs
from splitreel.roles import backends
from splitreel.roles.backends import AttentionCase, candidates, diffusers_backend, remedy, try_backend
from splitreel.roles.role import Role

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
]

# Refused on the CPU although nothing has to be imported: torch has no such kernel there.
CUDA_KERNELS = {"native_cudnn", "native_efficient"}
CPU_KERNELS = {"native", "native_math", "native_flash", "flex"}


def dit(dtype: str, **attention: Any) -> Role:
    spec = roles_config("local", dit={"dtype": dtype}).role_spec("dit")
    return Role(MiniMaxH3(), replace(spec, attention=AttentionSpec(**attention)))


def refusal(role: Role) -> WorkerNotReady | None:
    try:
        role.prepare()
    except WorkerNotReady as error:
        return error
    return None


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def transformer(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any, torch.Tensor]]:
    """A loaded transformer with native attention, its dtype, and what it makes of one input."""
    role = dit(request.param)
    role.prepare()
    role.load()
    module = role.components["transformer"]
    with torch.inference_mode():
        yield request.param, module, module(**transformer_inputs(module)).sample.float()


@pytest.mark.parametrize("name", ATTENTION_BACKENDS)
def test_a_backend_works_as_native_does_or_is_refused_with_its_cause(
    name: str, transformer: tuple[str, Any, torch.Tensor]
) -> None:
    dtype, module, native = transformer
    role = dit(dtype, transformer=name, hub_kernels=True)
    refused = refusal(role)
    if refused is not None:
        assert name not in {"native", "native_math", "flex"}
        message, cause = str(refused), refused.__cause__
        assert cause is not None
        assert f"attention.backend: expected {name} to run for the transformer's blocks (cpu, {dtype}" in message
        assert f"{type(cause).__name__}: {cause}" in message, "the original words"
        assert refused.error_type in refused.remote_traceback
        assert refused.python == sys.executable
        assert message.endswith(remedy(name, cause))
        if name not in CUDA_KERNELS | CPU_KERNELS:
            assert isinstance(cause, ImportError), f"nothing of the kind is installed: {cause!r}"
        print(f"{name} | {dtype} | refused: {type(cause).__name__}: {cause}")
        return
    assert name in CPU_KERNELS
    before = attention_dispatch._AttentionBackendRegistry.get_active_backend()
    role.attention.apply("transformer", module)
    with torch.inference_mode():
        found = module(**transformer_inputs(module)).sample.float()
    assert role.attention.in_force()["transformer"] == name
    assert attention_dispatch._AttentionBackendRegistry.get_active_backend() == before, (
        "the process's default is left alone"
    )
    error_ratio = float((found - native).norm() / native.norm())
    assert error_ratio <= (1e-5 if dtype == "float32" else 2e-2)
    print(f"{name} | {dtype} | works, {error_ratio:.1e} from native")


def test_remedies_say_what_diffusers_requires() -> None:
    """The versions are those of its own checks; a hub's backend needs `kernels`, whatever it runs."""
    missing = ModuleNotFoundError("No module named 'x'")
    said = {name: remedy(name, missing) for name in ATTENTION_BACKENDS}
    dispatch = attention_dispatch
    assert f"'flash-attn>={dispatch._REQUIRED_FLASH_VERSION}'" in said["flash"] == said["flash_varlen"]
    assert f"SageAttention {dispatch._REQUIRED_SAGE_VERSION} or newer" in said["sage"] == said["sage_varlen"]
    assert f"'xformers>={dispatch._REQUIRED_XFORMERS_VERSION}'" in said["xformers"]
    assert f"'torch_xla>={dispatch._REQUIRED_XLA_VERSION}'" in said["native_xla"]
    source = inspect.getsource(dispatch._check_attention_backend_requirements)
    assert re.findall(r'is_kernels_version\(">=", "([\d.]+)"\)', source) == ["0.12", "0.12.3"]
    hub = [name for name in ATTENTION_BACKENDS if name.endswith("_hub")]
    assert len(hub) == len(dispatch._HUB_KERNELS_REGISTRY) == 8
    for name in hub:
        version = "0.12.3" if name == "flash_4_hub" else "0.12"
        assert f"pip install -U 'kernels>={version}'" in said[name]
        assert "flash-attn" not in said[name]
        refused = remedy(name, refusal(dit("bfloat16", transformer=name)).__cause__)  # type: ignore[union-attr, arg-type]
        assert refused.startswith(f"Set attention.hub_kernels: true, and pip install -U 'kernels>={version}'")
    old = RuntimeError("Backend 'flash_hub' needs to be used with a `kernels` version of at least 0.12. Please update")
    assert "pip install -U 'kernels>=0.12'" in remedy("flash_hub", old)
    untrusted = ValueError("loads `a/b`, ... Set `DIFFUSERS_TRUST_REMOTE_KERNELS=true` to allow it.")
    assert "DIFFUSERS_TRUST_REMOTE_KERNELS: 'true' in the role's env" in remedy("sage_hub", untrusted)
    assert "check the network" in remedy("flash_hub", OSError("no route"))
    assert "installed, for another torch" in remedy("flash_3", ImportError("undefined symbol: _ZN3c105ErrorC2E"))
    for name in ("native_cudnn", "flex"):
        assert remedy(name, RuntimeError("no kernel")).startswith("It does not compute this on this device")


def test_a_hub_kernel_is_never_fetched_unasked() -> None:
    with pytest.raises(
        WorkerNotReady,
        match=r"flash_4_hub runs code from kernels-community/flash-attn4 on .* attention.hub_kernels: true allows",
    ):
        dit("bfloat16", transformer="flash_4_hub").prepare()


def test_a_broken_package_is_not_taken_for_a_missing_one(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when flash_attn was built for another torch: its own words arrive, not "missing or too old"."""
    (tmp_path / "flash_attn_interface.py").write_text("raise ImportError('undefined symbol: _ZN3c105ErrorC2E')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorkerNotReady, match="ImportError: undefined symbol: _ZN3c105ErrorC2E"):
        dit("bfloat16", transformer="flash_3").prepare()


def test_a_kernel_that_computes_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = attention_dispatch._AttentionBackendRegistry._backends
    monkeypatch.setitem(registry, diffusers_backend("native_math"), lambda query, key, value, **rest: query)
    with pytest.raises(ArithmeticError, match="away from native's"):
        try_backend("native_math", AttentionCase("cpu", torch.float32, 32), hub_kernels=False)


def test_parts_have_their_own_and_auto_says_why(caplog: pytest.LogCaptureFixture) -> None:
    role = dit("float32", transformer="auto", refiner="native_math")
    with caplog.at_level(logging.INFO, logger="splitreel"):
        role.prepare()
    assert "attention of transformer: native (auto: the device is cpu)" in caplog.text
    assert "attention of transformer.refiner: native_math (asked for)" in caplog.text
    role.load()
    assert role.attention.in_force() == {"transformer": "native", "transformer.refiner": "native_math"}


def test_auto_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order, by capability and dtype; what does not run is skipped with its reason."""
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    bf16 = AttentionCase("cuda", torch.bfloat16, 128)
    assert candidates(bf16) == (("flash_3", "flash", "native"), "sm_90")
    assert candidates(AttentionCase("cuda", torch.float32, 128)) == (("native",), "no other takes float32")
    capability = (12, 1)
    assert candidates(bf16) == (("flash", "native"), "sm_121")
    capability = (7, 5)
    assert candidates(bf16)[0] == ("native",)


def test_diffusers_own_variable_is_the_default_and_loses_to_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERS_ATTN_BACKEND", "_native_math")
    role = dit("float32", refiner="native")
    role.prepare()
    role.load()
    assert role.attention.in_force() == {"transformer": "native_math", "transformer.refiner": "native"}
    monkeypatch.setenv("DIFFUSERS_ATTN_BACKEND", "flash")
    with pytest.raises(WorkerNotReady, match=r"attention\.backend \(DIFFUSERS_ATTN_BACKEND\): expected flash to run"):
        dit("float32").prepare()
    monkeypatch.setenv("DIFFUSERS_ATTN_BACKEND", "flahs")
    with pytest.raises(
        ConfigError, match=r"DIFFUSERS_ATTN_BACKEND: expected an attention backend, found 'flahs'. Did you mean flash"
    ):
        dit("float32").prepare()


def test_another_diffusers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(attention_dispatch, "_check_attention_backend_requirements")
    with pytest.raises(Exception, match=r"expected the attention dispatch of 0.42, found one without _check_attention"):
        backends.diffusers_backend("native")


def test_two_sessions_in_one_process_keep_their_own() -> None:
    def config(backend: str) -> Config:
        return roles_config("local", dit={"attention": {"backend": backend}})

    with Session(config("native_math")) as first, Session(config("native")) as second:
        found = [worker.attention for session in (first, second) for worker in session.health()]
    encoder = {"vae": "native", "audio_vae": "native", "text_encoder": "sdpa"}
    assert found == [
        encoder,
        {"transformer": "native_math", "transformer.refiner": "native_math"},
        encoder,
        {"transformer": "native", "transformer.refiner": "native"},
    ]
