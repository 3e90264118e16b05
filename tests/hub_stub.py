"""A model hub on loopback: the HTTP calls that huggingface_hub makes for a snapshot, over a local directory."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

COMMIT = "c" * 40


class Hub:
    """Serves one repository; remembers which files were fetched, and of which only a part (`headers`). `token`: what a caller must show, if anything."""

    def __init__(self, root: Path, repo_id: str, token: str | None = None) -> None:
        self.root, self.repo_id, self.token = root, repo_id, token
        self.fetched: set[str] = set()
        self.headers: set[str] = set()
        self.refused = 0
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Keep the test's output clean."""

            def do_HEAD(self) -> None:
                hub._answer(self, body=False)

            def do_GET(self) -> None:
                hub._answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def _answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlparse(handler.path).path)
        if self.token is not None and handler.headers.get("Authorization") != f"Bearer {self.token}":
            self.refused += 1
            self._send(handler, 401, b'{"error": "gated"}', {"X-Error-Code": "GatedRepo"}, body)
            return
        files = {str(item.relative_to(self.root)): item for item in self.root.rglob("*") if item.is_file()}
        if path.startswith(f"/api/models/{self.repo_id}"):
            content: object = {
                "id": self.repo_id,
                "sha": COMMIT,
                "siblings": [{"rfilename": name, "size": item.stat().st_size} for name, item in sorted(files.items())],
            }
            if "/tree/" in path:
                content = [
                    {"type": "file", "path": name, "size": item.stat().st_size, "oid": digest(item)}
                    for name, item in sorted(files.items())
                ]
            self._send(handler, 200, json.dumps(content).encode(), {"Content-Type": "application/json"}, body)
            return
        prefix = f"/{self.repo_id}/resolve/"
        name = path.removeprefix(prefix).partition("/")[2]
        if not path.startswith(prefix) or name not in files:
            self._send(handler, 404, b"{}", {"X-Error-Code": "EntryNotFound"}, body)
            return
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        if part is not None:
            self.headers.add(name)
            begin, end = int(part[1]), int(part[2]) + 1
            self._send(handler, 206, files[name].read_bytes()[begin:end], {"Accept-Ranges": "bytes"}, body)
            return
        if body:
            self.fetched.add(name)
        headers = {"ETag": f'"{digest(files[name])}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        self._send(handler, 200, files[name].read_bytes(), headers, body)

    def _send(
        self, handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str], body: bool
    ) -> None:
        handler.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            handler.send_header(key, value)
        handler.end_headers()
        if body:
            handler.wfile.write(content)


def digest(path: Path) -> str:
    """A git-like blob id."""
    return hashlib.sha1(path.read_bytes()).hexdigest()


@contextmanager
def serving(root: Path, repo_id: str, token: str | None = None) -> Iterator[Hub]:
    """A running hub."""
    hub = Hub(root, repo_id, token)
    thread = threading.Thread(target=hub.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join(5)
