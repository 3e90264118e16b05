"""The commands that start Ray on each machine of a config."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from splitreel.cluster.commands import as_text, node_commands
from splitreel.config import Config, parse_config
from splitreel.config_tools.starter import starter
from splitreel.errors import ConfigError


def config(*nodes: str, **changes: Any) -> Config:
    return parse_config({**yaml.safe_load(starter(nodes)), **changes})


def started(text: str) -> dict[str, str]:
    """The options of a `ray start` line."""
    words = shlex.split(text)
    assert words[:2] == ["ray", "start"]
    return dict(word.removeprefix("--").partition("=")[::2] for word in words[2:])


def test_two_sparks() -> None:
    head, worker = node_commands(config("192.168.23.1", "192.168.23.2"), unified=True)
    assert (head.address, head.roles, head.head) == ("192.168.23.1", ("encoder_decoder",), True)
    assert (worker.address, worker.roles, worker.head) == ("192.168.23.2", ("dit",), False)
    assert started(head.lines[-1]) == {
        "head": "",
        "node-ip-address": "192.168.23.1",
        "port": "6379",
        "num-gpus": "1",
        "object-store-memory": str(2 * 1024**3),
        "memory": str(4 * 1024**3),
        "disable-usage-stats": "",
    }
    assert started(worker.lines[-1])["address"] == "192.168.23.1:6379"
    for each in (head, worker):
        assert "export RAY_AUTH_MODE=token" in each.lines
        assert any(line.startswith("export RAY_memory_monitor_refresh_ms=0") for line in each.lines)
    assert any(line.startswith("ray get-auth-token --generate") for line in head.lines)
    assert any(line.startswith("ssh 192.168.23.2 ") for line in head.lines)
    text = as_text([head, worker])
    assert text.startswith("# on 192.168.23.1: encoder_decoder, head\n")


def test_discrete_gpus_without_a_token_keep_the_monitor() -> None:
    for each in node_commands(config("a", "b", "c"), token=False, store_bytes=10**9):
        assert len(each.lines) == 1
        assert started(each.lines[0])["object-store-memory"] == str(10**9)


def test_a_head_without_a_role_has_no_gpu_and_several_roles_add_up() -> None:
    role = {"device": "cuda"}
    own = {"encoder_decoder": {**role, "node": "b"}, "dit": {**role, "nodes": ["b", "c"]}}
    head, both, one = node_commands(config("x", "y", cluster={"address": "a:7000"}, roles=own))
    assert (head.address, head.roles, started(head.lines[-1])["num-gpus"]) == ("a", (), "0")
    assert started(head.lines[-1])["port"] == "7000"
    assert (both.roles, started(both.lines[-1])["num-gpus"]) == (("encoder_decoder", "dit"), "2")
    assert started(one.lines[-1])["address"] == "a:7000"


def test_one_machine_with_two_gpus() -> None:
    roles = {"encoder_decoder": {"device": "cuda"}, "dit": {"device": "cuda"}}
    (only,) = node_commands(config("x", "y", cluster={"address": "auto"}, roles=roles))
    assert "node-ip-address" not in started(only.lines[-1])
    assert started(only.lines[-1])["num-gpus"] == "2"
    assert as_text([only]).startswith("# on this machine: encoder_decoder + dit, head")
    (there,) = node_commands(config("x", "y", cluster={"address": "10.0.0.1:6379"}, roles=roles))
    assert started(there.lines[-1])["node-ip-address"] == "10.0.0.1"


def test_addresses_of_version_6_are_bracketed_where_a_port_follows() -> None:
    head, worker = node_commands(config("fd00::1", "fd00::2"))
    assert started(head.lines[-1])["node-ip-address"] == "fd00::1"
    assert started(worker.lines[-1])["address"] == "[fd00::1]:6379"
    assert any("scp -p ~/.ray/auth_token '[fd00::2]':.ray/" in line for line in head.lines)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": {"address": "local"}}, "cluster.address: expected HOST:PORT of a head that is to be started, found local"),
        ({"roles": {"encoder_decoder": {"node": "a"}, "dit": {}}}, r"roles.dit.node: expected an address because other roles"),
        ({"roles": {"encoder_decoder": {"node": "a"}, "dit": {"node": "rack=left"}}}, "found a label"),
        ({"roles": {"encoder_decoder": {"node": "a"}, "dit": {"node": "0123456789abcdef"}}}, "found a node id"),
    ],
)  # fmt: skip
def test_configs_that_do_not_say_where_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        node_commands(config("a", "b", **changes))


def test_a_store_below_rays_least_is_refused() -> None:
    with pytest.raises(ConfigError, match="--object-store: expected"):
        node_commands(config("a", "b"), store_bytes=10**6)
