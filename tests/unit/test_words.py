"""What users read is in plain words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from splitreel.words import counted, kind_of, plainly

WORDS: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "absent").read_text(), "no such file or directory"),
    (lambda folder: (folder / "file" / "below").mkdir(parents=True), "not a directory: {folder}/file/below"),
    (lambda folder: (folder / "bytes").read_text(encoding="utf-8"), "no UTF-8 text (byte 3)"),
    (lambda folder: yaml.safe_load("a: [1,\n b: '"), "unexpected end of stream in line 2, column 6"),
    (lambda folder: yaml.safe_load("a: 1\nb: 2: 3"), "mapping values are not allowed here in line 2, column 5"),
    (lambda folder: yaml.safe_load("{a"), "expected ',' or '}', but got the end in line 1, column 3"),
    (lambda folder: yaml.safe_load("a: \x00"), "a character that no text has, at 3"),
    (lambda folder: json.loads("hello"), "no JSON from character 1 on"),
    (lambda folder: json.loads('{"a": 1,\n "b"}'), "no JSON from line 2, character 5 on"),
    (lambda folder: (folder / "absent" / "..").read_text(), "no such file or directory: {folder}/absent/.."),
    (lambda folder: {}["stage"], "no stage"),
    (lambda folder: int("x"), "invalid literal for int() with base 10: 'x'"),
    (lambda folder: next(iter([])), "StopIteration"),
]


@pytest.mark.parametrize(("work", "words"), WORDS)
def test_what_python_says_is_said_plainly(work: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    with pytest.raises(Exception) as raised:  # noqa: PT011
        work(tmp_path)
    assert plainly(raised.value, tmp_path / "absent") == words.replace("{folder}", str(tmp_path))


def test_a_folder_where_a_file_is_expected(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as raised:
        tmp_path.read_text()
    assert plainly(raised.value, tmp_path) == "a folder"


def test_kinds_of_data_in_words() -> None:
    found = [kind_of(value) for value in (None, {}, [], "a", True, 1, 1.5, b"")]
    assert found == ["nothing", "a mapping", "a list", "a text", "true or false", "a number", "a number", "bytes"]


def test_one_thing_is_not_called_several() -> None:
    assert [counted(number, "film") for number in (0, 1, 2)] == ["0 films", "1 film", "2 films"]
    assert [counted(number, "try", "tries") for number in (1, 2)] == ["1 try", "2 tries"]
