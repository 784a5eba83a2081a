"""Which parameters of a test are tried by ``make test``; the others take long and are marked as processes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import pytest


def mostly_long(values: Iterable[Any], short: Container[Any]) -> Sequence[Any]:
    """Parameters of which all but ``short`` are left to ``make test-processes``."""
    return [value if value in short else _long(value) for value in values]


def _long(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.processes)
