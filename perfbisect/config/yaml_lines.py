"""YAML with the line of every key: plain data, and where it stands, so that a message can point at it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from perfbisect.errors import LocatedError, UsageError

try:
    from yaml import CSafeLoader as _Fast
except ImportError:  # PyYAML without its C library
    from yaml import SafeLoader as _Fast  # type: ignore[assignment]

Place = tuple[str | int, ...]
"""The way to a value: keys and list positions from the top."""

_MOST_NODES = 100_000


_WORDS: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


class _Loader(yaml.SafeLoader):
    """Plain data only, and only the words of YAML 1.2: ``on``, ``12:30`` and ``010`` are text, dates too."""

    yaml_implicit_resolvers = _WORDS


class _FastLoader(_Fast):
    """The same with the parser in C, a tenth of the time; what it says of a mistake is harder to read."""

    yaml_implicit_resolvers = _WORDS


for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        "float",
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+|\.(?:inf|Inf|INF))$",
        "-+.0123456789",
    ),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN"),
):
    for _character in [*_first, *([""] if _tag == "null" else [])]:
        _WORDS.setdefault(_character, []).append((f"tag:yaml.org,2002:{_tag}", re.compile(_pattern)))


@dataclass(frozen=True)
class Located:
    """A YAML document: ``data``, and for each place in it the line (from 1; of a key's value, the key's)."""

    file: Path
    data: object
    lines: dict[Place, int] = field(default_factory=dict)

    def line(self, place: Place) -> int | None:
        """The line of a place, or of the nearest one around it that stands in the file."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.lines:
                return self.lines[place[:length]]
        return None

    def mapping(self) -> dict[str, object]:
        """The document as a mapping of text keys. :raises LocatedError: it is none."""
        if not isinstance(self.data, dict):
            kind = "empty" if self.data is None else f"a {type(self.data).__name__}"
            raise LocatedError(f"expected a mapping of keys, the document is {kind}", file=self.file, line=1)
        for key in self.data:
            if not isinstance(key, str):
                raise LocatedError(
                    f"{key!r} is no key: keys are text", file=self.file, line=self.line((key,))
                )
        return self.data


def load(path: Path) -> Located:
    """Read one YAML document.

    :raises UsageError: the file cannot be read.
    :raises LocatedError: no YAML, more than one document, a key twice, a tag, an alias that contains itself.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", where=path) from None
    return parse(text, path)


def parse(text: str, file: Path) -> Located:
    """The document in ``text``; ``file`` is for messages. Raises as :func:`load`."""
    with suppress(yaml.YAMLError):
        return _read(_FastLoader(text), file)
    try:
        return _read(_Loader(text), file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part)
        raise LocatedError(
            f"no valid YAML: {said}", file=file, line=mark.line + 1 if mark else None
        ) from None
    except yaml.YAMLError as error:
        raise LocatedError(f"no valid YAML: {error}", file=file) from None


def _read(loader: _Loader | _FastLoader, file: Path) -> Located:
    """:raises LocatedError: what is not read here. :raises yaml.YAMLError: no YAML."""
    try:
        node = loader.get_single_node()
        lines: dict[Place, int] = {(): 1}
        data = None if node is None else _Walk(loader, file, lines).value(node, ())
        return Located(file, data, lines)
    finally:
        loader.dispose()


class _Walk:
    def __init__(self, loader: _Loader | _FastLoader, file: Path, lines: dict[Place, int]) -> None:
        self._loader, self._file, self._lines = loader, file, lines
        self._open: list[int] = []
        self._nodes = 0

    def value(self, node: yaml.Node, place: Place) -> object:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise self._error(node, f"more than {_MOST_NODES} values")
        if id(node) in self._open:
            raise self._error(node, "an alias contains itself")
        self._lines.setdefault(place, node.start_mark.line + 1)
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
                return self._mapping(node, place)
            if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
                return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]
            if isinstance(node, yaml.ScalarNode):
                return self._loader.construct_object(node)
            raise self._error(node, f"the tag {node.tag} is not read here")
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[object, object]:
        found: dict[object, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, "a key must be a word")
            if key_node.value == "<<" and not key_node.style:
                raise self._error(key_node, "merge keys (<<) are not read here: write the keys out")
            key = self._loader.construct_object(key_node)
            inner = (*place, key)
            if key in found:
                raise self._error(
                    key_node, f"key {key!r} stands here a second time, first in line {self._lines[inner]}"
                )
            self._lines[inner] = key_node.start_mark.line + 1
            found[key] = self.value(value_node, inner)
        return found

    def _error(self, node: yaml.Node, message: str) -> LocatedError:
        return LocatedError(message, file=self._file, line=node.start_mark.line + 1)
