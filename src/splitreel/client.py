"""Client: what the `openai` package has no word for, of a `splitreel serve` at any address.

Create, poll, download, list and delete with `openai.OpenAI(base_url=...)`; follow, trace, cancel, and send references,
last frames and sounds with this. Needs neither torch nor Ray to run.
"""

from __future__ import annotations

import json
import mimetypes
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from splitreel.errors import ClusterUnreachable, InvalidRequest, QueueFull, RequestError
from splitreel.request import Reference, VideoReference

_KINDS: dict[int, type[RequestError]] = {400: InvalidRequest, 413: InvalidRequest, 415: InvalidRequest, 429: QueueFull}


class Client:
    """One server. Answers are the API's own objects as dictionaries.

    ```python
    with splitreel.Client("http://127.0.0.1:8000") as client:
        video = client.create("She sings.", references=[ImageReference("her.png"), AudioReference("voice.wav")])
        for event in client.events(video["id"]):
            print(event["progress"], event["stage"], event["eta"])
    ```
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout: float = 60.0) -> None:
        """`base_url`: with or without `/v1`. `api_key`: OPENAI_API_KEY of the environment by default."""
        key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", "")
        self._http = httpx.Client(
            base_url=base_url.rstrip("/").removesuffix("/v1") + "/v1",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=timeout,
        )

    def create(
        self,
        prompt: str,
        *,
        image: str | os.PathLike[str] | None = None,
        last_image: str | os.PathLike[str] | None = None,
        references: Sequence[Reference] = (),
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Make a video from files of this machine; `fields` are the API's: seconds, size, steps, seed, priority, deadline...

        Raises InvalidRequest, QueueFull (with `retry_after`), ClusterUnreachable.
        """
        form: dict[str, str] = {"prompt": prompt}
        form |= {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in fields.items()
            if value is not None
        }
        keyframes = {name: path for name, path in (("first", image), ("last", last_image)) if path is not None}
        entries: list[dict[str, Any]] = []
        with ExitStack() as files:
            parts: dict[str, Any] = {name: _part(path, files) for name, path in keyframes.items()}
            for index, reference in enumerate(references):
                source: Any = reference.source
                if not isinstance(source, str | os.PathLike):
                    raise InvalidRequest(
                        f"references[{index}]: expected the path of a file, found {type(source).__name__}. Write it to one.",
                        field=f"references[{index}]",
                    )
                name = f"reference-{index}"
                parts[name] = _part(source, files)
                fps = {"fps": reference.fps} if isinstance(reference, VideoReference) and reference.fps else {}
                entries.append({"kind": reference.kind, "upload": name, **fps})
            if keyframes:
                form["keyframes"] = json.dumps({name: {"upload": name} for name in keyframes})
            if entries:
                form["references"] = json.dumps(entries)
            headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
            # Without a file it must be a form all the same: the fields are texts.
            parts = parts or {"prompt": (None, form.pop("prompt"))}
            return self._ask("POST", "/videos", data=form, files=parts, headers=headers)

    def events(self, video_id: str) -> Iterator[dict[str, Any]]:
        """The video now and whenever it changes: status, stage, step and ETA.

        Ends with the job, when it is deleted, or with the server.
        """
        try:
            with self._http.stream("GET", f"/videos/{video_id}/events", timeout=httpx.Timeout(30.0)) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise _error(answer)
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def trace(self, video_id: str) -> dict[str, Any]:
        """Where the time of a video that has ended went: `parts` with seconds, and all spans."""
        return self._ask("GET", f"/videos/{video_id}/trace")

    def cancel(self, video_id: str) -> dict[str, Any]:
        """End a video: at once while queued, at its next step while in progress."""
        return self._ask("POST", f"/videos/{video_id}/cancel")

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if answer.status_code >= 400:
            raise _error(answer)
        found: dict[str, Any] = answer.json()
        return found

    def _unreachable(self, error: Exception) -> ClusterUnreachable:
        return ClusterUnreachable(
            f"server: expected an answer from {self._http.base_url}, found {type(error).__name__} ({error}). Check the "
            "address, and that `splitreel serve` runs there."
        )


def _part(path: str | os.PathLike[str], files: ExitStack) -> tuple[str, Any, str]:
    file = Path(path)
    try:
        stream = files.enter_context(file.open("rb"))
    except OSError as error:
        raise InvalidRequest(f"{file}: expected a readable file, found {error.strerror}. Check the path.") from error
    return file.name, stream, mimetypes.guess_type(file.name)[0] or "application/octet-stream"


def _error(answer: httpx.Response) -> RequestError:
    """The server's error as the exception that a session would raise."""
    try:
        detail = answer.json()["error"]
        message, code, param = str(detail["message"]), detail.get("code"), detail.get("param")
    except (ValueError, KeyError, TypeError):
        message, code, param = f"server: expected JSON, found status {answer.status_code}.", None, None
    after = answer.headers.get("retry-after", "")
    more = {"retry_after": int(after)} if after.isdecimal() else {}
    kind = _KINDS.get(answer.status_code, RequestError)
    return kind(message, status=answer.status_code, code=code, field=param, **more)
