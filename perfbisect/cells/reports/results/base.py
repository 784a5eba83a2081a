"""What the readers of result files share: the load, in numbers that a cell can have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfbisect.serving.families.text import CHAT, COMPLETIONS

Record = Mapping[str, Any]

MEANS = "the result names no data set: the lengths are the means of its requests"

_LARGEST = 1e15
"""No number of a load is as large."""

_KINDS = {"chat": ("openai-chat", CHAT), "completions": ("openai", COMPLETIONS)}
"""Kinds of endpoints of AIPerf and GuideLLM, as backend and endpoint."""


def load_number(value: object) -> int | float | None:
    """A number of a load, whole where it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _LARGEST:
        return None
    return int(value) if float(value).is_integer() else value


def load_count(value: object) -> int | None:
    number = load_number(value)
    return number if isinstance(number, int) else None


def load_fields(record: Record, **names: str) -> dict[str, object]:
    """Fields of the load, of which a result says ``null`` where there is no limit."""
    fields: dict[str, object] = {}
    for field, name in names.items():
        if name in record:
            value = record[name]
            fields[field] = math.inf if value == "inf" else load_number(value)
    return {name: value for name, value in fields.items() if value is not None or name == "max_concurrency"}


def length_fields(given: object, taken: object) -> dict[str, object]:
    """The data set of a result that has only lengths."""
    pairs = {"random-input-len": load_number(given), "random-output-len": load_number(taken)}
    lengths = {name: round(value) for name, value in pairs.items() if value is not None and value >= 1}
    return {"dataset_name": "random", "dataset_args": lengths} if lengths else {}


def endpoint_fields(kind: str) -> dict[str, object]:
    backend, endpoint = _KINDS.get(kind, ("", ""))
    return {"backend": backend, "endpoint": endpoint} if backend else {}
