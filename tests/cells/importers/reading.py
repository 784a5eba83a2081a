"""Small specifications, read as files of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfbisect.cells.importers import read_specification
from perfbisect.cells.importers.base import ImportedCell, Specification, read_file, write_cell
from perfbisect.cells.loading import load_cells
from perfbisect.errors import LocatedError
from perfbisect.model.cell import Cell


def read(folder: Path, document: object, name: str = "test_x.json") -> Specification:
    path = folder / name
    path.write_text(json.dumps(document))
    return read_specification(read_file(path))


def only_error(folder: Path, document: object) -> LocatedError:
    """The error of the file, or of the one workload that is not understood."""
    try:
        (error,) = read(folder, document).errors
    except LocatedError as of_the_file:
        return of_the_file
    return error


def loaded(folder: Path, cells: Iterable[ImportedCell]) -> list[Cell]:
    """The cells as their files are loaded."""
    return [cell for imported in cells for cell in load_cells(write_cell(folder, imported), incomplete=True)]


def without(mapping: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in names}
