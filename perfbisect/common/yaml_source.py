"""YAML as plain data with the line of every key, so that messages name file, line and field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from perfbisect.common.text import nearest
from perfbisect.errors import LocatedError, UsageError

try:
    from yaml import CSafeLoader as _SafeLoader  # ten times as fast
except ImportError:  # PyYAML without its C library
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

Place = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""

_MOST_VALUES = 100_000


class _Loader(_SafeLoader):
    """Plain scalars of YAML 1.2 only: ``on``, ``12:30``, ``010`` and dates are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - shared by design


for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        "float",
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+|\.(?:inf|Inf|INF))$",
        "-+.0123456789",
    ),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


@dataclass(frozen=True)
class Located:
    """A YAML document with the line of each place, from 1; for values of a mapping the key's line."""

    file: Path
    data: object
    lines: dict[Place, int] = field(default_factory=dict)

    def line(self, place: Place) -> int | None:
        """The line of a place, or of the nearest place around it."""
        around = (place[:length] for length in range(len(place), -1, -1))
        return next((self.lines[known] for known in around if known in self.lines), None)

    def error(self, place: Place, message: str, allowed: str | None = None) -> LocatedError:
        """An error at a place of this document."""
        name = ".".join(map(str, place)) or None
        return LocatedError(message, file=self.file, line=self.line(place), field=name, allowed=allowed)

    def mapping(self) -> dict[str, object]:
        """The data as a mapping with text keys. :raises LocatedError: it is not one."""
        if not isinstance(self.data, dict):
            kind = "empty" if self.data is None else f"a {type(self.data).__name__}"
            raise LocatedError(f"expected a mapping of keys, the document is {kind}", file=self.file, line=1)
        for key in self.data:
            if not isinstance(key, str):
                line = self.line((key,))
                raise LocatedError(f"{key!r} is no key: keys are text", file=self.file, line=line)
        return self.data


def load(path: Path) -> Located:
    """Read a file with one YAML document.

    Raises:
        UsageError: the file cannot be read.
        LocatedError: as :func:`parse`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", where=path) from None
    return parse(text, path)


def parse(text: str, file: Path) -> Located:
    """Read one YAML document; ``file`` is for messages.

    Raises:
        LocatedError: invalid YAML, several documents, a duplicate key, a tag or a recursive alias.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        converter = _Converter(loader, file)
        data = None if node is None else converter.value(node, ())
        return Located(file, data, converter.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part)
        line = mark.line + 1 if mark else None
        raise LocatedError(f"no valid YAML: {said}", file=file, line=line) from None
    except yaml.YAMLError as error:
        raise LocatedError(f"no valid YAML: {error}", file=file) from None


class _Converter:
    """Turns nodes into plain data and records their lines."""

    def __init__(self, loader: _Loader, file: Path) -> None:
        self._loader, self._file = loader, file
        self.lines: dict[Place, int] = {(): 1}

    def value(self, node: yaml.Node, place: Place, above: tuple[yaml.Node, ...] = ()) -> object:
        if len(self.lines) > _MOST_VALUES:
            raise self._error(node, f"more than {_MOST_VALUES} values")
        if any(node is outer for outer in above):
            raise self._error(node, "an alias contains itself")
        self.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._loader.construct_object(node)
        above = (*above, node)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.value(item, (*place, index), above) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode) or node.tag != "tag:yaml.org,2002:map":
            raise self._error(node, f"the tag {node.tag} is not supported")
        found: dict[object, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, "a key must be a word")
            if key_node.value == "<<" and not key_node.style:
                raise self._error(key_node, "merge keys (<<) are not supported: write the keys out")
            key = self._loader.construct_object(key_node)
            inner = (*place, key)
            if key in found:
                raise self._error(key_node, f"duplicate key {key!r}, first in line {self.lines[inner]}")
            self.lines[inner] = key_node.start_mark.line + 1
            found[key] = self.value(value_node, inner, above)
        return found

    def _error(self, node: yaml.Node, message: str) -> LocatedError:
        return LocatedError(message, file=self._file, line=node.start_mark.line + 1)


_TYPE_MESSAGES = {
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "string_type": "expected text (quote it)",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "too_short": "expected at least one item",
}

Model = TypeVar("Model", bound=BaseModel)


def validate(document: Located, model: type[Model]) -> Model:
    """Validate a document. :raises LocatedError: what is wrong, with file, line, field and allowed values."""
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
    extra: Sequence[str] = (),
    hidden: Sequence[str] = (),
) -> LocatedError:
    """The first error by line, with the number of others.

    ``index``: position of the value in paired lists; ``extra``: further keys allowed at the top; ``hidden``:
    fields of the model that files may not set.
    """
    details = error.errors(include_url=False)
    first = min(details, key=lambda detail: document.line(detail["loc"]) or 0)
    place = first["loc"]
    message, allowed = _describe(first, model, extra, hidden)
    if len(details) > 1:
        message += f"; {len(details) - 1} more errors in this file"
    at_top = first["type"] == "missing" and len(place) == 1
    return LocatedError(
        message,
        file=document.file,
        line=1 if at_top else document.line(place if index is None else (*place, index)),
        field=".".join(str(part) for part in place if part != "from") or None,
        allowed=allowed,
    )


def _describe(
    detail: Mapping[str, Any], model: type[BaseModel], extra: Sequence[str], hidden: Sequence[str]
) -> tuple[str, str | None]:
    kind, place, given = detail["type"], detail["loc"], detail.get("input")
    if kind == "extra_forbidden":
        keys = keys_of(_model_at(model, place[:-1]))
        if len(place) == 1:
            keys = [key for key in (*keys, *extra) if key not in hidden]
        return unknown_key(str(place[-1]), keys)
    if kind == "missing":
        return "is missing", None
    if kind == "literal_error":
        return f"{given!r} is not one of the words", str(detail["ctx"]["expected"])
    if kind == "value_error":
        return str(detail["ctx"]["error"]), None
    expected = _TYPE_MESSAGES.get(kind) or detail["msg"].replace("Input should be", "must be")
    return f"{expected}, not {given!r}", None


def unknown_key(name: str, keys: Sequence[str]) -> tuple[str, str]:
    """The message about an unknown key, with similar ones, and the allowed keys."""
    near = nearest(name, keys, 0.6)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"unknown key{meant}", ", ".join(sorted(keys))


def keys_of(model: type[BaseModel] | None) -> list[str]:
    """The keys that a model reads, as files write them."""
    return [] if model is None else [info.alias or name for name, info in model.model_fields.items()]


def _model_at(model: type[BaseModel], place: Place) -> type[BaseModel] | None:
    """The model at a place; keys of mappings and list positions are passed over."""
    found: type[BaseModel] | None = model
    for part in place:
        fields = found.model_fields.items() if found else ()
        info = next((info for name, info in fields if part in (name, info.alias)), None)
        if info is not None:
            inner = (t for t in _types(info.annotation) if isinstance(t, type) and issubclass(t, BaseModel))
            found = next(inner, None)
    return found


def _types(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [annotation] if not inner else [found for part in inner for found in _types(part)]
