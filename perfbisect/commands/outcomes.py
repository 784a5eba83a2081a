"""What bisections measured of alerts. On every surface it stands before ranked suspects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfbisect.bisect.result import BisectResult
from perfbisect.changes.git import Repository
from perfbisect.errors import RevisionError
from perfbisect.jobs.folders import Job
from perfbisect.model.change import Change
from perfbisect.series.alerts import MeasuredOutcome, OutcomeCommit
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.findings import SeriesChange
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.job import onset_ends
from perfbisect.series.suspects.window import MainLine

CAUSED_BY_COMMITS = ("product", "unknown")
"""Causes behind which a commit may be."""


@dataclass(frozen=True)
class SiteBisection:
    """A bisection and the alerts it was made for."""

    report: BisectResult
    alerts: tuple[str, ...] = ()


def load_bisections(jobs: Iterable[Job]) -> tuple[BisectResult, ...]:
    """Read the reports of bisections; jobs without one are left out."""
    reports = []
    for job in jobs:
        try:
            reports.append(BisectResult.model_validate_json(job.document.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    return tuple(reports)


def bisections_of_alerts(
    store: SeriesStore,
    analysis: SeriesAnalysis,
    reports: Sequence[BisectResult],
    repository: Repository | None,
) -> tuple[SiteBisection, ...]:
    """Each bisection with all alerts of the events whose change it searched.

    It searched a change between whose builds it began and ended. Later nights narrow a change: then it is one
    of the same cell and metric whose builds have what the bisection found between them. ``repository``: only
    for builds that do not report their commit.
    """
    caused = [alert for alert in analysis.alerts if reports and alert.cause in CAUSED_BY_COMMITS]
    findings = [(alert, analysis.findings[alert.id]) for alert in caused]
    line = None
    if repository is not None and any(onset_ends(finding) is None for _, finding in findings):
        with contextlib.suppress(RevisionError):
            line = MainLine.of(repository)
    points = store.points() if line else ()
    searched = []
    for alert, finding in findings:
        with contextlib.suppress(RevisionError):
            if (ends := onset_ends(finding, line, points)) is not None:
                searched.append((alert.event, finding, ends))
    found = []
    for report in reports:
        events = {event for event, finding, ends in searched if _searched(report, finding, ends)}
        found.append(SiteBisection(report, tuple(a.id for a in analysis.alerts if a.event in events)))
    return tuple(found)


def outcomes_by_alert(bisections: Iterable[SiteBisection]) -> dict[str, MeasuredOutcome]:
    """What was measured of each alert: a named commit before a narrowed range, then the likeliest."""
    found = [(outcome, of.alerts) for of in bisections if (outcome := _outcome(of.report)) is not None]
    # In the mapping below the last outcome of an alert replaces the others: the most probable single commit.
    found.sort(key=lambda pair: (-len(pair[0].commits), pair[0].probability))
    return {alert: outcome for outcome, alerts in found for alert in alerts}


def measured_outcomes(
    store: SeriesStore, analysis: SeriesAnalysis, jobs: Iterable[Job], repository: Repository | None
) -> dict[str, MeasuredOutcome]:
    """By alert: what the bisections among these jobs say of it."""
    reports = [report for report in load_bisections(jobs) if _outcome(report) is not None]
    return outcomes_by_alert(bisections_of_alerts(store, analysis, reports, repository))


def _outcome(report: BisectResult) -> MeasuredOutcome | None:
    """None where it named no commit and did not narrow its range."""
    if report.culprit is not None:
        named = [(report.culprit, report.probability)]
    else:
        named = [(of.position.changes[0], of.probability) for of in report.candidates]
    if not named:
        return None
    commits = (OutcomeCommit.of(change, p) for change, p in named)
    return MeasuredOutcome(job=report.job, probability=report.probability, commits=tuple(commits))


def _searched(report: BisectResult, finding: SeriesChange, ends: tuple[str, str]) -> bool:
    good, bad = ends
    if _is(report.good, good) and _is(report.bad, bad):
        return True
    digest = finding.series.points[-1].workload.digest
    # Results from elsewhere have no digest of a cell.
    is_same_cell = not digest or digest == report.cell.digest
    if not is_same_cell or finding.series.metric != report.metric.name:
        return False
    low, high = (_place(report, sha) for sha in ends)
    outcome = _outcome(report)
    if low is None or high is None or outcome is None:
        return False
    places = [_place(report, commit.id) for commit in outcome.commits]
    return all(place is not None and low < place <= high for place in places)


def _place(report: BisectResult, sha: str) -> int | None:
    """The position of a commit in the range that was searched."""
    return next((at.index for at in report.history for of in at.changes if _is(of, sha)), None)


def _is(change: Change, sha: str) -> bool:
    """``sha``: of a build, which may be abbreviated."""
    return len(sha) >= 7 and change.id.startswith(sha)
