"""Rows that several reports show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def version_rows(versions: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of everything with which was measured, a table within it row by row."""
    rows = []
    for name, value in versions.items():
        if not value:
            continue
        if isinstance(value, Mapping):
            rows += [(f"{name}: {key}", str(item)) for key, item in value.items() if item]
        else:
            rows.append((name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)))
    return rows
