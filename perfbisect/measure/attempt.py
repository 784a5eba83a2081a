"""An attempt as JSON and its ``attempt.json``, which is written before the journal's line.

If that line is lost (full disk, kill -9), the attempt is recovered from its folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfbisect.common.checked import LARGEST, first_problem
from perfbisect.common.json_text import WRONG_SHAPE
from perfbisect.common.text import json_text
from perfbisect.model.attempt import Attempt
from perfbisect.system.files import replace_file

FILE = "attempt.json"
SCHEMA = 1

_ATTEMPT = TypeAdapter(Attempt)


def plain(value: object) -> Any:
    """A value as JSON; numbers that are not finite become text (``NaN``, ``Infinity``)."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [plain(item) for item in sorted(value, key=repr)]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    # Scalars of numpy and torch, which clients put into results.
    if not isinstance(value, PurePath) and hasattr(value, "item"):
        return plain(value.item())
    return str(value)


def to_dict(attempt: Attempt) -> dict[str, Any]:
    """The attempt as JSON values."""
    document: dict[str, Any] = plain(asdict(attempt))
    return document


def from_dict(document: Mapping[str, Any]) -> Attempt:
    """The attempt from JSON values; unknown keys are ignored.

    Raises:
        ValueError: a field is missing or invalid.
    """
    try:
        attempt = _ATTEMPT.validate_python(document)
    except ValidationError as error:
        raise ValueError(f"not an attempt: {first_problem(error)}") from error
    # pydantic reads true as 1.0.
    if any(isinstance(value, bool) for run in document.get("runs", ()) for value in run["values"].values()):
        raise ValueError("not an attempt: runs.values: true and false are no numbers")
    numbers = [*attempt.seconds.values(), *(value for run in attempt.runs for value in run.values.values())]
    if not all(abs(number) <= LARGEST for number in numbers):
        raise ValueError(f"not an attempt: a number is not finite, or beyond {LARGEST:g}")
    return attempt


def write_attempt(folder: Path, attempt: Attempt) -> Path:
    """Write ``folder/attempt.json`` atomically.

    Raises:
        OSError: the write failed.
    """
    document = {"schema": SCHEMA, "attempt": to_dict(attempt)}
    replace_file(
        folder / FILE, json_text(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)) + "\n"
    )
    return folder / FILE


def read_attempt(folder: Path) -> Attempt | None:
    """The attempt of this folder; None without a complete file."""
    try:
        document = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return from_dict(document["attempt"])
    except (OSError, *WRONG_SHAPE):
        return None
