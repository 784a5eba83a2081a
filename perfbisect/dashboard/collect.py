"""``perfbisect dashboard build``: series, their alerts and suspects, and bisections, as one site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from perfbisect.bisect.documents import ReportDocument
from perfbisect.changes.git import Repository
from perfbisect.dashboard import cells
from perfbisect.dashboard.cells import cell_document
from perfbisect.dashboard.site import BisectionDocument, SiteCellDocument, SiteDocument, SmallDocument
from perfbisect.errors import RevisionError
from perfbisect.jobs.folders import Job
from perfbisect.series.alerts import Alert, leading_alert
from perfbisect.series.cause_text import suppression_sentence
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.findings import JudgedFamily, SeriesChange, Suppression
from perfbisect.series.series import CellSeries
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.job import RankedAlert, cell_of_ours, command_of, note_of, rank_alert
from perfbisect.series.suspects.report import SuspectsDocument, suspects_document
from perfbisect.series.suspects.table import SuspectTable

TOP = 20
"""Suspects of an alert that are shown."""

_SETTLED_BY_COMMITS = ("product", "unknown")
"""Causes of which a commit may be the reason."""


def build_site_document(
    store: SeriesStore,
    seen: SeriesAnalysis,
    table: SuspectTable,
    *,
    title: str,
    made: str,
    repository: Repository | None = None,
    reports: Iterable[ReportDocument] = (),
    commit_url: str = "",
) -> SiteDocument:
    """The document of a site. ``repository``: without it there are no suspects. ``made``: ISO 8601 in UTC.

    Suspects are those of the alert by which an event is shown; a bisection stands beside the alerts of its
    cells whose window it searched.
    """
    rankings, failed = _rankings(store, seen, repository, table)
    notes = [] if repository else ["No repository was given: there are no suspects."]
    return SiteDocument(
        title=title,
        made=made,
        cells=tuple(_cells(seen)),
        alerts=seen.alerts,
        suspects=tuple(_suspects(ranking) for ranking in rankings) + tuple(failed),
        bisections=tuple(_bisection(report, rankings, seen.alerts) for report in reports),
        commit_url=commit_url,
        census=_census(seen),
        notes=(*notes, *_unknown(seen)),
    )


def load_bisections(jobs: Iterable[Job]) -> tuple[ReportDocument, ...]:
    """The reports of bisections that stand in their folders; a job whose report is none is left out."""
    found = []
    for job in jobs:
        try:
            found.append(ReportDocument.model_validate_json(job.document.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    return tuple(found)


def _cells(seen: SeriesAnalysis) -> Iterable[SiteCellDocument]:
    found: dict[tuple[str, str], list[SeriesChange]] = {}
    small: dict[tuple[str, str], list[SmallDocument]] = {}
    for alert in seen.alerts:
        found.setdefault((alert.cell, alert.metric), []).append(seen.findings[alert.id])
    for family in seen.families:
        for finding, rejection in family.listed:
            small.setdefault(finding.series.key, []).append(_small(finding, rejection))
    notes = _notes(seen.families)
    for _, group in groupby(seen.series, key=lambda one: one.cell):
        series = tuple(group)
        yield cell_document(
            series,
            {item.metric: _seen(item, found, small, notes) for item in series},
        )


def _seen(
    series: CellSeries,
    found: Mapping[tuple[str, str], list[SeriesChange]],
    small: Mapping[tuple[str, str], list[SmallDocument]],
    notes: Mapping[str, tuple[bool, str]],
) -> cells.SeriesFindings:
    cuts = {cut for finding in found.get(series.key, ()) for cut in _cuts(finding)}
    judged, note = notes.get(f"{series.cell} {series.metric}", (False, "not judged"))
    return cells.SeriesFindings(
        cuts=tuple(sorted(cuts)), small=tuple(small.get(series.key, ())), judged=judged, note=note
    )


def _cuts(finding: SeriesChange) -> Iterable[int]:
    yield finding.index
    if finding.until is not None and finding.until < len(finding.series.values):
        yield finding.until


def _small(finding: SeriesChange, rejection: Suppression) -> SmallDocument:
    return SmallDocument(
        at=finding.index,
        effect=finding.found.effect,
        interval=(finding.found.low, finding.found.high),
        why=suppression_sentence(rejection),
    )


def _notes(families: Sequence[JudgedFamily]) -> dict[str, tuple[bool, str]]:
    """By series whether it was judged, and what to say of that; of several stretches the last one's."""
    notes: dict[str, tuple[bool, str]] = {}
    for family in families:
        for entry in family.census.judged:
            step = f"a step of {entry.smallest * 100:.3g} % would be seen in four of five cases"
            notes[entry.key.partition(" #")[0]] = True, f"{entry.nights} nights: {step}"
        for refusal in family.census.refused:
            notes.setdefault(refusal.key.partition(" #")[0], (False, refusal.reason))
        for name, why in family.left:
            notes[name] = False, why
    return notes


def _rankings(
    store: SeriesStore,
    seen: SeriesAnalysis,
    repository: Repository | None,
    table: SuspectTable,
) -> tuple[list[RankedAlert], list[SuspectsDocument]]:
    found: list[RankedAlert] = []
    failed: list[SuspectsDocument] = []
    if repository is None:
        return found, failed
    for event in dict.fromkeys(item.event for item in seen.alerts if item.cause in _SETTLED_BY_COMMITS):
        alert = leading_alert(seen.alerts, event)
        try:
            found.append(rank_alert(store, seen, alert, repository, table))
        except RevisionError as error:
            failed.append(SuspectsDocument(alert=alert.id, suspects=(), note=str(error.message)))
    return found, failed


def _suspects(one: RankedAlert) -> SuspectsDocument:
    cell = cell_of_ours(one.finding)
    command = command_of(one, repo="PATH", cell=cell)
    document = suspects_document(one.alert.id, one.ranking, top=TOP, bisect=command, note=note_of(one, cell))
    return SuspectsDocument.model_validate(document.model_dump(exclude={"schema_", "of", "what"}))


def _bisection(
    report: ReportDocument, rankings: Sequence[RankedAlert], alerts: Sequence[Alert]
) -> BisectionDocument:
    """Of the alerts whose window it searched: all of the event whose ends are its ends."""
    ends = {report.good.id, report.bad.id}
    events = {ranking.alert.event for ranking in rankings if {ranking.good, ranking.bad} == ends}
    return BisectionDocument(
        report=report, alerts=tuple(alert.id for alert in alerts if alert.event in events)
    )


def _census(seen: SeriesAnalysis) -> tuple[tuple[str, int], ...]:
    medians, tails = (family.census for family in seen.families)
    refused = Counter(refusal.reason for census in (medians, tails) for refusal in census.refused)
    left = Counter(why for family in seen.families for _, why in family.left)
    rows = [
        ("medians and single numbers that were judged", len(medians.judged)),
        ("means and percentiles that were judged, by themselves", len(tails.judged)),
        *((f"not judged: {why}", count) for why, count in (left + refused).most_common()),
    ]
    return tuple(rows)


def _unknown(seen: SeriesAnalysis) -> Iterable[str]:
    builds = {point.build.key: point.build for item in seen.series for point in item.points}
    unknown = sum(build.of_main is None for build in builds.values())
    if unknown:
        yield f"{unknown} of {len(builds)} builds do not say their branch: not known to be of main."
    if seen.away:
        yield f"{seen.away} builds are not of main and were left out."
