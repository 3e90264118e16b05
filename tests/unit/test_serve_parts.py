"""Parts of the server that need no server: keys, hosts and origins, fetching, forms, pace."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import FormData

from splitreel.config import KeyConfig, ServeConfig
from splitreel.config.reading import apply_override
from splitreel.errors import ConfigError, InvalidRequest
from splitreel.observe.progress import Progress
from splitreel.observe.timings import StageTiming, Timings
from splitreel.serve.cli.serve import _yaml
from splitreel.serve.http.bodies import _of_form
from splitreel.serve.http.errors import _STATUS
from splitreel.serve.http.fetching import fetch, is_public
from splitreel.serve.http.guard import Guard
from splitreel.serve.http.keys import check_exposure, is_loopback, key_digest, make_key, owner_of
from splitreel.serve.jobs.pace import Pace
from splitreel.serve.jobs.refusals import code_of, message_of


def test_keys_are_compared_by_digest_and_all_of_them() -> None:
    key, digest = make_key()
    assert key_digest(key) == digest
    assert key not in digest
    keys = [KeyConfig(name="ann", sha256=digest), KeyConfig(name="bob", sha256=make_key()[1])]
    assert owner_of(f"Bearer {key}", keys) == "ann"
    assert owner_of(f"bearer  {key} ", keys) == "ann"
    for wrong in (None, "", "Bearer", f"Bearer {key}x", f"Token {key}", "Basic !!!", "Basic YQ==", f"Bearer {digest}"):
        assert owner_of(wrong, keys) is None


def test_listening_to_a_network_needs_a_key_or_a_word() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        assert is_loopback(host)
        check_exposure(ServeConfig(host=host))
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        with pytest.raises(ConfigError, match="splitreel key NAME"):
            check_exposure(ServeConfig(host=host))
        check_exposure(ServeConfig(host=host, allow_without_key=True))
        check_exposure(ServeConfig(host=host, keys=[KeyConfig(name="a", sha256="0" * 64)]))


def ask(settings: ServeConfig, **headers: str) -> int:
    """The status that the guard gives, 200 from the app behind it."""
    statuses: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    sent = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/v1/videos", "headers": sent}
    asyncio.run(Guard(app, settings, lambda *found: None)(scope, receive, send))
    return statuses[0]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "films.example"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "192.168.1.2"}, 403),
        ({}, 403),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
        ({"Host": "localhost:8000", "Origin": "http://localhost:9000"}, 403),
        ({"Host": "localhost:8000", "Origin": "https://evil.example"}, 403),
        ({"Host": "localhost:8000", "Origin": "null"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://["}, 403),
        ({"Host": "localhost", "Cookie": "x" * 40_000}, 431),
    ],
)
def test_hosts_and_origins(headers: dict[str, str], status: int) -> None:
    assert ask(ServeConfig(hosts=["films.example"]), **headers) == status


def test_addresses_that_are_nobodys_business() -> None:
    for address in (
        "127.0.0.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    ):  # fmt: skip
        assert not is_public(ipaddress.ip_address(address)), address
    for address in ("8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"):
        assert is_public(ipaddress.ip_address(address)), address


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://localhost/x", "expected an https URL"),
        ("https://user:pw@localhost/x", "expected an https URL without user and password"),
        ("ftp://localhost/x", "expected an https URL"),
        ("https://[::1/x", "expected an https URL"),
        ("https://other.example/x", "expected a host that this server fetches from (localhost)"),
        ("https://localhost:1/x", "expected a host with public addresses only"),
    ],
)
def test_what_is_not_fetched(tmp_path: Path, url: str, found: str) -> None:
    """`localhost` is allowed by name here, and refused by its address all the same. Nothing is contacted."""
    with pytest.raises(InvalidRequest) as refused:
        fetch(url, tmp_path / "x", "image", hosts=["localhost"], max_bytes=10)
    assert found in str(refused.value)
    assert not (tmp_path / "x").exists()


def form(*pairs: tuple[str, str]) -> dict[str, Any]:
    return _of_form(FormData(list(pairs)))[0]


def test_forms_as_the_openai_client_spells_them() -> None:
    assert form(("prompt", "A lake."), ("steps", "5")) == {"prompt": "A lake.", "steps": "5"}
    assert form(("keyframes[first][url]", "a"), ("keyframes[last][url]", "b")) == {
        "keyframes": {"first": {"url": "a"}, "last": {"url": "b"}}
    }
    assert form(("references", '[{"kind": "image"}]')) == {"references": [{"kind": "image"}]}
    assert form(("prompt", '["not JSON for a prompt"]')) == {"prompt": '["not JSON for a prompt"]'}
    for wrong, found in (
        ((("references[][kind]", "image"),), "whose order cannot be known"),
        ((("prompt", "a"), ("prompt", "b")), "expected one value, found several"),
        ((("a", "1"), ("a[b]", "2")), "expected one value, found several"),
        ((("a]b[", "1"),), "expected a name such as"),
        ((("references", "[{"),), "expected JSON text"),
    ):
        with pytest.raises(InvalidRequest, match=found):
            form(*wrong)


def test_pace_follows_what_was_measured() -> None:
    pace = Pace()
    at = Progress("r", "denoise", "step", 2, 4, 2.0)
    assert (pace.percent(at), pace.eta(at), pace.retry_after()) == (45, None, 60)
    timings = Timings(
        tuple(
            StageTiming(stage, "w", "n", seconds)
            for stage, seconds in (("encode", 1.0), ("denoise", 2.0), ("decode", 1.0))
        )
    )
    pace.film_done(timings, 100.0, 104.0)
    assert (pace.percent(at), pace.eta(at)) == (50, 3.0)
    assert pace.seconds_per_film == 4.0
    pace.film_done(timings, 102.0, 106.0)
    assert pace.seconds_per_film == 3.0, "two films in six seconds"
    pace.film_done(timings, 1000.0, 1003.0)
    assert (pace.seconds_per_film, pace.retry_after()) == (3.0, 3), "idle time says nothing"
    assert pace.percent(Progress("r", "decode", "chunk", 9, 9, 1.0)) == 99, "done is only what was written down"


def test_a_folder_may_have_any_name() -> None:
    for name in ("🎬 jobs", 'a "b": c', "ä\\ö", "null", "07"):
        merged = apply_override({}, f"serve.folder={_yaml(Path(name))}")
        assert ServeConfig(**merged["serve"]).folder == name


def test_the_page_on_serving_names_every_setting_and_status() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/serve.md").read_text(encoding="utf-8")
    table = page.partition("## Settings")[2].partition("\n## ")[0]
    assert [name for name in ServeConfig.model_fields if f"\n| `{name}` |" not in table] == []
    errors = page.partition("Errors have OpenAI's shape")[2].partition("\n## ")[0]
    assert [status for _, status in _STATUS if f"{status} " not in errors] == []


def test_words_for_errors() -> None:
    assert code_of(InvalidRequest("x")) == "invalid_request"
    assert code_of(KeyError("secret")) == "internal_error"
    assert "secret" not in message_of(KeyError("secret"))
