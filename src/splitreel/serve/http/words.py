"""What a session says of a request, in the words of the client that sent it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from splitreel.errors import InvalidRequest
from splitreel.request import GenerateRequest

if TYPE_CHECKING:
    from splitreel.serve.http.shapes import CreateVideo

# A field of GenerateRequest → what the client called it; None where it sent nothing of the kind.
Names = Mapping[str, str | None]

_PHRASES = (("image or last_image", "keyframes or input_reference"), ("height and width", "size"))


def names_of(order: CreateVideo, *, guide: str | None) -> dict[str, str | None]:
    """The client's names. `guide`: what `input_reference` became, `image`, `references` or nothing."""
    names: dict[str, str | None] = dict.fromkeys(("height", "width", "height, width"), "size")
    names |= {"image": "input_reference" if guide == "image" else "keyframes.first", "last_image": "keyframes.last"}
    shift = guide == "references"
    count = len(order.references) + shift
    names |= {f"references[{index}]": f"references[{index - shift}]" for index in range(shift, count)}
    if shift:
        names["references[0]"] = "input_reference"
    sent = [("keyframes", order.keyframes), ("input_reference", guide), ("references", order.references)]
    names["workflow"] = next((name for name, value in sent if value), None)
    return names


@contextmanager
def in_their_words(names: Names) -> Iterator[None]:
    """Let InvalidRequest say, and `field` name, what the client sent."""
    try:
        yield
    except InvalidRequest as error:
        field = error.details.get("field")
        head, separator, rest = error.message.partition(": ")
        if separator and all(
            part in GenerateRequest.__dataclass_fields__ or part in names for part in head.split(", ")
        ):
            head = ", ".join(dict.fromkeys(names.get(part) or part for part in head.split(", ")))
        message = phrased(f"{head}{separator}{rest}")
        theirs = names.get(field, field) if isinstance(field, str) else None
        raise InvalidRequest(message, **{**error.details, "field": theirs}) from error


def phrased(text: str) -> str:
    """A sentence of ours without the names that this API has others for."""
    for ours, theirs in _PHRASES:
        text = text.replace(ours, theirs)
    return text
