"""The configuration file of a nightly."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from perfbisect.cells.loading import ReadAt, list_cells, load_cells
from perfbisect.commands.options import BuildOptions
from perfbisect.commands.request import request_fields
from perfbisect.commands.settings import Settings
from perfbisect.common.checked import Minutes, Share, Size
from perfbisect.common.text import hint
from perfbisect.common.yaml_source import Located, load, validate
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell, Words

Cause = Literal["product", "instrument", "workload", "night", "unknown"]

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_SECRET = (
    "the address of a webhook or channel is a secret and does not belong in a file: name the variable that "
    "holds it, as in webhook: {url: NIGHTLY_WEBHOOK} or notify: [NIGHTLY_CHAT], and set that where the "
    "nightly runs"
)


def _matching(pattern: str, problem: str) -> AfterValidator:
    """Require a pattern; ``problem`` may repeat the text as ``{text}``."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(problem.replace("{text}", repr(text)))
        return text

    return AfterValidator(check)


def _refuse_secret(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(_SECRET)
    return value


Day = Annotated[str, _matching(r"|\d{4}-\d\d-\d\d", "{text} is not a date such as 2026-11-01")]
Name = Annotated[
    str,
    _matching(
        r"[a-z0-9][a-z0-9._-]{0,63}", "{text} is not a name of lower-case letters, digits, '.', '_' and '-'"
    ),
]
Variable = Annotated[
    str, _matching(r"[A-Z_][A-Z0-9_]*", f"is not the name of an environment variable; {_SECRET}")
]
"""The message does not repeat the text, which may be the secret."""
CommitUrl = Annotated[
    str,
    _matching(r"|https://.*\{sha\}.*", "is not a commit address such as https://host/commit/{sha}"),
]


class AlertRules(BaseModel):
    """Which changes are findings; others are only listed.

    ``fdr``: the largest share of false alarms among the series with an alert. ``smallest``: relative effect.
    ``since``: the first night whose changes are reported.
    """

    model_config = _STRICT

    fdr: float = Field(default=0.05, gt=0, lt=1)
    smallest: Share = 0.0
    causes: tuple[Cause, ...] = Field(default=("product", "unknown"), min_length=1, strict=False)
    improvements: bool = False
    since: Day = ""


class BisectRules(BaseModel):
    """When a bisection starts automatically.

    ``budget``: of one bisection; ``most``: how many a night. ``smallest``: relative effect. ``tails``: also
    for a mean or a percentile whose median did not move.
    """

    model_config = _STRICT

    when: Literal["new", "never"] = "new"
    budget: Minutes = 180.0
    smallest: Share = 0.0
    most: int = Field(default=2, ge=1)
    tails: bool = False


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
    commit_url: CommitUrl = ""


class WebhookRules(BaseModel):
    """``url``: the environment variable with the secret address."""

    model_config = _STRICT

    url: Variable
    when: Literal["findings", "always"] = "findings"


class NotificationRules(BaseModel):
    """Where the night is sent. ``notify``: the environment variables with the secret addresses, of nights
    with findings. ``job_summary``: append to the file in ``GITHUB_STEP_SUMMARY`` if it is set;
    ``markdown``: a file to paste or post."""

    model_config = _STRICT

    webhook: Annotated[WebhookRules | None, BeforeValidator(_refuse_secret)] = None
    notify: Annotated[tuple[Variable, ...], BeforeValidator(_refuse_secret), Field(strict=False)] = ()
    job_summary: bool = True
    markdown: str | None = None


class Nightly(BaseModel):
    """A nightly. Paths are relative to its file; defaults come from the repository's ``perfbisect.yaml``.

    ``cells``: names, patterns of names (``text_*``) or files. ``branch``: its head is measured; ``fetch``:
    fetch its remote first. ``launches`` a cell, at least two; ``launches_of``: more for patterns of names.
    ``budget``: of a night, bisections included. ``every_machine``: each cell is measured on every machine of
    the ``--fleet``, otherwise on one. ``explain``: profile the culprits of the night's bisections.
    ``kept_size``: bytes of all kept wheels and images, None: that of ``perfbisect.yaml``, else none is kept.
    The settings among the options of a measurement are keys, too, see :data:`OPTIONS`.
    """

    model_config = _STRICT

    name: Name
    cells: Words = Field(min_length=1)
    repo: str | None = None
    branch: str = Field(default="HEAD", min_length=1)
    fetch: bool = False
    every_machine: bool = False
    launches: int = Field(default=2, ge=2)
    launches_of: dict[str, Annotated[int, Field(ge=2)]] = Field(default_factory=dict)
    runs: int = Field(default=1, ge=1)
    budget: Minutes
    publish: str | None = None
    exports: ExportRules = ExportRules()
    report: str | None = None
    dashboard: DashboardRules | None = None
    alerts: AlertRules = AlertRules()
    bisect: BisectRules = BisectRules()
    explain: bool = True
    kept_size: Size | None = None
    tell: NotificationRules = NotificationRules()


OPTIONS: Final = tuple(field for field in request_fields(BuildOptions) if field.setting)
"""How commits are built and where they are measured: keys by the names of the options."""

_RENAMED = {"repository": "repo", "environment": "env"}


@dataclass(frozen=True)
class NightlyFile:
    """``options``: those that the file sets."""

    nightly: Nightly
    options: BuildOptions
    document: Located

    @property
    def file(self) -> Path:
        return self.document.file

    @property
    def folder(self) -> Path:
        return self.file.absolute().parent

    def path(self, value: str | None) -> Path | None:
        """Resolve a path relative to the file."""
        return None if value is None else (self.file.parent / Path(value).expanduser()).resolve()


def load_nightly(path: Path) -> NightlyFile:
    """:raises LocatedError: the file is invalid, or has a key of before."""
    if not path.is_file():
        raise UsageError(f"{path} does not exist", next_step=f"perfbisect nightly --init {path} writes one")
    document = load(path)
    for old, new in _RENAMED.items():
        if old in document.mapping():
            raise document.error((old,), f"unknown key; it has the name of its option now: {new}", new)
    keys: dict[str, Any] = {field.key: (str | None, None) for field in OPTIONS}
    nightly = validate(document, create_model("NightlyYaml", __base__=Nightly, **keys))
    if nightly.tell.notify and find_spec("apprise") is None:
        raise document.error(
            ("tell", "notify"),
            f"needs the extra notify, which {sys.executable} lacks: pip install 'perfbisect[notify]'",
        )
    texts = nightly.model_dump(include=set(keys), exclude_none=True)
    settings = Settings(path.absolute().parent, texts, document)
    given = {field.name: settings.value(field) for field in OPTIONS if field.key in settings.texts}
    return NightlyFile(nightly, BuildOptions(**given), document)


@dataclass(frozen=True)
class FoundCell:
    """A cell and its unique name: ``FILE``, or ``FILE@c4-n40`` in a ladder."""

    cell: Cell
    source: str


def find_cells(file: NightlyFile, *, read_at: ReadAt | None = None) -> tuple[FoundCell, ...]:
    """Find the cells of a nightly, each once, in the order of the file.

    Names are looked up in ``cells/`` beside the file, in ``./cells`` and among the shipped cells. A pattern
    with a slash or a suffix matches files beside the nightly's.
    """
    folder, found = file.folder / "cells", dict[str, FoundCell]()
    beside = [*sorted(folder.glob("*.yaml")), *sorted(folder.glob("*.yml"))]
    known = {name: path.absolute() for name, path in list_cells().items()}
    known |= {path.stem: path for path in beside}
    for index, entry in enumerate(file.nightly.cells):
        sources = list(_matching_sources(file.folder, entry, known))
        if not sources:
            raise file.document.error(
                ("cells", index),
                f"no cell {entry!r}{hint(entry.strip('*'), known, cutoff=0.4)}",
                "a name, a pattern of names (text_*), a file",
            )
        for source in sources:
            cells = load_cells(source, read_at=read_at)
            for cell in cells:
                rung = cell.name.rpartition("@")[2] if len(cells) > 1 else ""
                cell_source = f"{source}@{rung}" if rung else source
                previous = found.setdefault(cell.name, FoundCell(cell, cell_source))
                if previous.cell.digest != cell.digest:
                    raise file.document.error(("cells", index), f"two cells have the name {cell.name}")
    for glob in file.nightly.launches_of:
        if not any(fnmatchcase(name, glob) for name in found):
            raise file.document.error(("launches_of", glob), "matches no cell", ", ".join(found))
    return tuple(found.values())


def launches_of(file: NightlyFile, cell: str) -> int:
    """The launches of a cell: the maximum of the matching patterns, else the default."""
    counts = [count for glob, count in file.nightly.launches_of.items() if fnmatchcase(cell, glob)]
    return max(counts, default=file.nightly.launches)


def _matching_sources(folder: Path, entry: str, known: Mapping[str, Path]) -> Iterator[str]:
    """The sources of an entry: a file, a name or a pattern, each optionally with ``@RUNG``."""
    bare, at, rung = entry.rpartition("@")
    stem, suffix = (bare, f"@{rung}") if at else (entry, "")
    if "/" in stem or stem.endswith((".yaml", ".yml")):
        paths = sorted(folder.glob(stem)) if _is_pattern(stem) else [folder / Path(stem).expanduser()]
        yield from (f"{path}{suffix}" for path in paths if path.is_file())
    elif not _is_pattern(entry):
        if stem in known:
            yield f"{known[stem]}{suffix}"
    else:
        for name in sorted(known):
            if fnmatchcase(name, entry):
                yield str(known[name])
            elif at and fnmatchcase(name, stem):
                names = (cell.name for cell in load_cells(known[name]))
                rungs = (name.rpartition("@")[2] for name in names if fnmatchcase(name, entry))
                yield from (f"{known[name]}@{rung}" for rung in rungs)


def _is_pattern(text: str) -> bool:
    return any(mark in text for mark in "*?[")
