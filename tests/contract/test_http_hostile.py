"""What nobody should send: every one is refused with a word why, and the server goes on as before. And the whole document
of the API under random requests.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import pickle
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from PIL import Image

from servers import body, served, until_ended

pytestmark = pytest.mark.timeout(240)
LIMITS = {"max_upload_bytes": 2_000_000, "max_field_bytes": 300_000, "max_pixels": 4_000_000, "max_seconds": 10.0}
VIDEO = "/v1/videos"
Send = Callable[[httpx.Client], httpx.Response]


def png_header(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG that says so many pixels, whatever its data hold."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64," + base64.b64encode(content).decode()


def small_png() -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (64, 64)).save(made, format="PNG")
    return made.getvalue()


def posts(content: Any = None, **fields: Any) -> Send:
    """A JSON body."""
    return lambda http: http.post(VIDEO, json=content if content is not None else body(**fields))


def pictures(content: bytes, name: str = "a.png", kind: str = "image/png", **fields: Any) -> Send:
    """A form with a file."""
    return lambda http: http.post(
        VIDEO, data={"prompt": "A lake.", "steps": "2", **fields}, files={"input_reference": (name, content, kind)}
    )


def gets(path: str, method: str = "GET", **headers: str) -> Send:
    return lambda http: http.request(method, path, headers=headers)


def raw(*parts: str) -> Send:
    """Bytes that no client library would send; an answer that is no HTTP counts as a refusal by the server itself."""

    def send(http: httpx.Client) -> httpx.Response:
        with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=20) as connection:
            connection.sendall("\r\n".join(parts).encode("latin-1"))
            answer = b""
            while part := connection.recv(65_536):
                answer += part
        status = int(answer.split()[1]) if answer.startswith(b"HTTP/1.1") else 400
        return httpx.Response(status)

    return send


def says_2_gb(http: httpx.Client) -> httpx.Response:
    return raw(
        "POST /v1/videos HTTP/1.1", "Host: localhost", "Content-Type: multipart/form-data; boundary=x",
        "Content-Length: 2147483648", "Connection: close", "", "--x",
    )(http)  # fmt: skip


def sends_without_end(http: httpx.Client) -> httpx.Response:
    """2 GB in chunks that no header counts; sending ends when the server has had enough."""

    def parts() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="input_reference"; filename="a.png"\r\n\r\n'
        for _ in range(2048):
            yield b"\0" * 1_048_576

    try:
        return http.post(VIDEO, content=parts(), headers={"Content-Type": "multipart/form-data; boundary=x"})
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        return httpx.Response(413)  # cut off while it was still sending


def text_chunks() -> bytes:
    """A small PNG with a text that unpacks to 100 MB."""
    plain = small_png()
    content = b"Comment\0\0" + zlib.compress(b"\0" * 100_000_000, 9)
    chunk = struct.pack(">I", len(content)) + b"zTXt" + content + struct.pack(">I", zlib.crc32(b"zTXt" + content))
    return plain[:33] + chunk + plain[33:]


class _Evil:
    def __reduce__(self) -> Any:
        return (Path("/tmp/splitreel-was-unpickled").touch, ())


HOSTILE: dict[str, tuple[Send, tuple[int, ...]]] = {
    # paths
    "path traversal in an id": (gets("/v1/videos/..%2f..%2f..%2fetc%2fpasswd"), (400, 404)),
    "path traversal in a content": (gets("/v1/videos/..%2f..%2fjobs.db/content"), (400, 404)),
    "dots in a path": (raw("GET /v1/videos/../../../etc/passwd HTTP/1.1", "Host: localhost", "Connection: close", "", ""), (400, 404)),
    "a null in an id": (gets("/v1/videos/video_%00"), (404,)),
    "the database by name": (gets("/jobs.db"), (404,)),
    "a variant with a path": (gets("/v1/videos/video_000000000000000000000000/content?variant=../../jobs.db"), (400,)),
    "a file name with a path": (pictures(b"no picture", name="../../../../etc/cron.d/x"), (400,)),
    "a path as a source": (posts(input_reference="/etc/passwd"), (400,)),
    "a file URL": (posts(input_reference={"image_url": "file:///etc/passwd"}), (400,)),
    "an upload by a path": (posts(keyframes={"first": {"upload": "/etc/passwd"}}), (400,)),
    # SQL
    "SQL in an id": (gets("/v1/videos/' OR '1'='1"), (404,)),
    "SQL in after": (gets("/v1/videos?after=x'%3B DROP TABLE splitreel_jobs%3B--"), (404,)),
    "SQL in an order": (gets("/v1/videos?order=asc;DELETE FROM splitreel_jobs"), (400,)),
    # media
    "100,000 pixels square": (pictures(png_header(100_000, 100_000)), (400,)),
    "a picture beyond the limit": (pictures(png_header(3000, 3000, b"\0" * 9_003_000)), (400,)),
    "a picture that unpacks to 100 MB of text": (pictures(text_chunks()), (400,)),
    "pixels that are not there": (pictures(png_header(1000, 1000, b"\0" * 10)), (400,)),
    "a text as a picture": (pictures(b"hello" * 100), (400,)),
    "a picture that says it is HTML": (pictures(small_png(), kind="text/html"), (415,)),
    "SVG with an entity": (pictures(b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><svg>&a;</svg>', kind="image/svg+xml"), (400,)),
    "PostScript": (pictures(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nquit", kind="image/eps"), (400,)),
    "a pickle": (pictures(pickle.dumps(_Evil()), kind="application/octet-stream"), (400,)),
    "a playlist as a clip": (posts(references=[{"kind": "video", "url": data_url(b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "video/mp4")}]), (400,)),
    "an empty file": (pictures(b""), (400,)),
    "broken base64": (posts(input_reference={"url": "data:image/png;base64,!!!"}), (400,)),
    # bodies
    "2 GB by its header": (says_2_gb, (413,)),
    "2 GB without a length": (sends_without_end, (413,)),
    "a zipped body": (lambda http: http.post(VIDEO, content=b"\x1f\x8b", headers={"Content-Type": "application/json", "Content-Encoding": "gzip"}), (415,)),
    "a large field": (lambda http: http.post(VIDEO, files={"prompt": (None, b"x" * 400_000)}), (400, 413)),
    "a large JSON": (posts(prompt="x" * 400_000), (413,)),
    "deep JSON": (lambda http: http.post(VIDEO, content=b"[" * 100_000, headers={"Content-Type": "application/json"}), (400,)),
    "300 fields": (lambda http: http.post(VIDEO, files=[(f"f{index}", (None, b"x")) for index in range(300)]), (400,)),
    "NaN": (lambda http: http.post(VIDEO, content=b'{"prompt": "x", "seconds": NaN}', headers={"Content-Type": "application/json"}), (400,)),
    "half a character": (lambda http: http.post(VIDEO, content=b'{"prompt": "\\ud800"}', headers={"Content-Type": "application/json"}), (400,)),
    "no boundary": (lambda http: http.post(VIDEO, content=b"x", headers={"Content-Type": "multipart/form-data"}), (400,)),
    # addresses that are the server's neighbours (no name is looked up, nothing is contacted: no host is allowed)
    "the cloud's metadata": (posts(input_reference={"image_url": "http://169.254.169.254/latest/meta-data/"}), (400,)),
    "localhost": (posts(input_reference={"image_url": "https://localhost:1/x.png"}), (400,)),
    "loopback in other words": (posts(input_reference={"image_url": "https://0x7f000001/x.png"}), (400,)),
    "loopback as IPv6": (posts(input_reference={"image_url": "https://[::ffff:127.0.0.1]/x.png"}), (400,)),
    "a host that is not allowed": (posts(input_reference={"image_url": "https://media.example.org/x.png"}), (400,)),
    # headers
    "a foreign host name": (gets("/v1/videos", Host="evil.example"), (403,)),
    "another site's page": (lambda http: http.post(VIDEO, json=body(), headers={"Origin": "https://evil.example"}), (403,)),
    "a page without a place": (lambda http: http.post(VIDEO, json=body(), headers={"Origin": "null"}), (403,)),
    "a second request within a body": (raw("POST /v1/videos HTTP/1.1", "Host: localhost", "Content-Length: 5", "Transfer-Encoding: chunked", "Connection: close", "Content-Type: application/json", "", "0", "", "GET /v1/models HTTP/1.1", "Host: x", "", ""), (400,)),
    "a header of 100 KB": (gets("/v1/videos", **{"X-Long": "x" * 100_000}), (400, 431)),
    "a line break in a key": (lambda http: http.post(VIDEO, json=body(), headers={"Idempotency-Key": "a b\tc"}), (400,)),
    "TRACE": (gets("/v1/videos", method="TRACE"), (405,)),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder, **LIMITS) as at:
        yield at


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as client:
        yield client


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(http: httpx.Client, folder: Path, name: str) -> None:
    send, statuses = HOSTILE[name]
    files = {path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("jobs.db")}
    memory = psutil.Process().memory_info().rss
    answer = send(http)
    assert answer.status_code in statuses, answer.text
    if answer.headers.get("content-type") == "application/json":
        error = answer.json()["error"]
        assert error["message"], error
        assert str(folder) not in answer.text, "where things are kept is no client's business"
        assert "Traceback" not in answer.text
    left = {path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("jobs.db")}
    assert left == files, "nothing of it is kept"
    assert psutil.Process().memory_info().rss - memory < 150_000_000
    assert http.get("/health").status_code == 200


def test_after_all_of_it_the_server_works(http: httpx.Client) -> None:
    assert len(HOSTILE) >= 40
    assert not Path("/tmp/splitreel-was-unpickled").exists()
    made = http.post(VIDEO, json=body())
    assert until_ended(http, made.json()["id"])["status"] == "completed"
    assert len(http.get(VIDEO).json()["data"]) == 1, "none of the above became a job"


def test_random_requests_by_the_document(http: httpx.Client) -> None:
    """schemathesis: every operation; no 5xx, nothing that the document does not say."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, Verbosity, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    document = http.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    quiet = settings(
        max_examples=8,
        deadline=None,
        database=None,
        derandomize=True,
        verbosity=Verbosity.quiet,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seen = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith("/events"):
            continue  # of a video that runs it ends with the video; tested beside this
        for mode in schemathesis.GenerationMode:
            print(mode, operation.method, operation.path, seen)

            @quiet
            @given(case=operation.as_strategy(generation_mode=mode))
            def one(case: Any) -> None:
                nonlocal seen
                seen += 1
                case.call_and_validate(base_url=str(http.base_url), checks=checks, timeout=30)

            with contextlib.suppress(Unsatisfiable):  # nothing can be wrong where nothing is asked for
                one()
    assert seen > 80
    assert http.get("/health").status_code == 200
    assert json.loads(http.get("/openapi.json").text) == document
