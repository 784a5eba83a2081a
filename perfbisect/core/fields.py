"""Field types of a cell: what YAML may write, and the one value it means."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from perfbisect.core.options import parse_options, string_keys

_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _rate(value: object) -> object:
    return math.inf if isinstance(value, str) and value.strip().lower() in ("inf", "infinity") else value


def _words(value: object) -> object:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return tuple(value) if isinstance(value, list) else value


def _numbers(value: object) -> object:
    if isinstance(value, str):
        return tuple(float(word) for word in value.split(",") if word.strip())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (float(value),)
    return tuple(value) if isinstance(value, list) else value


def _json_mapping(value: object) -> object:
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except json.JSONDecodeError as error:
            raise ValueError(f"is text but no JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping or JSON text of one, not {type(value).__name__}")
    return string_keys(value)


def _environment(value: object) -> object:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping of variables, not {type(value).__name__}")
    variables: dict[str, str] = {}
    for name, item in value.items():
        if not isinstance(name, str) or not _VARIABLE.match(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            raise ValueError(f"{name} must be text or a number, not {item!r} (quote it)")
        variables[name] = str(item)
    return variables


_OPTIONS = WithJsonSchema({"type": ["object", "array", "null"], "description": "options by name, or tokens"})

Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Rate = Annotated[
    float,
    BeforeValidator(_rate),
    PlainSerializer(lambda v: "inf" if math.isinf(v) else v, return_type=float | str),
    Field(gt=0),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "inf"}]}),
]
Words = Annotated[
    tuple[str, ...],
    BeforeValidator(_words),
    WithJsonSchema({"type": ["array", "string"], "items": {"type": "string"}}),
]
Numbers = Annotated[
    tuple[float, ...],
    BeforeValidator(_numbers),
    WithJsonSchema({"type": ["array", "string", "number"], "items": {"type": "number"}}),
]
JsonMapping = Annotated[
    dict[str, Any],
    BeforeValidator(_json_mapping),
    WithJsonSchema({"type": ["object", "string", "null"], "description": "a mapping, or JSON text of one"}),
]
Variables = Annotated[
    dict[str, str],
    BeforeValidator(_environment),
    WithJsonSchema({"type": ["object", "null"], "additionalProperties": {"type": ["string", "number"]}}),
]
ServeArgs = Annotated[dict[str, Any], BeforeValidator(lambda v: parse_options(v, negatable=True)), _OPTIONS]
ServeOverrides = Annotated[
    dict[str, Any], BeforeValidator(lambda v: parse_options(v, negatable=True, keep_null=True)), _OPTIONS
]
ClientArgs = Annotated[dict[str, Any], BeforeValidator(lambda v: parse_options(v, negatable=False)), _OPTIONS]
