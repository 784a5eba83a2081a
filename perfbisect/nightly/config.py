"""The configuration file of a nightly."""

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

Cause = Literal["product", "instrument", "workload", "night", "unknown"]
Suite = Literal[True, False, "as_nightly"]

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")
_VARIABLE = re.compile(r"^[A-Z_][A-Z0-9_]*$")
_DAY = re.compile(r"^\d{4}-\d\d-\d\d$")
_SECRET = (
    "the address of a webhook is a secret and does not belong in a file: write "
    "webhook: {url: NIGHTLY_WEBHOOK}, and set NIGHTLY_WEBHOOK where the nightly runs"
)


def _check_duration(text: str) -> str:
    parse_minutes(text)
    return text


def _check_share(text: str) -> str:
    parse_share(text)
    return text


def _check_day(text: str) -> str:
    if text and not _DAY.match(text):
        raise ValueError(f"{text!r} is not a date such as 2026-11-01")
    return text


def _check_name(text: str) -> str:
    if not _NAME.match(text):
        raise ValueError(f"{text!r} is not a name of lower-case letters, digits, '.', '_' and '-'")
    return text


def _check_variable(text: str) -> str:
    """Check a variable's name; the message does not repeat it, since it may be the secret."""
    if not _VARIABLE.match(text):
        raise ValueError(f"is not the name of an environment variable; {_SECRET}")
    return text


def _refuse_secret(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(_SECRET)
    return value


def _check_address(text: str) -> str:
    if text and ("{sha}" not in text or not text.startswith("https://")):
        raise ValueError("is not a commit address such as https://host/commit/{sha}")
    return text


def _check_launches(value: dict[str, int]) -> dict[str, int]:
    too_few = [glob for glob, count in value.items() if count < 2]
    if too_few:
        raise ValueError(f"{too_few[0]}: a cell needs at least two launches")
    return value


def _check_not_empty(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("must name a cell")
    return value


def _to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Duration = Annotated[str, AfterValidator(_check_duration)]
Share = Annotated[str, AfterValidator(_check_share)]
Day = Annotated[str, AfterValidator(_check_day)]


class AlertRules(BaseModel):
    """Which changes are findings; others are only listed.

    ``fdr``: the largest share of false alarms among the series with an alert. ``since``: the first
    night whose changes are reported.
    """

    model_config = _STRICT

    fdr: float = Field(default=0.05, gt=0, lt=1)
    smallest: Share | None = None
    causes: Annotated[tuple[Cause, ...], BeforeValidator(_to_tuple)] = Field(
        default=("product", "unknown"), min_length=1
    )
    improvements: bool = False
    since: Day = ""

    @property
    def min_effect(self) -> float:
        """The smallest relative effect that is a finding."""
        return parse_share(self.smallest) if self.smallest else 0.0


class BisectRules(BaseModel):
    """When a bisection starts automatically.

    ``budget``: of one bisection; ``most``: how many a night. ``tails``: also for a mean or a percentile whose
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
    def min_effect(self) -> float:
        """The smallest relative effect that is worth a bisection."""
        return parse_share(self.smallest) if self.smallest else 0.0


class ExportRules(BaseModel):
    """Files for other tools, rewritten every night."""

    model_config = _STRICT

    csv: str | None = None
    benchmark: str | None = None


class DashboardRules(BaseModel):
    """The static site. ``commit_url``: a commit's address with ``{sha}``."""

    model_config = _STRICT

    folder: str = Field(min_length=1)
    title: str = "Nightly performance"
    commit_url: Annotated[str, AfterValidator(_check_address)] = ""


class WebhookRules(BaseModel):
    """``url``: the environment variable with the secret address."""

    model_config = _STRICT

    url: Annotated[str, AfterValidator(_check_variable)]
    when: Literal["findings", "always"] = "findings"


class NotificationRules(BaseModel):
    """Where the night is sent. ``job_summary``: append to the file in ``GITHUB_STEP_SUMMARY`` if it is set;
    ``markdown``: a file to paste or post."""

    model_config = _STRICT

    webhook: Annotated[WebhookRules | None, BeforeValidator(_refuse_secret)] = None
    job_summary: bool = True
    markdown: str | None = None


class Nightly(BaseModel):
    """A nightly. Paths are relative to its file; defaults come from the repository's ``perfbisect.yaml``.

    ``cells``: names, patterns of names (``text_*``) or files. ``branch``: its head is measured; ``fetch``:
    fetch its remote first. ``launches`` a cell, at least two; ``launches_of``: more for patterns of names.
    ``suite``: cells of one server share its launches; ``as_nightly``: in the order of the file. ``budget``:
    of a night, bisections included.
    """

    model_config = _STRICT

    name: Annotated[str, AfterValidator(_check_name)]
    cells: Annotated[Words, AfterValidator(_check_not_empty)]
    repository: str | None = None
    branch: str = Field(default="HEAD", min_length=1)
    fetch: bool = False
    environment: str | None = None
    client: str | None = None
    constraints: str | None = None
    exclude_newer: Day | None = None
    machine: str | None = None
    launches: int = Field(default=2, ge=2)
    launches_of: Annotated[dict[str, int], AfterValidator(_check_launches)] = Field(default_factory=dict)
    runs: int = Field(default=1, ge=1)
    suite: Suite = False
    budget: Duration
    state: str | None = None
    publish: str | None = None
    exports: ExportRules = ExportRules()
    report: str | None = None
    dashboard: DashboardRules | None = None
    alerts: AlertRules = AlertRules()
    bisect: BisectRules = BisectRules()
    tell: NotificationRules = NotificationRules()

    @property
    def minutes(self) -> float:
        """The budget of a night."""
        return parse_minutes(self.budget)


@dataclass(frozen=True)
class NightlyFile:
    """A nightly with its file."""

    nightly: Nightly
    document: Located

    @property
    def file(self) -> Path:
        return self.document.file

    def path(self, value: str | None) -> Path | None:
        """Resolve a path relative to the file."""
        return None if value is None else (self.file.parent / Path(value).expanduser()).resolve()

    def wrong(self, place: tuple[str | int, ...], message: str, allowed: str = "") -> LocatedError:
        """Build an error located in the file."""
        field = ".".join(str(part) for part in place)
        return LocatedError(
            message, file=self.file, line=self.document.line(place), field=field, allowed=allowed or None
        )


def load_nightly(path: Path) -> NightlyFile:
    """Load a nightly.

    Raises:
        UsageError: the file cannot be read.
        LocatedError: a key or value is wrong.
    """
    if not path.is_file():
        raise UsageError(f"{path} does not exist", next_step=f"perfbisect nightly --init {path} writes one")
    document = load(path)
    return NightlyFile(validate(document, Nightly), document)


_MAGIC = frozenset("*?[")
_SUFFIXES = (".yaml", ".yml")
_FOLDER = "cells"


@dataclass(frozen=True)
class FoundCell:
    """A cell and its unique name: ``FILE``, or ``FILE@c4-n40`` in a ladder."""

    cell: Cell
    source: str


def find_cells(file: NightlyFile, *, read_at: ReadAt | None = None) -> tuple[FoundCell, ...]:
    """Find the cells of a nightly, each once, in the order of the file.

    Names are looked up in ``cells/`` beside the file, in ``./cells`` and among the shipped cells. A pattern
    with a slash or a suffix matches files beside the nightly's.

    Raises:
        LocatedError: an unknown cell, two cells of one name, launches for an unknown cell, or a wrong file.
    """
    known, found = _cell_files(file), dict[str, FoundCell]()
    for index, entry in enumerate(file.nightly.cells):
        paths = list(_matching_files(file, entry, known))
        if not paths:
            raise _unknown_cell(file, index, entry, known)
        for path in paths:
            cells = load_cells(path, read_at=read_at)
            for cell in cells:
                rung = cell.name.rpartition("@")[2] if len(cells) > 1 else ""
                previous = found.setdefault(cell.name, FoundCell(cell, f"{path}@{rung}" if rung else path))
                if previous.cell.digest != cell.digest:
                    raise file.wrong(("cells", index), f"two cells have the name {cell.name}")
    for glob in file.nightly.launches_of:
        if not any(fnmatchcase(name, glob) for name in found):
            raise file.wrong(("launches_of", glob), "matches no cell", ", ".join(found))
    return tuple(found.values())


def launches_of(file: NightlyFile, cell: str) -> int:
    """The launches of a cell: the maximum of the matching patterns, else the default."""
    counts = [count for glob, count in file.nightly.launches_of.items() if fnmatchcase(cell, glob)]
    return max(counts, default=file.nightly.launches)


def _cell_files(file: NightlyFile) -> dict[str, Path]:
    beside = file.file.absolute().parent / _FOLDER
    own = {path.stem: path for suffix in _SUFFIXES for path in sorted(beside.glob(f"*{suffix}"))}
    return {cell.name: cell.path.absolute() for cell in list_cells()} | own


def _matching_files(file: NightlyFile, entry: str, known: dict[str, Path]) -> Iterator[str]:
    bare, at, rung = entry.rpartition("@")
    stem, rung = (bare, f"@{rung}") if at else (entry, "")
    folder = file.file.absolute().parent
    if "/" in stem or stem.endswith(_SUFFIXES):
        path = Path(stem).expanduser()
        if _MAGIC & set(stem):
            yield from map(str, sorted(path for path in folder.glob(stem) if path.is_file()))
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


def _unknown_cell(file: NightlyFile, index: int, entry: str, known: dict[str, Path]) -> LocatedError:
    return file.wrong(
        ("cells", index),
        f"no cell {entry!r}{hint(entry.strip('*'), known, cutoff=0.4)}",
        "a name, a pattern of names (text_*), a file",
    )
