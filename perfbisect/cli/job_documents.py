"""The JSON documents of verbs about jobs: ``status``, ``stop``, and what ``--detach`` leaves behind."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfbisect.render.documents import Document, ErrorDocument


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
