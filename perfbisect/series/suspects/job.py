"""``perfbisect track suspects``: ranks the commits of an alert's window, the prior of a bisection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field

from perfbisect.cells.loading import known_cells
from perfbisect.cells.match import nearest_cells
from perfbisect.cells.reports import parse_result_name
from perfbisect.changes.git import Repository
from perfbisect.changes.priors import bisect_command, commit_weights_text
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.model.commit_details import Evidence, OnsetNight, Ranking, RequestPhase
from perfbisect.series.alerts import Alert, MeasuredOutcome, find_alerts, leading_alert, recovery
from perfbisect.series.causes import is_affected
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.detection.model import SET
from perfbisect.series.findings import SeriesChange
from perfbisect.series.points import Point
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.ranking import rank_suspects
from perfbisect.series.suspects.table import SuspectTable
from perfbisect.series.suspects.window import (
    CommitWindow,
    LinePosition,
    MainLine,
    build_question,
    commit_window,
    locate_build,
    start_time,
)

_CLONE_AGE = timedelta(days=1)
"""How long before a night the main line may have had its last commit, in a clone that is up to date."""


def onset_ends(
    finding: SeriesChange, line: MainLine | None = None, points: Sequence[Point] = ()
) -> tuple[str, str] | None:
    """The commit before the builds with which a change may have begun, and that of the last of them.

    ``line``, ``points``: place builds that do not report their commit; without them None of such.
    :raises RevisionError: the history lacks a build's commit.
    """
    measured = finding.series.points
    places = [place for place in finding.point.places if place > 0]
    if not places:
        return None
    before, last = measured[places[0] - 1].build, measured[places[-1]].build
    if before.commit and last.commit:
        return before.commit, last.commit
    if line is None:
        return None
    window = commit_window(line, points, before, last)
    return line.commits[window.before.earliest].id, line.commits[window.after.latest].id


@dataclass(frozen=True)
class RankedAlert:
    """An alert with its ranking.

    ``good``: the commit before the window, ``bad``: its last one; ``note``: how the window was found.
    """

    alert: Alert
    finding: SeriesChange
    ranking: Ranking
    good: str
    bad: str
    note: tuple[Evidence, ...]


def find_alert(store: SeriesStore, analysis: SeriesAnalysis, name: str) -> Alert:
    """The alert of a name or of its beginning, or the leading one of an event.

    :raises UsageError: there is none, there are several, or it is not found any more.
    """
    if matches := find_alerts(analysis.alerts, name):
        return leading_alert(matches)
    first = store.alerts.find(name)[0]
    raise UsageError(
        f"alert {first.id} of {first.cell} is not found any more in the nights up to {analysis.until}",
        next_step="perfbisect track detect, with the --fdr with which it was reported",
    )


def rank_alert(
    store: SeriesStore,
    analysis: SeriesAnalysis,
    alert: Alert,
    repository: Repository,
    table: SuspectTable,
    phase: RequestPhase | None = None,
) -> RankedAlert:
    """The commits of an alert's window, ranked; ``phase``: of a request, that was seen to move.

    :raises RevisionError: the repository lacks them, or no commit came between the nights.
    """
    line, points = MainLine.of(repository), store.points()
    finding = analysis.findings[alert.id]
    measured = finding.series.points
    # The first night of a series has no night before it, and so no window.
    places = [place for place in finding.point.places if place > 0]
    onsets = []
    for place in places:
        window = commit_window(line, points, measured[place - 1].build, measured[place].build)
        commits = frozenset(commit.id for commit in window.commits)
        onsets.append((OnsetNight(measured[place].night, SET / len(places), commits), window))
    cells = [replace(cell, hit=is_affected(cell, finding)) for cell in analysis.index.measured_cells(finding)]
    aftermath = _aftermath(line, points, analysis, alert)
    question, good = build_question(repository, line, onsets, *aftermath, cells=cells, cause=alert.cause)
    question = replace(question, phase=phase)
    note: tuple[Evidence, ...] = onsets[-1][1].found_by
    if line.ends is not None and line.ends + _CLONE_AGE < start_time(points, measured[places[-1]].build):
        note = (*note, Evidence("clone ends", {"day": line.ends.date().isoformat()}))
    return RankedAlert(alert, finding, rank_suspects(question, table), good, question.commits[-1].sha, note)


def _aftermath(
    line: MainLine, points: Sequence[Point], analysis: SeriesAnalysis, alert: Alert
) -> tuple[LinePosition, CommitWindow | None]:
    """The commit of the last slow night, and the window of the recovery.

    Where no later night of the series can be compared, by the others of its event, those that moved most
    first.
    """
    own = analysis.findings[alert.id]
    # Not every cell runs each night: another cell of the event may show when it recovered.
    of_event = [item for item in analysis.alerts if item.event == alert.event and item.cause == alert.cause]
    for other in (alert, *sorted(of_event, key=lambda item: (-item.size, item.id))):
        finding = analysis.findings[other.id]
        first = recovery(finding)
        if first is not None and other.worse == alert.worse:
            slow, good = (finding.series.points[place].build for place in (first - 1, first))
            window = commit_window(line, points, slow, good)
            return window.before, window
        is_again = own.after[-1] + 1 < own.segment.stop and alert.now != "other requests since"
        if other is alert and (is_again or alert.now == "still there"):
            break  # It was measured again, and has not recovered.
    slow = own.series.points[own.after[-1]].build
    return locate_build(line, slow, start_time(points, slow)), None


def cell_of_ours(finding: SeriesChange) -> str:
    """The name of the one known cell that agrees with the newest result; empty without one.

    By the cell's digest, else by the name of an imported cell, else by the name of the result file.
    """
    newest = finding.series.points[-1]
    cells, _ = known_cells()
    workload = newest.workload
    # The digest covers all that a cell says; a name may be that of another cell.
    if workload.digest:
        return next((cell.name for cell in cells if cell.digest == workload.digest), "")
    load = (workload.test, workload.concurrency, workload.prompts)
    for cell in cells:
        if (cell.name.partition("@")[0], cell.max_concurrency, cell.num_prompts) == load:
            return cell.name
    try:
        reported = parse_result_name(newest.raw.rsplit("/", 1)[-1])
    except UsageError:
        return ""
    exact = [match.cell.name for match in nearest_cells(reported, cells) if match.exact]
    return exact[0] if len(exact) == 1 else ""


def write_weights(ranked: RankedAlert, path: Path) -> None:
    """Writes the prior of a bisection. :raises UsageError: the file cannot be written."""
    alert = ranked.alert
    why = f"suspects of alert {alert.id}, {alert.cell} {alert.metric}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit_weights_text(ranked.ranking, why), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the weights cannot be written: {error}", where=path) from error


class SuspectsDocument(Document):
    """The commits that could be behind an alert, best first, and the command that settles it.

    ``ranking``: None where they cannot be ranked, and ``problem`` says why. ``note``: how the window was
    found, and what is unknown.
    """

    alert: str
    ranking: Ranking | None = None
    bisect: str = ""
    note: tuple[Evidence, ...] = ()
    problem: str = ""


class TrackSuspectsDocument(SuspectsDocument):
    """JSON of ``track suspects``: the likeliest of ``of`` commits behind the alert ``found``.

    ``phase``: of a request, that was said to have moved; empty if none was. ``measured``: what a bisection
    says of the alert; then none is proposed.
    """

    schema_: Literal["perfbisect.track-suspects/5"] = Field(
        default="perfbisect.track-suspects/5", alias="schema"
    )
    found: Alert
    ranking: Ranking
    measured: MeasuredOutcome | None = None
    of: int
    phase: RequestPhase | Literal[""] = ""


def suspects_document(
    ranked: RankedAlert, *, top: int, repo: str, cell: str, weights: str = ""
) -> SuspectsDocument:
    """The ``top`` likeliest suspects, and the bisection that settles the ranking.

    ``cell``: the name of our cell that measures what the alert's does, empty without one. ``weights``: the
    file of the bisection's prior, empty for none.
    """
    alert, note = ranked.alert, ranked.note
    if not cell:
        note = (*note, Evidence("no cell of ours", {"cell": alert.cell}))
    return SuspectsDocument(
        alert=alert.id,
        ranking=replace(ranked.ranking, suspects=ranked.ranking.suspects[:top]),
        bisect=bisect_command(
            cell, alert.metric, ranked.good, ranked.bad, repo, weights=weights, better=not alert.worse
        ),
        note=note,
    )


def track_suspects(
    ranked: RankedAlert,
    *,
    top: int,
    repo: str,
    cell: str,
    weights: str,
    phase: RequestPhase | None = None,
    measured: MeasuredOutcome | None = None,
) -> TrackSuspectsDocument:
    """The JSON of ``track suspects``, as :func:`suspects_document`; ``phase``: the ranking knows of it."""
    document = suspects_document(ranked, top=top, repo=repo, cell=cell, weights=weights)
    if measured is not None:
        document = document.model_copy(update={"bisect": ""})
    return TrackSuspectsDocument(
        **dict(document),
        found=ranked.alert,
        measured=measured,
        of=len(ranked.ranking.suspects),
        phase=phase or "",
    )
