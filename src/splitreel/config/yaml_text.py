"""Reading YAML that people wrote: stricter than plain YAML where it would guess, and every failure a YAMLError with its place."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from splitreel.words import kind_of

MERGE = "tag:yaml.org,2002:merge"


def read_yaml(text: str) -> Any:
    """The plain data of one document. Raises yaml.YAMLError, also for a key given twice, where plain YAML keeps the last."""
    try:
        return yaml.load(text, Loader=_Careful)
    except RecursionError:
        raise yaml.YAMLError("sections within sections without end") from None


class _Careful(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._flat: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace `<<` by what it stands for: of several the first holds, and the section's own settings before all.

        PyYAML's own (6.0.4) compares names by identity, so that of several the first holds or the last.
        """
        if id(node) in self._flat:
            return
        self._flat.add(id(node))
        self._check_keys(node)
        merged: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        own: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if key.tag != MERGE:
                own[self.construct_object(key, deep=True)] = key, value
                continue
            for each in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                if not isinstance(each, yaml.MappingNode):
                    raise _error("behind << something else than a section or a list of them,", each)
                self.flatten_mapping(each)
                for pair in each.value:
                    if pair[0].tag == MERGE:
                        raise _error("a section merged into itself,", each)
                    merged.setdefault(self.construct_object(pair[0], deep=True), pair)
        node.value = list({**merged, **own}.values())

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key_node, _ in node.value:
            key = "<<" if key_node.tag == MERGE else self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                words = f"{kind_of(key)} as a name, such as a template in {{{{ }}}} that was not filled in,"
                raise _error(words, key_node)
            if key in seen:
                raise _error(f"the key {key!r} twice", key_node)
            seen.add(key)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """As in PyYAML, whose converters of dates and numbers let Python's own errors out."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, AttributeError) as error:
            kind = str(node.tag).rpartition(":")[2]
            words = f"{str(node.value)[:40]!r}, which looks like YAML's {kind} and is none (in quotes it is a text),"
            raise _error(words, node) from error


def _error(words: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, words, node.start_mark)
