"""What the readers of nightly specifications share: the file, what becomes of it, and how its errors read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfbisect.common.yaml_source import unknown_key
from perfbisect.errors import LocatedError
from perfbisect.model.change import Change

HUB_NAME = re.compile(r"^[\w.-]+/[\w.-]+$")
"""``owner/name``: what a hub calls a data set or model."""

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class SpecificationFile:
    """A specification: where it stands, its text, and ``beside``, which reads another file by its path
    relative to the specification's folder (None: there is none). ``commit``: the one that it was read at."""

    path: Path
    text: str
    beside: Callable[[str], str | None]
    commit: Change | None = None

    @property
    def name(self) -> str:
        """The file's name, with the commit."""
        return self.path.name + (f" at {self.commit.short}" if self.commit else "")

    @property
    def file(self) -> str:
        """The whole path, as messages have it."""
        return str(self.path.with_name(self.name))

    def wrong(self, place: str, message: str, allowed: str) -> LocatedError:
        """An error at a place in the specification: ``[0].server_params.model``."""
        return LocatedError(message, file=self.file, field=place or None, allowed=allowed)

    def unknown(self, place: str, found: Iterable[str], known: Sequence[str]) -> None:
        """:raises LocatedError: a key that is none of ``known``: it may change what is measured."""
        for name in found:
            if name not in known:
                message, allowed = unknown_key(name, list(known))
                raise self.wrong(f"{place}.{name}".lstrip("."), message, allowed)


def read_file(path: Path) -> SpecificationFile:
    """A specification of the file system. :raises LocatedError: it cannot be read."""

    def beside(name: str) -> str | None:
        other = path.parent / name
        return other.read_text(encoding="utf-8") if other.is_file() else None

    try:
        return SpecificationFile(path, path.read_text(encoding="utf-8"), beside)
    except (OSError, UnicodeDecodeError) as error:
        raise LocatedError(f"cannot be read: {error}", file=path) from None


@dataclass(frozen=True)
class RequiredFile:
    """A file or folder that must lie beside the cell before it can run, and where it comes from."""

    path: str
    origin: str


@dataclass(frozen=True)
class ImportedCell:
    """One cell file: its stem, its document, the files that lie beside it by name, what must be brought."""

    stem: str
    document: Mapping[str, object]
    files: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[RequiredFile, ...] = ()


@dataclass(frozen=True)
class SkippedWorkload:
    """A workload that is not imported: where it stands, and why."""

    place: str
    why: str


@dataclass(frozen=True)
class Specification:
    """What a file of specifications holds; ``off``: workloads that are switched off, by where they stand;
    ``left_out``: those that cannot be measured here."""

    cells: tuple[ImportedCell, ...]
    off: tuple[str, ...] = ()
    left_out: tuple[SkippedWorkload, ...] = ()


def number_duplicates(cells: Sequence[ImportedCell]) -> tuple[ImportedCell, ...]:
    """Cells whose stems are told apart by a number, where several workloads have one name."""
    stems = [cell.stem for cell in cells]
    return tuple(
        replace(cell, stem=f"{cell.stem}-{stems[: i + 1].count(cell.stem)}")
        if stems.count(cell.stem) > 1
        else cell
        for i, cell in enumerate(cells)
    )


def file_stem(name: str) -> str:
    """A name that can be one of a cell and of a file: what is no letter, digit, ``.`` or ``_`` is ``-``."""
    return _NO_NAME.sub("-", name).strip(".-")


def kebab(name: object) -> str:
    """``num_prompts`` as an option has it: ``num-prompts``."""
    return str(name).replace("_", "-")


def describe_value(value: object) -> str:
    """A value for a message: its JSON, cut off, and its type."""
    return "missing" if value is None else f"{json.dumps(value, default=str)[:40]} ({type(value).__name__})"
