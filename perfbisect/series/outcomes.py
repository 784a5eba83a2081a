"""What a bisection says of an alert: the commit that it named, or the few of which one made the step."""

from __future__ import annotations

from collections.abc import Mapping

from perfbisect.jobs.documents import ChangeDocument, Document

_SHOWN = 5
"""Commits of a narrowed range in a line; the report of its job has all."""


class OutcomeCommit(Document):
    """A commit with the probability that it made the step."""

    id: str
    short: str
    subject: str
    probability: float

    @classmethod
    def of(cls, change: ChangeDocument, probability: float) -> OutcomeCommit:
        return cls(id=change.id, short=change.short, subject=change.subject, probability=probability)


class MeasuredOutcome(Document):
    """How a bisection of an alert ended.

    ``commits``: the one that it named, or those of a narrowed range, the likeliest first. ``probability``:
    that one of them made the step.
    """

    job: str
    probability: float
    commits: tuple[OutcomeCommit, ...]

    @property
    def report(self) -> str:
        """The command that shows it whole."""
        return f"perfbisect report {self.job}"


NO_OUTCOMES: Mapping[str, MeasuredOutcome] = {}
