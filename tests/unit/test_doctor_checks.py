"""Doctor's parts that need no cluster: how checks are run, and verdicts from numbers that this machine does not have."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from splitreel.cluster.doctor import Finding, Report, Status
from splitreel.cluster.doctor import machine as machine_checks
from splitreel.cluster.doctor.context import Context, RoleTask
from splitreel.cluster.doctor.crew import look_at_crew
from splitreel.cluster.doctor.finding import ok, run_checks, split_message
from splitreel.cluster.doctor.links import same_mtu
from splitreel.cluster.doctor.machine import monitor_verdict
from splitreel.cluster.doctor.network import wrong_variables
from splitreel.cluster.doctor.software import asked_backends, nixl
from splitreel.cluster.placement import Node, Wish
from splitreel.config import AttentionSpec, RoleSpec
from splitreel.request import Stage
from splitreel.roles.device import Gpu
from splitreel.serve.cli.doctor import code_of, show

A = Node("a" * 56, "10.0.0.1", "spark-a", gpus=1, free_gpus=1)
B = Node("b" * 56, "10.0.0.2", "spark-b", gpus=1, free_gpus=1)


def test_a_check_that_breaks_or_hangs_hides_no_other() -> None:
    release = threading.Event()

    def breaks(context: object) -> Iterator[Finding]:
        yield ok("one", "said before it broke")
        raise ZeroDivisionError("by zero")

    def hangs(context: object) -> Iterator[Finding]:
        release.wait(30)
        yield ok("two", "never")

    began = time.monotonic()
    found = run_checks(
        [("zero", breaks), ("stuck", hangs), ("well", lambda context: [ok("well", f"sees {context}")])],
        "it",
        node="10.0.0.9",
        seconds=0.5,
    )
    release.set()
    assert time.monotonic() - began < 5
    assert [(each.check, each.status, each.node) for each in found] == [
        ("zero", Status.WARN, "10.0.0.9"),
        ("stuck", Status.WARN, "10.0.0.9"),
        ("well", Status.WARN, "10.0.0.9"),
    ]
    assert "ZeroDivisionError: by zero" in found[0].found
    assert "no answer" in found[1].found
    assert "checks before it took too long" in found[2].found
    (well,) = run_checks([("well", lambda context: [ok("well", f"sees {context}")])], "it", node="n", seconds=5)
    assert (well.status, well.found) == (Status.PASS, "sees it")


@pytest.mark.parametrize(
    ("message", "found", "remedy"),
    [
        (
            "cluster.address 10.0.0.1:6379: expected a Ray head, found nobody there (Connection refused). See that it runs.",
            "cluster.address 10.0.0.1:6379: expected a Ray head, found nobody there (Connection refused)",
            "See that it runs.",
        ),
        (
            "model.path: expected index.json in /m.d, found none. Use the root. It holds it.",
            "model.path: expected index.json in /m.d, found none",
            "Use the root. It holds it.",
        ),
        ("something else", "something else", ""),
    ],
)
def test_a_message_ends_with_what_to_do(message: str, found: str, remedy: str) -> None:
    assert split_message(message) == (found, remedy)


@pytest.mark.parametrize(
    ("refresh", "threshold", "used", "unified", "status"),
    [
        ("250", 0.95, 0.3, False, Status.PASS),
        ("250", 0.95, 0.3, True, Status.WARN),  # case 5: weights in unified memory look like a leak
        ("0", 0.95, 0.3, True, Status.PASS),
        ("250", 0.95, 0.94, False, Status.WARN),  # it would kill before anything has loaded
    ],
)
def test_the_memory_monitor(refresh: str, threshold: float, used: float, unified: bool, status: Status) -> None:
    found = monitor_verdict(refresh=refresh, threshold=threshold, used=used, unified=unified)
    assert found.status is status
    assert bool(found.remedy) is (status is Status.WARN)


def test_a_killer_of_programs_matters_where_memory_is_unified(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimpleNamespace(info={"name": "earlyoom"})
    monkeypatch.setattr(psutil, "process_iter", lambda names: [process])
    (found,) = machine_checks.killers(Context("10.0.0.1", unified=True))
    assert (found.status, found.remedy) == (
        Status.WARN,
        "Let it leave Ray alone or stop it while you use the model: sudo systemctl stop earlyoom.",
    )
    (found,) = machine_checks.killers(Context("10.0.0.1", unified=False))
    assert found.status is Status.PASS


def test_a_machine_that_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    swap = SimpleNamespace(total=16_000_000_000, used=12_000_000_000)
    monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
    (found,) = machine_checks.swap(Context("10.0.0.1"))
    assert (found.status, found.found) == (Status.WARN, "12.0 of 16.0 GB in use")


def test_variables_that_name_another_host() -> None:
    own = {"10.0.0.1": "eth0", "127.0.0.1": "lo", "fe80::1": "eth0"}
    environment = {
        "VLLM_HOST_IP": "10.0.0.7",
        "HOST_IP": "10.0.0.1",
        "RAY_NODE_IP_ADDRESS": "127.0.0.3",
        "NCCL_SOCKET_IFNAME": "enp1s0f0np0,=enp1s0f1np1",
        "GLOO_SOCKET_IFNAME": "eth",
        "TP_SOCKET_IFNAME": "^docker",
        "GHOST_IP_LIST": "1.2.3.4",
    }
    assert list(wrong_variables(environment, own, {"eth0", "lo"})) == [
        ("NCCL_SOCKET_IFNAME", "enp1s0f0np0,=enp1s0f1np1", "eth0, lo"),
        ("VLLM_HOST_IP", "10.0.0.7", "10.0.0.1, 127.0.0.1"),
    ]


def test_interfaces_of_different_packet_sizes() -> None:
    one, other = ok("link.mtu", "9000 on enp1", node="10.0.0.1"), ok("link.mtu", "1500 on enp1", node="10.0.0.2")
    assert same_mtu([one, replace(one, node="10.0.0.2")]) == []
    (found,) = same_mtu([one, other])
    assert found.status is Status.WARN
    assert "9000 on enp1 of 10.0.0.1, 1500 on enp1 of 10.0.0.2" in found.found


def test_a_loopback_address_with_a_remote_peer() -> None:
    local = replace(A, address="127.0.0.1")
    wishes = [
        Wish("encoder_decoder", "roles.encoder_decoder.node", "spark-a", 0),
        Wish("dit", "roles.dit.node", "spark-b", 0),
    ]
    found = {each.check: each for each in look_at_crew(wishes, [local, B]).findings}
    assert found["nodes.loopback"].status is Status.FAIL
    assert found["nodes.loopback"].node == "127.0.0.1"
    assert "means another machine to each of spark-b" in found["nodes.loopback"].found
    crew = look_at_crew(wishes, [A, B])
    assert {each.status for each in crew.findings} == {Status.PASS}
    assert {worker: node.address for worker, node in crew.placed.items()} == {
        "encoder_decoder": "10.0.0.1",
        "dit": "10.0.0.2",
    }


def test_a_node_that_was_started_without_its_gpu() -> None:
    wishes = [Wish("dit", "roles.dit.node", "10.0.0.2", 1.0)]
    crew = look_at_crew(wishes, [A, replace(B, gpus=0, free_gpus=0)])
    (found,) = [each for each in crew.findings if each.status is Status.FAIL]
    assert (found.check, found.node) == ("gpu.free", "10.0.0.2")
    assert "0 of 0 free" in found.found
    assert crew.placed["dit"].address == "10.0.0.2", "it is looked at nevertheless"


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((12, 1), ("sm_90", "sm_120"), True),
        ((12, 1), ("sm_80", "sm_90"), False),
        ((12, 1), ("sm_90", "compute_90"), True),
        ((9, 0), ("sm_90a",), True),
        ((8, 0), ("sm_86",), False),
        ((7, 5), (), True),
    ],
)
def test_kernels_for_a_gpu(capability: tuple[int, int], built: tuple[str, ...], runs: bool) -> None:
    assert Gpu("a GPU", capability, built, None, None, unified=True).has_kernels is runs


def test_unified_memory_as_said_or_seen() -> None:
    spec = RoleSpec("dit", (Stage.DENOISE,), ("t2va",), "m", None, "cpu", (("default", "bfloat16"),), None)
    on_cpu = Context("10.0.0.1", tasks=(RoleTask("dit", spec, 0),))
    assert not on_cpu.is_unified
    assert replace(on_cpu, unified=True).is_unified
    assert not on_cpu.cuda_tasks
    assert not on_cpu.decodes


def test_the_backends_that_a_role_asks_for() -> None:
    spec = RoleSpec("dit", (Stage.DENOISE,), ("t2va",), "m", None, "cpu", (("default", "bfloat16"),), None)
    assert asked_backends(spec) == []
    asked = replace(spec, attention=AttentionSpec(transformer="sage", refiner="sage", vae="auto"))
    assert asked_backends(asked) == [("roles.dit.attention.backend", "sage")]


def test_nixl_is_looked_for_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RoleSpec("dit", (Stage.DENOISE,), ("t2va",), "m", None, "cpu", (("default", "bfloat16"),), None)
    (skipped,) = nixl(Context("10.0.0.1", tasks=(RoleTask("dit", spec, 0),)))
    assert skipped.status is Status.SKIP
    monkeypatch.setitem(sys.modules, "nixl", None)
    (failed,) = nixl(Context("10.0.0.1", tasks=(RoleTask("dit.1", replace(spec, transport="nixl"), 0),)))
    assert (failed.status, failed.check, failed.role) == (Status.FAIL, "transport.nixl", "dit.1")
    assert sys.executable in failed.found
    assert "nixl" in failed.found.partition("Error: ")[2], "the import's own words"
    assert 'pip install "splitreel[nixl]"' in failed.remedy


def test_exit_codes_and_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    good = ok("ray.reachable", "joined", node="driver")
    warning = Finding("shm.size", Status.WARN, "small", "Give it more.", node="10.0.0.2")
    failure = Finding("gpu.free", Status.FAIL, "held", "Free it.", node="10.0.0.2", role="dit")
    skipped = Finding("hub.token", Status.SKIP, "not needed", node="10.0.0.2")
    fine, warned = (Report(rows, 1.0, {"10.0.0.2": "spark-b"}) for rows in ((good, skipped), (good, warning)))
    failed = Report((good, warning, failure, skipped), 1.0, {"10.0.0.2": "spark-b"})
    assert [code_of(each, strict=False) for each in (fine, warned, failed)] == [0, 0, 2]
    assert [code_of(each, strict=True) for each in (fine, warned, failed)] == [0, 1, 2]
    show(failed, show_all=False)
    printed = capsys.readouterr().out
    assert "10.0.0.2 spark-b" in printed
    assert "dit: held" in printed
    assert "→ Free it." in printed
    assert "hub.token" not in printed
    assert printed.splitlines()[-1] == "1 pass, 1 warn, 1 fail, 1 skip, in 1.0 s"
