"""What pydantic finds wrong -> an error with file, line, field and what is allowed there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from perfbisect.config.yaml_lines import Located, Place
from perfbisect.core.nearest import nearest
from perfbisect.errors import LocatedError

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
        message += f"; {len(details) - 1} more to mend in this file"
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
