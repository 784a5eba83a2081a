"""Whatever stands in a cell, a specification or a report is read, or refused with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from scripts.fuzz.cells import (
    import_bent_specification,
    load_bent_cell,
    match_bent_report,
)


@pytest.mark.parametrize("read", [load_bent_cell, import_bent_specification, match_bent_report])
@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 500), marks=pytest.mark.processes)])
def test_bent_inputs(read: Callable[[Random, Path], None], seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        read(Random(seed), folder)


@pytest.mark.parametrize("number", [55, 114])
def test_a_specification_with_odd_lists_or_long_numbers(number: int, tmp_path: Path) -> None:
    import_bent_specification(Random(f"specifications 4711 {number}"), tmp_path)
