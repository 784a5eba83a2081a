"""The cells of a nightly: from names, patterns and files to cells, each once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from perfbisect.config.cells import ReadAt, list_cells, load_cells
from perfbisect.config.nightly import NightlyFile
from perfbisect.core.cell import Cell
from perfbisect.core.nearest import hint
from perfbisect.errors import LocatedError

_MAGIC = frozenset("*?[")
_SUFFIXES = (".yaml", ".yml")
_FOLDER = "cells"


@dataclass(frozen=True)
class FoundCell:
    """A cell, and what names it alone: ``FILE``, or ``FILE@c4-n40`` of a ladder."""

    cell: Cell
    source: str


def cells_of(file: NightlyFile, *, read_at: ReadAt | None = None) -> tuple[FoundCell, ...]:
    """The cells of a nightly in the order in which the file names them, each once.

    Names are those of ``cells/`` beside the file, of ``./cells`` and of the shipped cells, in that order. A
    pattern with a slash or an ending is one of files beside the nightly's.

    :raises LocatedError: nothing of that name (the nearest are named), two cells of one name, launches for a
        cell that there is not; or a cell file is wrong.
    """
    known, found = _known(file), dict[str, FoundCell]()
    for index, entry in enumerate(file.nightly.cells):
        paths = list(_paths(file, entry, known))
        if not paths:
            raise _nothing(file, index, entry, known)
        for path in paths:
            cells = load_cells(path, read_at=read_at)
            for cell in cells:
                rung = cell.name.rpartition("@")[2] if len(cells) > 1 else ""
                other = found.setdefault(cell.name, FoundCell(cell, f"{path}@{rung}" if rung else path))
                if other.cell.digest != cell.digest:
                    raise file.wrong(("cells", index), f"two cells are named {cell.name}")
    for glob in file.nightly.launches_of:
        if not any(fnmatchcase(name, glob) for name in found):
            raise file.wrong(("launches_of", glob), "is none of the cells", ", ".join(found))
    return tuple(found.values())


def launches_of(file: NightlyFile, cell: str) -> int:
    """How many launches a cell has: the most that a pattern says, else what holds for all."""
    more = [count for glob, count in file.nightly.launches_of.items() if fnmatchcase(cell, glob)]
    return max(more, default=file.nightly.launches)


def _known(file: NightlyFile) -> dict[str, Path]:
    beside = file.file.absolute().parent / _FOLDER
    own = {path.stem: path for suffix in _SUFFIXES for path in sorted(beside.glob(f"*{suffix}"))}
    return {one.name: one.path.absolute() for one in list_cells()} | own


def _paths(file: NightlyFile, entry: str, known: dict[str, Path]) -> Iterator[str]:
    bare, at, rung = entry.rpartition("@")
    stem, rung = (bare, f"@{rung}") if at else (entry, "")
    folder = file.file.absolute().parent
    if "/" in stem or stem.endswith(_SUFFIXES):
        path = Path(stem).expanduser()
        if _MAGIC & set(stem):
            yield from map(str, sorted(x for x in folder.glob(stem) if x.is_file()))
        elif (folder / path).is_file():
            yield f"{folder / path}{rung}"
        return
    if not _MAGIC & set(entry):
        if stem in known:
            yield f"{known[stem]}{rung}"
        return
    for name in sorted(known):
        if fnmatchcase(name, entry):
            yield str(known[name])
        elif rung and fnmatchcase(name, stem):
            for cell in load_cells(known[name]):
                if fnmatchcase(cell.name, entry):
                    yield f"{known[name]}@{cell.name.rpartition('@')[2]}"


def _nothing(file: NightlyFile, index: int, entry: str, known: dict[str, Path]) -> LocatedError:
    return file.wrong(
        ("cells", index),
        f"there is no cell {entry!r}{hint(entry.strip('*'), known, cutoff=0.4)}",
        "a name, a pattern of names (text_*), a file",
    )
