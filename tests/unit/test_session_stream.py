"""The window of a stream, without a session."""

from __future__ import annotations

import pytest

from splitreel import GenerateRequest, InvalidRequest
from splitreel.session_stream import Window


def test_one_request_is_no_stream() -> None:
    with pytest.raises(TypeError, match=r"stream: expected several requests, found one\. Use generate"):
        Window(GenerateRequest(prompt="A lake."), 4)  # type: ignore[arg-type]


def test_a_refusal_says_which_request_it_is_about() -> None:
    window = Window([GenerateRequest(prompt=f"Lake {index}.") for index in range(3)], 4)
    window.wanted()
    request = window.wanted()
    assert request is not None
    error = InvalidRequest("steps: expected 2 or more, found 1.")
    window.refused(request, error)
    assert error.__notes__ == ["It is request 2 of the stream."]
