"""``perfbisect track suspects``: the commits of an alert's window, ranked, and what a bisection is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from perfbisect.cells.loading import known_cells
from perfbisect.cells.match import nearest_cells, parse_result_name
from perfbisect.changes.git import Repository
from perfbisect.changes.priors import BisectionRange, bisect_command, commit_weights, commit_weights_text
from perfbisect.common.durations import moment
from perfbisect.errors import UsageError
from perfbisect.model.commit_details import MeasuredCell, Ranking
from perfbisect.series.alerts import SET, Alert, leading_alert, recovery
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.finding_causes import is_affected
from perfbisect.series.findings import SeriesChange
from perfbisect.series.points import Build, Point
from perfbisect.series.report import size_text
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.ranking import rank_suspects
from perfbisect.series.suspects.report import TrackSuspectsDocument, suspects_document
from perfbisect.series.suspects.table import SuspectTable
from perfbisect.series.suspects.window import (
    LEAD,
    Aftermath,
    CommitWindow,
    LinePosition,
    MainLine,
    Onset,
    WindowQuestion,
    build_question,
    ordered,
    spot,
    window,
)


def began(points: Sequence[Point], build: Build) -> datetime:
    """When a build's first result began."""
    return min(moment(point.began) for point in points if point.build.key == build.key)


def line_of(repository: Repository, tip: str = "HEAD") -> MainLine:
    """The main line of a repository, oldest first. :raises RevisionError: no such revision."""
    return ordered([record.change for record in repository.records("--first-parent", tip)])


def window_between(
    line: MainLine, points: Sequence[Point], before: Build, after: Build, lead: timedelta = LEAD
) -> CommitWindow:
    """The commits between two builds of these points. :raises RevisionError: the history lacks them."""
    return window(line, (before, began(points, before)), (after, began(points, after)), lead)


@dataclass(frozen=True)
class RankedAlert:
    """A ranking, the question it answers, and the alert it is of."""

    alert: Alert
    finding: SeriesChange
    asked: WindowQuestion
    ranking: Ranking
    why: str
    """How the window was found, in words."""

    @property
    def good(self) -> str:
        """The commit before the window."""
        return self.asked.good

    @property
    def bad(self) -> str:
        """The last of the window."""
        return self.asked.bad


def find_alert(store: SeriesStore, seen: SeriesAnalysis, name: str) -> Alert:
    """The alert of a name, or the one by which an event is shown.

    :raises UsageError: there is none of that name, or it is not found any more.
    """
    if any(alert.event == name for alert in seen.alerts):
        return leading_alert(seen.alerts, name)
    begun = [alert for alert in seen.alerts if name and alert.id.startswith(name)]
    exact = [alert for alert in begun if alert.id == name] or begun
    if len(exact) > 1:
        some = ", ".join(alert.id for alert in exact[:3])
        events = ", ".join(dict.fromkeys(alert.event for alert in exact))
        raise UsageError(
            f"{len(exact)} alerts begin with {name!r}: {some}, ...", next_step=f"an event: {events}"
        )
    if not exact:
        first = store.alerts.of_name(name)[0].alert
        raise UsageError(
            f"alert {first.id} of {first.cell} is not found any more in the nights up to {seen.until}",
            next_step="perfbisect track detect, with the --fdr with which it was told",
        )
    return exact[0]


def rank_alert(
    store: SeriesStore, seen: SeriesAnalysis, alert: Alert, repository: Repository, table: SuspectTable
) -> RankedAlert:
    """The commits of an alert's window, ranked.

    :raises RevisionError: the repository lacks them, or no commit came between the nights.
    """
    line, points = line_of(repository), store.points()
    finding = seen.findings[alert.id]
    onsets = _onsets(line, points, finding)
    question = build_question(
        repository,
        line,
        onsets,
        _after(line, points, seen, alert),
        cells=_ran(seen, finding),
        cause=alert.cause,
    )
    return RankedAlert(
        alert, finding, question, rank_suspects(question.question, table), onsets[-1].window.why
    )


def _onsets(line: MainLine, points: Sequence[Point], finding: SeriesChange) -> tuple[Onset, ...]:
    series = finding.series
    places = [place for place in finding.places if place > 0]
    return tuple(
        Onset(
            night=series.points[place].night,
            p=SET / len(places),
            window=window_between(line, points, series.points[place - 1].build, series.points[place].build),
        )
        for place in places
    )


def _after(line: MainLine, points: Sequence[Point], seen: SeriesAnalysis, alert: Alert) -> Aftermath:
    """When the series was slow last, and when it was good again: by itself, or where it was not measured
    again by the others of its event, those that moved most first."""
    own = seen.findings[alert.id]
    of_event = [item for item in seen.alerts if item.event == alert.event and item.cause == alert.cause]
    others = sorted(of_event, key=lambda other: (-other.size, other.id))
    for other in (alert, *others):
        finding = seen.findings[other.id]
        first = recovery(finding)
        if first is not None and other.worse == alert.worse:
            slow, good = (finding.series.points[i].build for i in (first - 1, first))
            return Aftermath(_spot(line, points, slow.key), window_between(line, points, slow, good))
        if other is alert and own.after[-1] + 1 < len(own.series.values):
            break  # It was measured again, and is not what it was.
    last = own.series.points[own.after[-1]].build
    return Aftermath(_spot(line, points, last.key))


def _spot(line: MainLine, points: Sequence[Point], key: str) -> LinePosition:
    build = next(point.build for point in points if point.build.key == key)
    return spot(line, build, began(points, build))


def _ran(seen: SeriesAnalysis, finding: SeriesChange) -> tuple[MeasuredCell, ...]:
    return tuple(
        MeasuredCell(
            cell=item.cell,
            hit=is_affected(item, finding),
            start=item.start,
            traits=item.traits,
            model=seen.cells.model(item.cell),
        )
        for item in seen.cells.beside(finding)
    )


def cell_of_ours(finding: SeriesChange) -> str:
    """The name of the one cell that we know and that agrees with all that the newest result says: by its
    digest, else by the name of its file; empty where there is none, or more than one."""
    newest = finding.series.points[-1]
    cells, _ = known_cells()
    if newest.workload.digest:
        return next((cell.name for cell in cells if cell.digest == newest.workload.digest), "")
    try:
        seen = parse_result_name(newest.raw.rsplit("/", 1)[-1])
    except UsageError:
        return ""
    exact = [item.cell.name for item in nearest_cells(seen, cells) if item.exact]
    return exact[0] if len(exact) == 1 else ""


def command_of(ranked: RankedAlert, *, repo: str, cell: str, weights: str = "") -> str:
    """The bisection that settles a ranking; ``weights``: the file of its prior, empty for none."""
    return bisect_command(
        BisectionRange(
            cell=cell,
            metric=ranked.alert.metric,
            good=ranked.good,
            bad=ranked.bad,
            repo=repo,
            weights=weights,
            better=not ranked.alert.worse,
        )
    )


def write_suspects(
    ranked: RankedAlert, *, top: int, repo: str, cell: str, weights: Path
) -> TrackSuspectsDocument:
    """A ranking as it is told; its weights are written for a bisection.

    ``cell``: the name of ours that measures what the alert's does, empty where there is none.

    :raises UsageError: the weights cannot be written.
    """
    alert = ranked.alert
    text = commit_weights_text(
        commit_weights(ranked.ranking), f"suspects of alert {alert.id}, {alert.cell} {alert.metric}"
    )
    try:
        weights.parent.mkdir(parents=True, exist_ok=True)
        weights.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the weights cannot be written: {error}", where=weights) from error
    command = command_of(ranked, repo=repo, cell=cell, weights=str(weights))
    return suspects_document(
        ranked.alert.id,
        ranked.ranking,
        top=top,
        bisect=command,
        note=note_of(ranked, cell),
        what=_what(ranked),
    )


def note_of(ranked: RankedAlert, cell: str) -> str:
    """How the window was found; where no cell of ours is known, what stands for it in the command."""
    if cell:
        return ranked.why
    theirs = ranked.alert.cell
    unknown = f"no cell of ours is known to be {theirs}: name yours for CELL (perfbisect cells import)"
    return f"{ranked.why}; {unknown}"


def _what(ranked: RankedAlert) -> str:
    alert = ranked.alert
    since = f"{size_text(alert.effect)}, {alert.shape}, begun on the night of {alert.first[:10]}"
    now = "" if alert.now == "still there" else f", {alert.now}"
    return f"{alert.metric} of {alert.cell} {since}{now} ({alert.event})"
