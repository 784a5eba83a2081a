"""Nightly specifications: the file, its content as cells, and located errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from perfbisect.common.yaml_source import unknown_key
from perfbisect.errors import LocatedError
from perfbisect.model.change import Change

HUB_NAME = re.compile(r"^[\w.-]+/[\w.-]+$")
"""``owner/name`` of a data set or model on a hub."""

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class SpecificationFile:
    """A specification; ``commit``: of the text."""

    path: Path
    text: str
    commit: Change | None = None

    @property
    def name(self) -> str:
        """The file's name, with the commit."""
        return self.path.name + (f" at {self.commit.short}" if self.commit else "")

    @property
    def file(self) -> str:
        return str(self.path.with_name(self.name))

    def wrong(self, place: str, message: str, allowed: str) -> LocatedError:
        """An error at a place in the specification: ``[0].server_params.model``."""
        return LocatedError(message, file=self.file, field=place or None, allowed=allowed)

    def check_type(self, place: str, value: object, wanted: Any, allowed: str) -> None:
        """:raises LocatedError: the value is of another type."""
        if not isinstance(value, wanted):
            raise self.wrong(place, f"is {describe_value(value)}", allowed)

    def check_keys(self, place: str, found: Iterable[str], known: Sequence[str]) -> None:
        """:raises LocatedError: an unknown key, which may change what is measured."""
        for name in found:
            if name not in known:
                message, allowed = unknown_key(name, known)
                raise self.wrong(f"{place}.{name}".lstrip("."), message, allowed)


def read_file(path: Path) -> SpecificationFile:
    """A specification of the file system. :raises LocatedError: it cannot be read."""

    try:
        return SpecificationFile(path, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LocatedError(f"cannot be read: {error}", file=path) from None


@dataclass(frozen=True)
class RequiredFile:
    """A file or folder that must be placed beside the cell, and where it comes from."""

    path: str
    origin: str


@dataclass(frozen=True)
class ImportedCell:
    """A cell file: its stem, its document, texts of files beside it by name, and files still required."""

    stem: str
    document: Mapping[str, object]
    files: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[RequiredFile, ...] = ()


@dataclass(frozen=True)
class SkippedWorkload:
    """The place of a workload that is not imported, and why."""

    place: str
    why: str


@dataclass(frozen=True)
class Specification:
    """Imported cells; ``off``: places of disabled workloads; ``left_out``: those that cannot be measured."""

    cells: tuple[ImportedCell, ...]
    off: tuple[str, ...] = ()
    left_out: tuple[SkippedWorkload, ...] = ()


def write_cell(folder: Path, imported: ImportedCell) -> Path:
    """Write a cell file with the files beside it; returns its path. :raises OSError: it cannot be written."""
    for name, text in imported.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / f"{imported.stem}.yaml"
    text = yaml.safe_dump(dict(imported.document), sort_keys=False, allow_unicode=True, width=100)
    path.write_text(text, encoding="utf-8")
    return path


def number_duplicates(cells: Sequence[ImportedCell]) -> tuple[ImportedCell, ...]:
    """Number the stems of cells with the same name."""
    stems = [cell.stem for cell in cells]
    return tuple(
        replace(cell, stem=f"{cell.stem}-{stems[: i + 1].count(cell.stem)}")
        if stems.count(cell.stem) > 1
        else cell
        for i, cell in enumerate(cells)
    )


def file_stem(name: str) -> str:
    """A name for a cell and its file: other characters than letters, digits, ``.`` and ``_`` become ``-``."""
    return _NO_NAME.sub("-", name).strip(".-")


def kebab(name: object) -> str:
    """``num_prompts`` -> ``num-prompts``."""
    return str(name).replace("_", "-")


def describe_value(value: object) -> str:
    """A value's JSON, shortened, and its type, for a message."""
    return "missing" if value is None else f"{json.dumps(value, default=str)[:40]} ({type(value).__name__})"
