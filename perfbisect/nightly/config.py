"""The configuration of a nightly: what is measured every night, when it is bisected, and who is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from perfbisect.cells.loading import ReadAt, list_cells, load_cells
from perfbisect.common.durations import parse_minutes, parse_share
from perfbisect.common.suggest import hint
from perfbisect.common.yaml_source import Located, load, validate
from perfbisect.errors import LocatedError, UsageError
from perfbisect.model.cell import Cell, Words

FILE = "nightly.yaml"

Cause = Literal["product", "instrument", "workload", "night", "unknown"]
Suite = Literal[True, False, "as_nightly"]

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")
_VARIABLE = re.compile(r"^[A-Z_][A-Z0-9_]*$")
_DAY = re.compile(r"^\d{4}-\d\d-\d\d$")
_SECRET = (
    "an address of a webhook is a secret and must not stand in a file: write "
    "webhook: {url: NIGHTLY_WEBHOOK}, and set NIGHTLY_WEBHOOK where the nightly runs"
)


def _duration(text: str) -> str:
    parse_minutes(text)
    return text


def _share(text: str) -> str:
    parse_share(text)
    return text


def _day(text: str) -> str:
    if text and not _DAY.match(text):
        raise ValueError(f"{text!r} is no day; write 2026-11-01")
    return text


def _name(text: str) -> str:
    if not _NAME.match(text):
        raise ValueError(f"{text!r} is no name: small letters, digits, '.', '_' and '-'")
    return text


def _variable(text: str) -> str:
    """What is wrong is not repeated: it may be the secret itself."""
    if not _VARIABLE.match(text):
        raise ValueError(f"is no name of an environment variable; {_SECRET}")
    return text


def _no_secret(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(_SECRET)
    return value


def _address(text: str) -> str:
    if text and ("{sha}" not in text or not text.startswith("https://")):
        raise ValueError("is no address of a commit: https://...{sha}")
    return text


def _enough(value: dict[str, int]) -> dict[str, int]:
    few = [glob for glob, count in value.items() if count < 2]
    if few:
        raise ValueError(f"{few[0]}: a cell has at least two launches")
    return value


def _some(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("names no cell")
    return value


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Duration = Annotated[str, AfterValidator(_duration)]
Share = Annotated[str, AfterValidator(_share)]
Day = Annotated[str, AfterValidator(_day)]


class AlertRules(BaseModel):
    """Which changes are findings; the others are listed. ``fdr``: the share of false alarms among the series
    that are alarmed, at most. ``since``: changes of earlier nights are not told."""

    model_config = _STRICT

    fdr: float = Field(default=0.05, gt=0, lt=1)
    smallest: Share | None = None
    causes: Annotated[tuple[Cause, ...], BeforeValidator(_listed)] = Field(
        default=("product", "unknown"), min_length=1
    )
    improvements: bool = False
    since: Day = ""

    @property
    def least(self) -> float:
        """The smallest effect that is a finding, relative."""
        return parse_share(self.smallest) if self.smallest else 0.0


class BisectRules(BaseModel):
    """When the commit is looked for by itself. ``budget``: of one bisection; ``most``: so many a night.

    ``smallest``: below that effect it is not worth it. ``tails``: also for a mean or a percentile whose
    median did not move.
    """

    model_config = _STRICT

    when: Literal["new", "never"] = "new"
    budget: Duration = "3h"
    smallest: Share | None = None
    most: int = Field(default=2, ge=1)
    tails: bool = False

    @property
    def minutes(self) -> float:
        return parse_minutes(self.budget)

    @property
    def least(self) -> float:
        """The smallest effect that is worth it, relative."""
        return parse_share(self.smallest) if self.smallest else 0.0


class Exports(BaseModel):
    """Files for other tools, written anew every night."""

    model_config = _STRICT

    csv: str | None = None
    benchmark: str | None = None


class Dashboard(BaseModel):
    """The static site. ``commit_url``: the address of a commit, with ``{sha}`` in it."""

    model_config = _STRICT

    folder: str = Field(min_length=1)
    title: str = "Nightly performance"
    commit_url: Annotated[str, AfterValidator(_address)] = ""


class Webhook(BaseModel):
    """``url``: the name of the environment variable that holds the address, which is a secret."""

    model_config = _STRICT

    url: Annotated[str, AfterValidator(_variable)]
    when: Literal["findings", "always"] = "findings"


class Tell(BaseModel):
    """Who is told. ``job_summary``: the file that ``GITHUB_STEP_SUMMARY`` names, where it is set;
    ``markdown``: a file to paste or post."""

    model_config = _STRICT

    webhook: Annotated[Webhook | None, BeforeValidator(_no_secret)] = None
    job_summary: bool = True
    markdown: str | None = None


class Nightly(BaseModel):
    """A nightly. Paths are relative to its file; what is not said is ``perfbisect.yaml``'s of the repository.

    ``cells``: names, patterns of names (``text_*``) or files. ``branch``: the revision whose head is
    measured; ``fetch``: its remote is asked for what is new before. ``launches`` a cell, at least two;
    ``launches_of`` says more for some, by patterns of names. ``suite``: cells of one server share its
    launches; ``as_nightly`` in the order in which they stand. ``budget``: of a night, bisections included.
    """

    model_config = _STRICT

    name: Annotated[str, AfterValidator(_name)]
    cells: Annotated[Words, AfterValidator(_some)]
    repository: str | None = None
    branch: str = Field(default="HEAD", min_length=1)
    fetch: bool = False
    environment: str | None = None
    client: str | None = None
    constraints: str | None = None
    exclude_newer: Day | None = None
    machine: str | None = None
    launches: int = Field(default=2, ge=2)
    launches_of: Annotated[dict[str, int], AfterValidator(_enough)] = Field(default_factory=dict)
    runs: int = Field(default=1, ge=1)
    suite: Suite = False
    budget: Duration
    state: str | None = None
    publish: str | None = None
    exports: Exports = Exports()
    report: str | None = None
    dashboard: Dashboard | None = None
    alerts: AlertRules = AlertRules()
    bisect: BisectRules = BisectRules()
    tell: Tell = Tell()

    @property
    def minutes(self) -> float:
        """The budget of a night."""
        return parse_minutes(self.budget)


@dataclass(frozen=True)
class NightlyFile:
    """A nightly with the file in which it stands."""

    nightly: Nightly
    document: Located

    @property
    def file(self) -> Path:
        return self.document.file

    def path(self, value: str | None) -> Path | None:
        """A path of the file, which is relative to it; None where nothing is said."""
        return None if value is None else (self.file.parent / Path(value).expanduser()).resolve()

    def wrong(self, place: tuple[str | int, ...], message: str, allowed: str = "") -> LocatedError:
        """What is wrong at a place of the file."""
        field = ".".join(str(part) for part in place)
        return LocatedError(
            message, file=self.file, line=self.document.line(place), field=field, allowed=allowed or None
        )


def load_nightly(path: Path) -> NightlyFile:
    """The nightly in a file.

    :raises UsageError: the file cannot be read.
    :raises LocatedError: a key or value that is wrong: file, line, field, what is allowed.
    """
    if not path.is_file():
        raise UsageError(
            f"there is no {path}", next_step=f"perfbisect nightly --init {path} writes one to begin with"
        )
    document = load(path)
    return NightlyFile(validate(document, Nightly), document)


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
