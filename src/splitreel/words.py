"""Words for messages: what Python and libraries say, put plainly; kinds of data; numbers with their nouns."""

from __future__ import annotations

from json import JSONDecodeError


def plainly(error: BaseException, known: object = None) -> str:
    """What an error of Python or of a library says, in words that stand after "found": without numbers, brackets and names
    of the program's own things. `known`: the path that the message names already.
    """
    mark = getattr(error, "problem_mark", None)
    if mark is not None:  # YAML
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or "something else"
        problem = str(problem).removeprefix("found ").replace("'<stream end>'", "the end")
        return f"{problem} in line {mark.line + 1}, column {mark.column + 1}"
    if hasattr(error, "reason") and hasattr(error, "position"):  # YAML's reader
        return f"a character that no text has, at {error.position}"
    if isinstance(error, JSONDecodeError):
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        return f"no JSON from {line}character {error.colno} on"
    if isinstance(error, IsADirectoryError) and (error.filename is None or str(error.filename) == str(known)):
        return "a folder"
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 text (byte {error.start + 1})"
    if isinstance(error, OSError) and error.strerror:
        words = error.strerror[0].lower() + error.strerror[1:]
        named = error.filename is not None and str(error.filename) != str(known)
        return f"{words}: {error.filename}" if named else words
    if isinstance(error, KeyError) and error.args:
        return f"no {error.args[0]}"
    return str(error) or type(error).__name__


def kind_of(value: object) -> str:
    """What some data is, in words for whoever wrote the file that it was read from."""
    names = {type(None): "nothing", dict: "a mapping", list: "a list", str: "a text", bool: "true or false"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 film`, `2 films`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
