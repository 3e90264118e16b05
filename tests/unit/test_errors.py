"""Errors cross processes whole."""

import pickle

import pytest

from splitreel import errors
from splitreel.errors import InvalidRequest, SplitreelError, StageError


def every_error() -> list[type[SplitreelError]]:
    return [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, SplitreelError)]


@pytest.mark.parametrize("kind", every_error())
def test_pickles_with_details(kind: type[SplitreelError]) -> None:
    error = pickle.loads(pickle.dumps(kind("where: expected a, found b. Do c.", field="where", steps=[1, 2])))
    assert type(error) is kind
    assert str(error) == "where: expected a, found b. Do c."
    assert error.field == "where"
    assert error.steps == [1, 2]


def test_the_tree_is_drawn_as_it_is() -> None:
    drawn = errors.__doc__ or ""
    missing = [kind.__name__ for kind in every_error() if kind.__name__ not in drawn]
    assert missing == []
    for line in drawn.splitlines():
        if "├" in line or "└" in line:
            parent, *children = line.replace("├", "").replace("└", "").replace("·", " ").split()
            for child in children:
                if hasattr(errors, child):
                    assert issubclass(getattr(errors, child), getattr(errors, parent)), (child, parent)


def test_an_unknown_detail_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = InvalidRequest("x").stage
    assert StageError("x", stage="decode").stage == "decode"
