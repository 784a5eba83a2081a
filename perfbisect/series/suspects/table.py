"""The table behind a ranking of suspects: which files cells run, what files are, and what evidence weighs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from perfbisect.common.text import MODEL, glob_pattern, regular_expression
from perfbisect.common.yaml_source import load, validate
from perfbisect.model.cell import Words
from perfbisect.model.commit_details import CauseWord, RequestPhase
from perfbisect.series.series import cell_of_series

About = Literal["hardware", "device", "model", "feature"]
"""What a title may name: a kind of processor, a generation of devices, a model, a part of the engine."""

_SHARE = Field(gt=0, lt=1)
_FACTOR = Field(gt=0, le=1e6)
_ROWS = Field(strict=False)  # YAML has lists where the table has tuples
_Steps = Annotated[tuple[Annotated[tuple[float, float], _ROWS], ...], _ROWS]
_Factor = Annotated[float, _FACTOR]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Paths(_Row):
    paths: Words = Field(min_length=1)

    @field_validator("paths")
    @classmethod
    def _check_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for glob in value:
            if not glob.strip("/ ") or glob.count(MODEL) > 1:
                raise ValueError(f"{glob!r} names no path, or {MODEL} twice")
        return value

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(glob_pattern(glob, models=True) for glob in self.paths)

    @cached_property
    def _matches(self) -> dict[str, re.Match[str] | None]:
        """Those of the paths so far: a window of hundreds of commits touches its files often."""
        return {}

    def match(self, path: str) -> re.Match[str] | None:
        """The match of the first pattern that covers a path."""
        if path not in self._matches:
            matches = (pattern.fullmatch(path) for pattern in self._patterns)
            self._matches[path] = next(filter(None, matches), None)
        return self._matches[path]


class EnginePart(_Paths):
    """A part of the engine and who runs it.

    Cells with one of the traits ``of``, all cells without any, cells that serve the model where a path has
    ``{model}``. ``sure``: how far the table may be believed here.
    """

    part: str = Field(min_length=1)
    of: Words = ()
    sure: float = _SHARE


class FileKind(_Paths):
    """What a file is, and how likely a commit of such files alone moves a metric, against unknown code.

    ``code``: it is code of the product, such as what runs only before the first request.
    """

    kind: str = Field(min_length=1)
    weight: float = _FACTOR
    code: bool = False


class PhaseCode(_Paths):
    """Code that runs in some phases of a request, so that what slows it shows there."""

    phases: Annotated[tuple[RequestPhase, ...], _ROWS] = Field(min_length=1)


class _Words(_Row):
    """``words``: a regular expression, ignoring case."""

    words: str = Field(min_length=1)

    @field_validator("words")
    @classmethod
    def _check_words(cls, value: str) -> str:
        regular_expression(value)
        return value

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return regular_expression(self.words, re.IGNORECASE)


class CellFeature(_Words):
    """What a cell runs if its name, model, device or options have these words."""

    feature: str = Field(min_length=1)


class TitleWords(_Words):
    """Words of a commit's title: what they say of it, or which cells run what they name.

    With ``of``, the features of cells, the weights are those of its ``about``; else it has one of its own.
    """

    title: str = Field(min_length=1)
    of: Words = ()
    about: About | None = None
    weight: float | None = Field(default=None, gt=0, le=1e6)

    @model_validator(mode="after")
    def _check_weight(self) -> TitleWords:
        if (self.weight is None) != bool(self.of) or bool(self.of) != (self.about is not None):
            raise ValueError("expected a weight, or of and about")
        return self


class CellTraits(_Row):
    """What cells of nightlies run, by patterns of their names."""

    cells: Words = Field(min_length=1)
    traits: Words = Field(min_length=1)


class EvidenceWeights(_Row):
    """What each piece of evidence multiplies the odds of a commit by.

    ``hit``, ``leak``: how often a server that runs the changed code is hit, and one that does not; ``votes``:
    as how many independent servers all of them count at most. ``outside_window``: that it is none of the
    commits, against one commit of which nothing is known. ``size``, ``spread``: up to so many lines of code,
    and files of code -> factor, ascending. ``titles``: a title names what the affected cell runs, or what it
    does not run. ``phases``: how many times as often code of a phase moves it as code of another phase does.
    """

    outside_window: float = _FACTOR
    outside: float = _FACTOR
    hit: float = _SHARE
    leak: float = _SHARE
    votes: float = Field(ge=1)
    size: _Steps
    spread: _Steps = ()
    titles: Mapping[About, Annotated[tuple[_Factor, _Factor], _ROWS]] = Field(default_factory=dict)
    phases: Mapping[RequestPhase, Annotated[float, Field(ge=1, le=10)]] = Field(default_factory=dict)
    pins: float = _FACTOR
    revert_recovered: float = _FACTOR
    fix_recovered: float = _FACTOR
    same_files_recovered: float = _FACTOR
    revert_unmeasured: float = _FACTOR
    revert_still_slow: float = _FACTOR
    undone_in_window: float = _FACTOR
    attribute: float = _SHARE

    @field_validator("size", "spread")
    @classmethod
    def _check_order(cls, value: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        if list(value) != sorted(value) or any(factor <= 0 for _, factor in value):
            raise ValueError("expected pairs of a number and a factor above 0, ascending")
        return value


class SuspectTable(_Row):
    """A file is of the last part, of the last kind, and of the phases of the last row, that cover it.

    ``causes``: by cause of an alert, what multiplies kinds, and ``outside_window``.
    """

    weights: EvidenceWeights
    kinds: Annotated[tuple[FileKind, ...], _ROWS]
    parts: Annotated[tuple[EnginePart, ...], _ROWS]
    cells: Annotated[tuple[CellTraits, ...], _ROWS] = ()
    features: Annotated[tuple[CellFeature, ...], _ROWS] = ()
    titles: Annotated[tuple[TitleWords, ...], _ROWS] = ()
    causes: Mapping[CauseWord, Mapping[str, float]] = Field(default_factory=dict)
    phases: Annotated[tuple[PhaseCode, ...], _ROWS] = ()

    def kind_of(self, path: str) -> FileKind | None:
        """What a file is; None for code like any other."""
        # The last row counts, as in a .gitignore: rows go from the general to the particular.
        return next((kind for kind in reversed(self.kinds) if kind.match(path)), None)

    def is_code(self, path: str) -> bool:
        """Whether a file is of the product."""
        kind = self.kind_of(path)
        return kind is None or kind.code

    def part_of(self, path: str) -> EnginePart | None:
        return next((part for part in reversed(self.parts) if part.match(path)), None)

    def phases_of(self, path: str) -> tuple[RequestPhase, ...]:
        """The phases in which a file of code runs; none where that is not known."""
        rows = (row for row in reversed(self.phases) if row.match(path))
        return next((row.phases for row in rows), ()) if self.is_code(path) else ()

    def traits_of(self, name: str) -> frozenset[str]:
        """What a cell of a nightly runs, by its name or a machine series': of every row that covers it."""
        # A series on another machine runs what its cell runs.
        cell = cell_of_series(name)
        rows = (row for row in self.cells if any(re.fullmatch(_pattern(x), cell) for x in row.cells))
        return frozenset(trait for row in rows for trait in row.traits)

    def features_of(self, *texts: str) -> frozenset[str]:
        """What a cell runs, by its name, model, device and options."""
        text = " | ".join(texts)
        return frozenset(row.feature for row in self.features if row.pattern.search(text))


def _pattern(cells: str) -> str:
    """``*`` is any text; other characters are themselves."""
    return ".*".join(re.escape(part) for part in cells.split("*"))


SHIPPED = Path(__file__).with_name("suspects.yaml")


def load_suspect_table(path: Path = SHIPPED) -> SuspectTable:
    """The table of a file.

    :raises UsageError: the file cannot be read.
    :raises LocatedError: a key, weight or pattern that is wrong: file, line, field, what is allowed.
    """
    return validate(load(path), SuspectTable)
