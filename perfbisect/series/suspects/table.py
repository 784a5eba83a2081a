"""The table behind a ranking of suspects: which files cells run, what files are, and what evidence weighs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from perfbisect.common.text import MODEL, glob_pattern
from perfbisect.common.yaml_source import load, validate
from perfbisect.model.cell import Words
from perfbisect.model.commit_details import CauseWord
from perfbisect.series.points import cell_of_series

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_SHARE = Field(gt=0, lt=1)
_FACTOR = Field(gt=0, le=1e6)


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _paired(value: object) -> object:
    return tuple(map(_listed, value)) if isinstance(value, list) else value


Rows, Pairs = BeforeValidator(_listed), BeforeValidator(_paired)


class _Paths(BaseModel):
    model_config = _STRICT

    paths: Words = Field(min_length=1)

    @field_validator("paths")
    @classmethod
    def _one_model(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for glob in value:
            if not glob.strip("/ ") or glob.count(MODEL) > 1:
                raise ValueError(f"{glob!r} names no path, or {MODEL} twice")
        return value

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """What each of the paths covers."""
        return tuple(glob_pattern(glob, models=True) for glob in self.paths)

    def match(self, path: str) -> re.Match[str] | None:
        """The match of the first pattern that covers a path."""
        return next((found for p in self.patterns if (found := p.fullmatch(path))), None)


class EnginePart(_Paths):
    """A part of the engine and who runs it: cells with one of the traits ``of``, or with none named all of
    them; where a path holds ``{model}``, cells that serve that model.

    ``sure``: how far the table may be believed here. The rest says nothing, for or against.
    """

    part: str = Field(min_length=1)
    of: Words = ()
    sure: float = _SHARE


class FileKind(_Paths):
    """What a file is, and how likely a commit of such files alone moves a measured metric, against code of
    which nothing is known.

    ``code``: it is code of the product nevertheless, such as what runs only before the first request.
    """

    kind: str = Field(min_length=1)
    weight: float = _FACTOR
    code: bool = False


class CellTraits(BaseModel):
    """What cells of nightlies run, by patterns of their names (``*`` is any text)."""

    model_config = _STRICT

    cells: Words = Field(min_length=1)
    traits: Words = Field(min_length=1)


class EvidenceWeights(BaseModel):
    """What each piece of evidence multiplies the odds of a commit by.

    ``hit``, ``leak``: how often a server that runs the changed code is hit, and one that does not; ``votes``:
    as how many independent servers all of them count at most. ``outside_window``: that it is none of the
    commits, against one commit of which nothing is known. ``size``: up to so many lines -> factor, ascending.
    """

    model_config = _STRICT

    outside_window: float = _FACTOR
    outside: float = _FACTOR
    hit: float = _SHARE
    leak: float = _SHARE
    votes: float = Field(ge=1)
    size: Annotated[tuple[tuple[float, float], ...], Pairs]
    pins: float = _FACTOR
    revert_recovered: float = _FACTOR
    fix_recovered: float = _FACTOR
    same_files_recovered: float = _FACTOR
    revert_unmeasured: float = _FACTOR
    revert_still_slow: float = _FACTOR
    undone_in_window: float = _FACTOR
    attribute: float = _SHARE

    @field_validator("size")
    @classmethod
    def _ascending(cls, value: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        if list(value) != sorted(value) or any(factor <= 0 for _, factor in value):
            raise ValueError("expected pairs of lines and a factor above 0, ascending")
        return value


class SuspectTable(BaseModel):
    """All of it. A file is of the last part, and of the last kind, that covers it.

    ``causes``: of each cause of an alert, by what it multiplies kinds, and ``outside_window``.
    """

    model_config = _STRICT

    weights: EvidenceWeights
    kinds: Annotated[tuple[FileKind, ...], Rows]
    parts: Annotated[tuple[EnginePart, ...], Rows]
    cells: Annotated[tuple[CellTraits, ...], Rows] = ()
    causes: Mapping[CauseWord, Mapping[str, float]] = Field(default_factory=dict)

    def kind_of(self, path: str) -> FileKind | None:
        """What a file is; None for code like any other."""
        return next((kind for kind in reversed(self.kinds) if kind.match(path)), None)

    def is_code(self, path: str) -> bool:
        """Whether a file is of the product."""
        kind = self.kind_of(path)
        return kind is None or kind.code

    def part_of(self, path: str) -> EnginePart | None:
        """The part of the engine that a file is of; None where the table does not know."""
        return next((part for part in reversed(self.parts) if part.match(path)), None)

    def traits_of(self, name: str) -> frozenset[str]:
        """What a cell of a nightly runs, by its name or a machine series': of every row that covers it."""
        cell = cell_of_series(name)
        return frozenset(
            trait
            for row in self.cells
            for trait in row.traits
            if any(re.fullmatch(_like(pattern), cell) for pattern in row.cells)
        )


def _like(pattern: str) -> str:
    return ".*".join(re.escape(part) for part in pattern.split("*"))


SHIPPED = Path(__file__).with_name("suspects.yaml")


def load_suspect_table(path: Path = SHIPPED) -> SuspectTable:
    """The table of a file.

    :raises UsageError: the file cannot be read.
    :raises LocatedError: a key, weight or pattern that is wrong: file, line, field, what is allowed.
    """
    return validate(load(path), SuspectTable)
