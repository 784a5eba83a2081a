"""The JSON documents of commands that are not kinds of jobs."""

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


class EnvironmentDocument(Document):
    """An environment in the cache."""

    key: str
    builder: str
    spec: str
    change: str
    engine_version: str
    folder: str
    complete: bool
    megabytes: float


class EnvListDocument(Document):
    """``perfbisect env list``."""

    schema_: Literal["perfbisect.env-list/1"] = Field(default="perfbisect.env-list/1", alias="schema")
    cache: str
    environments: tuple[EnvironmentDocument, ...]


class EnvBuildDocument(Document):
    """``perfbisect env build``. ``seconds``: 0 where it was there already."""

    schema_: Literal["perfbisect.env-build/1"] = Field(default="perfbisect.env-build/1", alias="schema")
    change: str
    spec: str
    key: str
    interpreter: str
    engine_version: str
    engine_commit: str
    engine_file: str
    seconds: float


class GcItemDocument(Document):
    """A folder of the cache. ``megabytes``: what removing it frees; ``why``: it was, or would be, removed."""

    folder: str
    kind: str
    change: str
    megabytes: float
    last_used: str
    why: str


class EnvGcDocument(Document):
    """``perfbisect env gc``. ``in_use``: what would have been removed, but somebody uses it."""

    schema_: Literal["perfbisect.env-gc/1"] = Field(default="perfbisect.env-gc/1", alias="schema")
    cache: str
    dry_run: bool
    freed_megabytes: float
    kept_megabytes: float
    removed: tuple[GcItemDocument, ...]
    in_use: tuple[GcItemDocument, ...]
    kept: tuple[GcItemDocument, ...]


class CheckDocument(Document):
    """One thing looked at; ``advice``: what to do about it."""

    name: str
    state: Literal["good", "warning", "bad"]
    found: str
    advice: str


class DoctorDocument(Document):
    """``perfbisect doctor``."""

    schema_: Literal["perfbisect.doctor/1"] = Field(default="perfbisect.doctor/1", alias="schema")
    fit: bool
    checks: tuple[CheckDocument, ...]


class DashboardDocument(Document):
    """``perfbisect dashboard build``. ``first_page_bytes``: read before anything is opened."""

    schema_: Literal["perfbisect.dashboard/1"] = Field(default="perfbisect.dashboard/1", alias="schema")
    index: str
    cells: int
    alerts: int
    bisections: int
    first_page_bytes: int
    bytes: int


class DashboardOpenDocument(Document):
    """``perfbisect dashboard open``. ``opened``: a browser took it."""

    schema_: Literal["perfbisect.dashboard-open/1"] = Field(
        default="perfbisect.dashboard-open/1", alias="schema"
    )
    address: str
    opened: bool


class SkillInstallDocument(Document):
    """``perfbisect skill install``. ``copied``: False where just these files were there already."""

    schema_: Literal["perfbisect.skill-install/1"] = Field(
        default="perfbisect.skill-install/1", alias="schema"
    )
    folder: str
    version: str
    copied: bool
    files: tuple[str, ...]


class SchemasDocument(Document):
    """``perfbisect schema``: a verb -> the documents that its ``--json`` prints."""

    schema_: Literal["perfbisect.schemas/1"] = Field(default="perfbisect.schemas/1", alias="schema")
    verbs: dict[str, tuple[str, ...]]
