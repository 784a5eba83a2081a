"""An attempt as JSON and its ``attempt.json``, which is written before the journal's line.

If that line is lost (full disk, kill -9), the attempt is recovered from its folder.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from perfbisect.model.attempt import Attempt, Failure, Provenance, RunResult

FILE = "attempt.json"
SCHEMA = 1

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: object) -> Any:
    """A value as JSON; numbers that are not finite become text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _name(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [
            plain(item) for item in (sorted(value, key=repr) if isinstance(value, set | frozenset) else value)
        ]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "item"):
        return plain(value.item())
    return str(value)


def to_dict(attempt: Attempt) -> dict[str, Any]:
    """The attempt as JSON values."""
    document: dict[str, Any] = {
        "id": attempt.id,
        "change_id": attempt.change_id,
        "purpose": attempt.purpose,
        "provenance": _fields(attempt.provenance),
        "runs": [_fields(run) for run in attempt.runs],
        "failure": None if attempt.failure is None else _fields(attempt.failure),
        "seconds": plain(attempt.seconds),
        "folder": attempt.folder,
        "cold": attempt.cold,
        "started_at": attempt.started_at,
        "slot": attempt.slot,
    }
    return document


def from_dict(document: Mapping[str, Any]) -> Attempt:
    """The attempt from JSON values; unknown keys are ignored.

    Raises:
        ValueError: a field is missing or invalid.
    """
    try:
        failure = document["failure"]
        return Attempt(
            id=str(document["id"]),
            change_id=str(document["change_id"]),
            purpose=document["purpose"],
            provenance=Provenance(**_known(document["provenance"], Provenance)),
            runs=tuple(_run(run) for run in document["runs"]),
            failure=None if failure is None else Failure(**_known(failure, Failure)),
            seconds=_numbers(document["seconds"]),
            folder=str(document["folder"]),
            cold=bool(document["cold"]),
            started_at=str(document["started_at"]),
            slot=str(document["slot"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an attempt: {type(error).__name__}: {error}") from error


def write_attempt(folder: Path, attempt: Attempt) -> Path:
    """Write ``folder/attempt.json`` atomically. :raises OSError: the write failed."""
    target, staging = folder / FILE, folder / f".{FILE}.{os.getpid()}"
    document = {"schema": SCHEMA, "attempt": to_dict(attempt)}
    try:
        with staging.open("w", encoding="utf-8") as file:
            json.dump(document, file, ensure_ascii=False, allow_nan=False, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        staging.replace(target)
    except OSError:
        staging.unlink(missing_ok=True)
        raise
    return target


def read_attempt(folder: Path) -> Attempt | None:
    """The attempt of this folder; None without a complete file."""
    try:
        document = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return from_dict(document["attempt"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _number(value: object) -> float:
    if isinstance(value, str):
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): _number(value) for name, value in values.items()}


def _fields(value: Provenance | RunResult | Failure) -> dict[str, Any]:
    return {name: plain(getattr(value, name)) for name in type(value).__dataclass_fields__}


def _known(document: Mapping[str, Any], kind: type[Provenance | RunResult | Failure]) -> dict[str, Any]:
    return {name: document[name] for name in kind.__dataclass_fields__ if name in document}


def _run(document: Mapping[str, Any]) -> RunResult:
    fields = _known(document, RunResult)
    fields["values"] = _numbers(document["values"])
    fields["spread"] = _numbers(document["spread"])
    fields["warnings"] = tuple(document["warnings"])
    return RunResult(**fields)
