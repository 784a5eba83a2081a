"""YAML with the line of every key: plain data, and where it stands, so that a message can point at it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from perfbisect.common.suggest import nearest
from perfbisect.errors import LocatedError, UsageError

try:
    from yaml import CSafeLoader as _Fast
except ImportError:  # PyYAML without its C library
    from yaml import SafeLoader as _Fast  # type: ignore[assignment]

Place = tuple[str | int, ...]
"""The way to a value: keys and list positions from the top."""

_MOST_NODES = 100_000


_YAML_LINES_WORDS: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


class _Loader(yaml.SafeLoader):
    """Plain data only, and only the words of YAML 1.2: ``on``, ``12:30`` and ``010`` are text, dates too."""

    yaml_implicit_resolvers = _YAML_LINES_WORDS


class _FastLoader(_Fast):
    """The same with the parser in C, a tenth of the time; what it says of a mistake is harder to read."""

    yaml_implicit_resolvers = _YAML_LINES_WORDS


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
        _YAML_LINES_WORDS.setdefault(_character, []).append(
            (f"tag:yaml.org,2002:{_tag}", re.compile(_pattern))
        )


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


_WORDS = {
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "string_type": "expected text (quote it)",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
}


Model = TypeVar("Model", bound=BaseModel)


def validate(document: Located, model: type[Model]) -> Model:
    """The document as a value. :raises LocatedError: what is wrong: file, line, field, what is allowed."""
    try:
        return model.model_validate(document.mapping())
    except ValidationError as error:
        raise located(error, document, model) from None


def located(
    error: ValidationError,
    document: Located,
    model: type[BaseModel],
    *,
    index: int | None = None,
    extra: tuple[str, ...] = (),
    hidden: tuple[str, ...] = (),
) -> LocatedError:
    """The first thing wrong, at its line. All others are counted.

    ``index``: the place in paired lists of which the values come; ``extra``: further keys that are allowed at
    the top; ``hidden``: fields of the model that no file may set.
    """
    details = error.errors(include_url=False, include_context=True)
    first = min(details, key=lambda detail: document.line(_known(detail["loc"], document)) or 0)
    place = tuple(first["loc"])
    line_place = _known(place, document)
    if index is not None and (*line_place, index) in document.lines:
        line_place = (*line_place, index)
    field = ".".join(str(part) for part in place if part != "from")
    message, allowed = _message(first["type"], first, place, model, extra, hidden)
    if len(details) > 1:
        message += f"; {len(details) - 1} more errors in this file"
    missing = first["type"] == "missing"
    return LocatedError(
        message,
        file=document.file,
        line=1 if missing and len(place) == 1 else document.line(line_place),
        field=field or None,
        allowed=allowed,
    )


def _known(place: tuple[int | str, ...], document: Located) -> Place:
    for length in range(len(place), -1, -1):
        if place[:length] in document.lines:
            return place[:length]
    return ()


def _message(
    kind: str,
    detail: Mapping[str, Any],
    place: tuple[int | str, ...],
    model: type[BaseModel],
    extra: tuple[str, ...],
    hidden: tuple[str, ...],
) -> tuple[str, str | None]:
    if kind == "extra_forbidden":
        keys = keys_of(_model_at(model, place[:-1]))
        if len(place) == 1:
            keys = [key for key in (*keys, *extra) if key not in hidden]
        return unknown_key(str(place[-1]), keys)
    if kind == "missing":
        return "is missing", None
    given = detail.get("input")
    if kind == "literal_error":
        return f"{given!r} is not one of the words", str(detail["ctx"]["expected"])
    if kind == "value_error":
        return str(detail["ctx"]["error"]), None
    said = _WORDS.get(kind) or str(detail["msg"]).replace("Input should be", "must be").removeprefix(
        "Value error, "
    )
    return f"{said}, not {given!r}", None


def unknown_key(name: str, keys: list[str]) -> tuple[str, str]:
    """Message and what is allowed for a key that nobody knows: the nearest names first."""
    near = nearest(name, keys, 0.6)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"unknown key{meant}", ", ".join(sorted(keys))


def keys_of(model: type[BaseModel] | None) -> list[str]:
    """The keys that a model reads, as they are written."""
    return [] if model is None else [info.alias or name for name, info in model.model_fields.items()]


def _model_at(model: type[BaseModel], place: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The part of a model that stands at a place; a mapping of parts has any name for its key."""
    found: type[BaseModel] | None = model
    for part in place:
        if found is None:
            return None
        info = next((i for n, i in found.model_fields.items() if part in (n, i.alias)), None)
        if info is None:
            continue
        found = next(
            (t for t in _types(info.annotation) if isinstance(t, type) and issubclass(t, BaseModel)), None
        )
    return found


def _types(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [annotation] if not inner else [found for part in inner for found in _types(part)]
