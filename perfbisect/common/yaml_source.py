"""YAML as plain data with the line of every key, so that messages name file, line and field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from perfbisect.common.json_text import DEEPEST, WRONG_SHAPE
from perfbisect.common.text import line as shown
from perfbisect.common.text import nearest
from perfbisect.errors import LocatedError, UsageError

try:
    # libyaml is ten times as fast.
    from yaml import CSafeLoader as _SafeLoader
except ImportError:
    # PyYAML can be built without libyaml.
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

Place = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""

_MOST_VALUES = 100_000
_LARGEST = 16 * 1024 * 1024
"""Bytes of a file."""
_LONGEST_NUMBER = 100
"""Characters of a number; a longer one has no float."""
_SIMILAR = 0.7
"""difflib's ratio of a key that was misspelt."""
_MOST_ALLOWED = 12
"""Allowed keys that a message lists."""
_MOST_SHOWN = 20
"""Errors of a file that a message lists."""


class _Loader(_SafeLoader):
    """Plain scalars of YAML 1.2 only: ``on``, ``12:30``, ``010`` and dates are text.

    Turns nodes into plain data and records their lines.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - shared by design

    def __init__(self, text: str, file: Path = Path()) -> None:
        super().__init__(text)
        self.file = file
        self.line_of: dict[Place, int] = {(): 1}

    def plain(self, node: yaml.Node, place: Place, above: tuple[yaml.Node, ...] = ()) -> object:
        """The data of a node at a place."""
        # Aliases multiply values: a file of a few lines can stand for billions.
        if len(self.line_of) > _MOST_VALUES:
            raise self._error(node, f"more than {_MOST_VALUES} values")
        if any(node is outer for outer in above):
            raise self._error(node, "an alias contains itself")
        if len(above) > DEEPEST:
            raise self._error(node, f"nested deeper than {DEEPEST} levels")
        self.line_of.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._plain_scalar(node)
        above = (*above, node)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.plain(item, (*place, index), above) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode) or node.tag != "tag:yaml.org,2002:map":
            raise self._error(node, f"the tag {node.tag} is not supported")
        found: dict[object, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, "a key must be a word")
            if key_node.value == "<<" and not key_node.style:
                raise self._error(key_node, "merge keys (<<) are not supported: write the keys out")
            key = self._plain_scalar(key_node)
            inner = (*place, key)
            if key in found:
                name = shown(repr(key), 80)
                raise self._error(key_node, f"duplicate key {name}, first in line {self.line_of[inner]}")
            self.line_of[inner] = key_node.start_mark.line + 1
            found[key] = self.plain(value_node, inner, above)
        return found

    def _plain_scalar(self, node: yaml.ScalarNode) -> Any:
        """:raises LocatedError: no value of its tag, a number that is too long, or a NUL in a text."""
        # No argument, variable or path can contain a NUL.
        if "\0" in node.value:
            raise self._error(node, "a text has a NUL character")
        # int() raises on thousands of digits.
        if len(node.value) > _LONGEST_NUMBER and node.tag.endswith((":int", ":float")):
            raise self._error(node, f"a number has {len(node.value)} characters, at most {_LONGEST_NUMBER}")
        try:
            return self.construct_object(node)
        # A value may not fit a tag that is written out (!!int x).
        except WRONG_SHAPE:
            raise self._error(node, f"{shown(repr(node.value), 80)} is no value of {node.tag}") from None

    def _error(self, node: yaml.Node, message: str) -> LocatedError:
        return LocatedError(message, file=self.file, line=node.start_mark.line + 1)


class _Dumper(yaml.SafeDumper):
    """Quotes also the texts that ``_Loader`` would read as something else, such as ``1.5e3``."""


# YAML 1.1, which PyYAML follows, reads on as true, 12:30 as 750 and 010 as 8.
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
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


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
    return parse(read_text(path), path)


def read_text(path: Path) -> str:
    """The text of a file of a user. :raises UsageError: it cannot be read, or is too large."""
    try:
        with path.open("rb") as stream:
            # One byte too many: a pipe has no size that could be asked for.
            content = stream.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST >> 20} MB")
        return content.decode("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}", where=path) from None


def parse(text: str, file: Path, *, foreign: bool = False) -> Located:
    """Read one YAML document; ``file`` is for messages.

    ``foreign``: of another program, which may use what cells may not, such as merge keys; without lines.

    Raises:
        LocatedError: invalid YAML, several documents, a duplicate key, a tag, a recursive alias, or nested
            too deeply.
    """
    try:
        _check_size(text, file)
        if foreign:
            data = yaml.safe_load(text)
            level: list[Any] = [data]
            for _ in range(DEEPEST + 1):
                above = [one for one in level if isinstance(one, dict | list)]
                inner = (value for one in above for value in (one.values() if isinstance(one, dict) else one))
                # Aliases multiply values here, too.
                level = list(islice(inner, _MOST_VALUES + 1))
                if len(level) > _MOST_VALUES:
                    raise LocatedError(f"more than {_MOST_VALUES} values", file=file)
            if level:
                raise LocatedError("an alias contains itself", file=file)
            return Located(file, data)
        loader = _Loader(text, file)
        node = loader.get_single_node()
        return Located(file, None if node is None else loader.plain(node, ()), loader.line_of)
    except LocatedError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part)
        line = mark.line + 1 if mark else None
        raise LocatedError(f"no valid YAML: {shown(said)}", file=file, line=line) from None
    except (yaml.YAMLError, *WRONG_SHAPE) as error:
        raise LocatedError(f"no valid YAML: {shown(str(error))}", file=file) from None


def dump(data: object) -> str:
    """Plain data as YAML that :func:`parse` reads as the same; what a terminal would act on is escaped."""

    def written(*, in_ascii: bool) -> str:
        return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=not in_ascii)

    text = written(in_ascii=False)
    return text if text.replace("\n", "").isprintable() else written(in_ascii=True)


def _check_size(text: str, file: Path) -> None:
    """Check depth and size by events: libyaml composes by recursion and ends the process where it is deep.

    Raises:
        LocatedError: too deep or too large.
    """
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        nodes += isinstance(event, yaml.NodeEvent)
        line = event.start_mark.line + 1 if event.start_mark else None
        if depth > DEEPEST:
            raise LocatedError(f"nested deeper than {DEEPEST} levels", file=file, line=line)
        if nodes > 2 * _MOST_VALUES:
            # The limit is doubled because keys are nodes, too.
            raise LocatedError(f"more than {_MOST_VALUES} values", file=file, line=line)


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


def located(error: ValidationError, document: Located, model: type[BaseModel]) -> LocatedError:
    """All errors of a document as one."""
    return join_errors(located_errors(error, document, model))


def located_errors(
    error: ValidationError,
    document: Located,
    model: type[BaseModel],
    *,
    index: int | None = None,
    extra: Sequence[str] = (),
    hidden: Sequence[str] = (),
) -> list[LocatedError]:
    """The errors of a document: misspelt keys, which explain missing ones, then by line.

    ``index``: position of the value in paired lists; ``extra``: further keys allowed at the top; ``hidden``:
    fields of the model that files may not set.
    """

    def order(detail: Mapping[str, Any]) -> tuple[bool, int]:
        return detail["type"] != "extra_forbidden", document.line(detail["loc"]) or 0

    found = []
    for detail in sorted(error.errors(include_url=False), key=order):
        place = detail["loc"]
        message, allowed = _describe(detail, model, extra, hidden)
        at_top = detail["type"] == "missing" and len(place) == 1
        found.append(
            LocatedError(
                message,
                file=document.file,
                line=1 if at_top else document.line(place if index is None else (*place, index)),
                field=".".join(str(part) for part in place if part != "from") or None,
                allowed=allowed,
            )
        )
    return found


def join_errors(errors: Sequence[LocatedError]) -> LocatedError:
    """The first error, whose message lists the others below it, each with its line."""
    first, *others = errors
    rows = [f"line {error.line}: {error.message}" for error in others[:_MOST_SHOWN]]
    if len(others) > _MOST_SHOWN:
        rows.append(f"{len(others) - _MOST_SHOWN} more errors in this file")
    first.message = "\n  ".join([first.message, *rows])
    return first


@contextmanager
def collecting(errors: list[LocatedError]) -> Iterator[None]:
    """Keep an error for the report, so that one workload does not end the import of the others."""
    try:
        yield
    except LocatedError as error:
        errors.append(error)


def _describe(
    detail: Mapping[str, Any], model: type[BaseModel], extra: Sequence[str], hidden: Sequence[str]
) -> tuple[str, str | None]:
    kind, place, given = detail["type"], detail["loc"], detail.get("input")
    if kind == "extra_forbidden":
        # Keys of mappings and list positions are passed over.
        found: type[BaseModel] | None = model
        for part in place[:-1]:
            fields = found.model_fields.items() if found else ()
            info = next((info for name, info in fields if part in (name, info.alias)), None)
            if info is not None:
                types = [each for each in _types(info.annotation) if isinstance(each, type)]
                found = next((each for each in types if issubclass(each, BaseModel)), None)
        keys = keys_of(found)
        if len(place) == 1:
            keys = [key for key in (*keys, *extra) if key not in hidden]
        return unknown_key(str(place[-1]), keys)
    if kind == "missing":
        return "is missing", None
    if kind == "literal_error":
        return f"{shown(repr(given), 80)} is not one of the words", str(detail["ctx"]["expected"])
    if kind == "value_error":
        return str(detail["ctx"]["error"]), None
    expected = _TYPE_MESSAGES.get(kind) or detail["msg"].replace("Input should be", "must be")
    return f"{expected}, not {shown(repr(given), 80)}", None


def unknown_key(name: str, keys: Sequence[str]) -> tuple[str, str | None]:
    """The message about an unknown key: the keys that were meant, or the allowed ones."""
    near = nearest(name, keys, _SIMILAR)
    message = f"unknown key; did you mean {' or '.join(near)}?" if near else "unknown key"
    if len(keys) <= _MOST_ALLOWED:
        return message, ", ".join(sorted(keys))
    return message, None if near else f"{', '.join(nearest(name, keys, 0.0))}, ... of {len(keys)} keys"


def keys_of(model: type[BaseModel] | None) -> list[str]:
    """The keys that a model reads, as files write them."""
    return [] if model is None else [info.alias or name for name, info in model.model_fields.items()]


def _types(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [annotation] if not inner else [found for part in inner for found in _types(part)]
