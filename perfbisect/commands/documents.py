"""The JSON documents of verbs about jobs: ``status``, ``stop``, and what ``--detach`` leaves behind."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from perfbisect.jobs.documents import ChangeDocument, Document, ErrorDocument


class EndedLaunchDocument(Document):
    """A launch that has ended. ``minutes`` that it took; ``reason``: why it has no ``value``."""

    number: int
    change: str
    purpose: str
    outcome: Literal["measured", "failed", "abandoned"]
    value: float | None
    minutes: float
    reason: str


class RunningLaunchDocument(Document):
    """A launch that runs now, ``since`` when; ``log``: the file that was written to last."""

    number: int
    change: str
    subject: str
    purpose: str
    why: str
    slot: str
    since: str
    log: str | None


class LeadingDocument(Document):
    """A change that may be the culprit, and with which probability."""

    position: int
    change: str
    subject: str
    probability: float


class ExpectedEventDocument(Document):
    """What comes next; ``at``: when, as long as launches have taken so far, in ISO 8601; None: not known."""

    event: str
    at: str | None


class StatusDocument(Document):
    """A job: how far it is, who works on it, what is believed, what comes next. Times are ISO 8601 in UTC.

    ``minutes`` were measured of ``budget`` (0: none was set), in ``launched`` launches of which ``last`` are
    the newest that ended.
    """

    schema_: Literal["perfbisect.status/2"] = Field(default="perfbisect.status/2", alias="schema")
    job: str
    verb: str
    state: Literal["running", "unfinished", "finished"]
    pid: int | None
    outcome: str
    """``unfinished``, or the word with which it ended."""
    verdict: str = ""
    """What that word is of, in a few more: the culprit, the effect; empty before the end."""
    exit_code: int | None
    """Of the verb, once the process that worked on the job has ended; None: it runs, or it was killed."""
    error: ErrorDocument | None
    """With which that process ended, if it did."""
    cell: str
    metric: str
    unit: str
    began: str
    now: str
    minutes: float
    budget: float
    launched: int
    last: tuple[EndedLaunchDocument, ...]
    running: tuple[RunningLaunchDocument, ...]
    expected: ExpectedEventDocument | None
    leading: tuple[LeadingDocument, ...]
    folder: str
    log: str | None
    """Of a detached job: what its process wrote."""
    report: str | None
    result: str | None
    """The JSON document with which the verb ended, whole."""
    next: str


class JobLineDocument(Document):
    """A job in a list; ``outcome``, ``verdict`` and ``exit_code`` as in its status."""

    job: str
    state: Literal["running", "unfinished", "finished", "broken"]
    verb: str
    cell: str
    launches: int
    outcome: str = ""
    verdict: str = ""
    exit_code: int | None = None


class JobsDocument(Document):
    """``perfbisect status`` where no job is unfinished."""

    schema_: Literal["perfbisect.jobs/1"] = Field(default="perfbisect.jobs/1", alias="schema")
    jobs: tuple[JobLineDocument, ...]


class StopDocument(Document):
    """``perfbisect stop``. ``asked``: somebody worked on the job, and was asked to stop."""

    schema_: Literal["perfbisect.stop/1"] = Field(default="perfbisect.stop/1", alias="schema")
    job: str
    asked: bool
    pid: int | None
    ended: bool
    """Nobody works on the job any more."""
    next: str


class DetachedDocument(Document):
    """What ``--detach`` leaves behind: a job that process ``pid`` goes on with, and commands for it."""

    schema_: Literal["perfbisect.detached/1"] = Field(default="perfbisect.detached/1", alias="schema")
    job: str
    pid: int
    folder: str
    log: str
    poll: str
    stop: str
    next: str


class SeenDocument(BaseModel):
    """One thing that was looked at, and what was found."""

    what: str
    found: str


class InitDocument(Document):
    """``perfbisect init``.

    ``state``: what became of ``file``, or would with --dry-run: ``new``, ``same`` (it was there already),
    ``replaced``. ``difference``: lines of a diff from what was there; ``next``: a command.
    """

    schema_: Literal["perfbisect.init/1"] = Field(default="perfbisect.init/1", alias="schema")
    file: str
    state: Literal["new", "same", "replaced"]
    written: bool
    engine: str
    saw: tuple[SeenDocument, ...]
    settings: dict[str, str]
    content: str
    difference: tuple[str, ...]
    next: str


class DifferenceDocument(Document):
    """A field in which two workloads differ."""

    field: str
    left: str
    right: str


class CellMatchDocument(Document):
    """A cell beside what was seen: left there, right here."""

    cell: str
    digest: str
    differences: tuple[DifferenceDocument, ...]


class CellsMatchDocument(Document):
    """``perfbisect cells match``: the nearest cells; ``missing``: what the text does not say of a cell.

    ``apart``: the fields of which one would tell the cells that agree from each other; empty where one alone
    agrees, so that nothing that is missing makes it another known cell. ``warnings``: cell files that cannot
    be read, which are left out.
    """

    schema_: Literal["perfbisect.cells-match/1"] = Field(default="perfbisect.cells-match/1", alias="schema")
    exact: bool
    missing: tuple[str, ...]
    apart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    cells: tuple[CellMatchDocument, ...]


class FindingDocument(Document):
    """Something wrong with a field of a cell."""

    level: Literal["error", "warning"]
    field: str
    message: str


class CellLintDocument(Document):
    """A cell that was checked."""

    cell: str
    findings: tuple[FindingDocument, ...]


class CellsLintDocument(Document):
    """``perfbisect cells lint``. ``client``: what would load the server, where that is not the commit's own:
    data set and backend are then not checked; empty where they are. ``warnings``: cell files that cannot be
    read and were not named."""

    schema_: Literal["perfbisect.cells-lint/1"] = Field(default="perfbisect.cells-lint/1", alias="schema")
    engine: str
    at: str
    client: str = ""
    warnings: tuple[str, ...] = ()
    cells: tuple[CellLintDocument, ...]


class ImportedFileDocument(Document):
    """A specification: the cell files made of it, how many of its workloads are switched off, which are left
    out and why, and what must be brought before the cells can run."""

    spec: str
    files: tuple[str, ...]
    cells: int
    switched_off: int
    left_out: tuple[str, ...]
    to_bring: tuple[str, ...]


class CellsImportDocument(Document):
    """``perfbisect cells import``."""

    schema_: Literal["perfbisect.cells-import/1"] = Field(default="perfbisect.cells-import/1", alias="schema")
    files: tuple[ImportedFileDocument, ...]
    cells: int


class PackageDocument(Document):
    """A package that an image replaces; ``version`` empty: only removed."""

    name: str
    version: str


class ChangesShowDocument(Document):
    """``perfbisect changes show``: ``vllm`` is what the engine under it is, ``none`` where no pin is read."""

    schema_: Literal["perfbisect.changes-show/1"] = Field(default="perfbisect.changes-show/1", alias="schema")
    change: ChangeDocument
    kind: Literal["commit", "release"]
    vllm: Literal["commit", "release", "unknown", "none"]
    tag: str
    release: str
    commit: str
    packages: tuple[PackageDocument, ...]
