"""Nightly specifications: the file, its content as cells, and located errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from perfbisect.common.yaml_source import Located, dump, parse, read_text, unknown_key
from perfbisect.errors import LocatedError, UsageError
from perfbisect.model.cell import Sampling
from perfbisect.model.change import Change

HUB_NAME = re.compile(r"^[\w.-]+/[\w.-]+$")
"""``owner/name`` of a data set or model on a hub."""

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
"""A position or a key in a place: ``[0].server_params.model``."""

LONGEST_STEM = 150
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class SpecificationFile:
    """A specification; ``commit``: of the text. ``read_beside``: a file by its path from this one's folder;
    None: there is none."""

    path: Path
    text: str
    commit: Change | None = None
    read_beside: Callable[[str], str | None] = lambda _: None

    @property
    def name(self) -> str:
        """The file's name, with the commit."""
        return self.path.name + (f" at {self.commit.short}" if self.commit else "")

    @property
    def file(self) -> str:
        return str(self.path.with_name(self.name))

    @cached_property
    def _lines(self) -> Located | None:
        """JSON is YAML, but for tabs; None where it is not."""
        try:
            return parse(self.text.replace("\t", " "), self.path)
        except LocatedError:
            return None

    def line(self, place: str) -> int | None:
        """The line of a place in the specification: ``[0].server_params.model``."""
        steps = tuple(int(index) if index else key for index, key in _STEP.findall(place))
        return self._lines.line(steps) if self._lines else None

    def wrong(self, place: str, message: str, allowed: str | None = None) -> LocatedError:
        """An error at a place in the specification."""
        return LocatedError(
            message, file=self.file, line=self.line(place), field=place or None, allowed=allowed
        )

    def check_type(self, place: str, value: object, wanted: Any, allowed: str) -> None:
        """:raises LocatedError: the value is of another type."""
        if not isinstance(value, wanted):
            raise self.wrong(place, f"is {describe_value(value)}", allowed)

    def mapping(self, place: str, above: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """A mapping inside another, empty where it is not there; LocatedError if it is none."""
        found = above.get(name) or {}
        if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
            message = f"is {describe_value(found)}"
            raise self.wrong(f"{place}.{name}".lstrip("."), message, "a mapping of names to values")
        return found

    def check_keys(self, place: str, found: Iterable[str], known: Sequence[str]) -> None:
        """:raises LocatedError: an unknown key, which may change what is measured."""
        for name in found:
            if name not in known:
                message, allowed = unknown_key(name, known)
                raise self.wrong(f"{place}.{name}".lstrip("."), message, allowed)


def read_file(path: Path) -> SpecificationFile:
    """A specification of the file system. :raises LocatedError: it cannot be read."""

    def read_beside(name: str) -> str | None:
        other = path.parent / name
        return read_file(other).text if other.is_file() else None

    try:
        return SpecificationFile(path, read_text(path), read_beside=read_beside)
    except UsageError as error:
        raise LocatedError(error.message, file=path) from None


@dataclass(frozen=True)
class ImportedCell:
    """A cell file: its stem, its document, and texts of files beside it by name.

    ``needs``: paths of files that must be placed beside it, and where each comes from. ``place``: of the
    workload in the specification.
    """

    stem: str
    document: Mapping[str, object]
    place: str
    files: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Specification:
    """Imported cells.

    ``off``: places of disabled workloads; ``left_out``: of those that cannot be measured, and why;
    ``errors``: of those that were not understood.
    """

    cells: list[ImportedCell] = field(default_factory=list)
    off: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    errors: list[LocatedError] = field(default_factory=list)


def write_cell(folder: Path, imported: ImportedCell) -> Path:
    """Write a cell file with the files beside it; returns its path. :raises OSError: it cannot be written."""
    for name, text in imported.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / f"{imported.stem}.yaml"
    path.write_text(dump(dict(imported.document)), encoding="utf-8")
    return path


def entry_keys(document: object) -> set[object]:
    """The keys of the entries of a list; none of another document."""
    entries = document if isinstance(document, list) else []
    return {name for entry in entries if isinstance(entry, Mapping) for name in entry}


def sampling_fields(given: Mapping[str, Any]) -> dict[str, object]:
    """The options of a client that are keys of a cell's ``sampling``."""
    chosen = {name: given[option] for option, name in SAMPLING.items() if option in given}
    return {"sampling": chosen} if chosen else {}


def file_stem(name: str) -> str:
    """A name for a cell and its file: other characters than letters, digits, ``.`` and ``_`` become ``-``."""
    return _NO_NAME.sub("-", name).strip(".-")[:LONGEST_STEM]


def kebab(name: object) -> str:
    """``num_prompts`` -> ``num-prompts``."""
    return str(name).replace("_", "-")


SAMPLING = {kebab(name): name for name in Sampling.model_fields}
"""Options of a client by which a cell's sampling is set."""


def describe_value(value: object) -> str:
    """A value's JSON, shortened, and its type, for a message."""
    return "missing" if value is None else f"{json.dumps(value, default=str)[:40]} ({type(value).__name__})"
