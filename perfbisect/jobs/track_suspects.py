"""``perfbisect track suspects``: the commits of an alert's window, ranked, and what a bisection is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfbisect.config.cells import known_cells
from perfbisect.config.commit_weights import commit_weights_text
from perfbisect.core.alert import Alert, recovery, way
from perfbisect.core.finding import Finding
from perfbisect.core.finding_cause import hit
from perfbisect.core.match import nearest
from perfbisect.core.point import Point
from perfbisect.core.sighting import of_result_name
from perfbisect.core.suspect_facts import Ran, Ranking
from perfbisect.core.suspect_prior import Ends, bisect_command, commit_weights
from perfbisect.core.suspect_table import Table
from perfbisect.core.suspects import rank
from perfbisect.core.window import Line, Spot, spot
from perfbisect.errors import UsageError
from perfbisect.jobs.suspects import After, Asked, Onset, asked
from perfbisect.jobs.track_detect import SET, Seen, alert_document
from perfbisect.jobs.track_series import began, line_of, window_between
from perfbisect.jobs.track_state import named, told
from perfbisect.render.detect_lines import effect_words, leading
from perfbisect.render.suspects import TrackSuspectsDocument, suspects_document
from perfbisect.store.series import SeriesStore
from perfbisect.system.git import Repository


@dataclass(frozen=True)
class Ranked:
    """A ranking, the question it answers, and the alert it is of."""

    alert: Alert
    asked: Asked
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


def the_alert(store: SeriesStore, seen: Seen, name: str) -> Alert:
    """The alert of a name, or the one by which an event is shown.

    :raises UsageError: there is none of that name, or it is not found any more.
    """
    of_event = [alert_document(one) for one in seen.alerts if one.event == name]
    if of_event:
        found = seen.alert(leading(of_event, name).id)
    else:
        begun = [one for one in seen.alerts if name and one.id.startswith(name)]
        exact = [one for one in begun if one.id == name] or begun
        if len(exact) > 1:
            some = ", ".join(one.id for one in exact[:3])
            events = ", ".join(dict.fromkeys(one.event for one in exact))
            raise UsageError(
                f"{len(exact)} alerts begin with {name!r}: {some}, ...", next_step=f"an event: {events}"
            )
        found = exact[0] if exact else None
    if found is None:
        first = told(named(store, name)[0])
        raise UsageError(
            f"alert {first.id} of {first.cell} is not found any more in the nights up to {seen.until}",
            next_step="perfbisect track detect, with the --fdr with which it was told",
        )
    return found


def ranked(store: SeriesStore, seen: Seen, alert: Alert, repository: Repository, table: Table) -> Ranked:
    """The commits of an alert's window, ranked.

    :raises RevisionError: the repository lacks them, or no commit came between the nights.
    """
    line, points = line_of(repository), store.points()
    onsets = _onsets(line, points, alert.finding)
    question = asked(
        repository,
        line,
        onsets,
        _after(line, points, seen, alert),
        cells=_ran(seen, alert),
        cause=alert.cause.word,
    )
    return Ranked(alert, question, rank(question.question, table), onsets[-1].window.why)


def _onsets(line: Line, points: Sequence[Point], finding: Finding) -> tuple[Onset, ...]:
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


def _after(line: Line, points: Sequence[Point], seen: Seen, alert: Alert) -> After:
    """When the series was slow last, and when it was good again: by itself, or where it was not measured
    again by the others of its event, those that moved most first."""
    of_event = [one for one in seen.alerts if one.event == alert.event and one.cause.word == alert.cause.word]
    others = sorted(of_event, key=lambda one: (-abs(one.finding.shift), one.id))
    for one in (alert, *others):
        first = recovery(one.finding)
        if first is not None and way(one.finding) == way(alert.finding):
            slow, good = (one.finding.series.points[i].build for i in (first - 1, first))
            return After(_spot(line, points, slow.key), window_between(line, points, slow, good))
        if one is alert and alert.finding.after[-1] + 1 < len(alert.finding.series.values):
            break  # It was measured again, and is not what it was.
    last = alert.finding.series.points[alert.finding.after[-1]].build
    return After(_spot(line, points, last.key))


def _spot(line: Line, points: Sequence[Point], key: str) -> Spot:
    build = next(point.build for point in points if point.build.key == key)
    return spot(line, build, began(points, build))


def _ran(seen: Seen, alert: Alert) -> tuple[Ran, ...]:
    return tuple(
        Ran(
            cell=one.cell,
            hit=hit(one, alert.finding),
            start=one.start,
            traits=one.traits,
            model=seen.cells.model(one.cell),
        )
        for one in seen.cells.beside(alert.finding)
    )


def cell_of_ours(finding: Finding) -> str:
    """The name of the one cell that we know and that agrees with all that the newest result says: by its
    digest, else by the name of its file; empty where there is none, or more than one."""
    newest = finding.series.points[-1]
    cells, _ = known_cells()
    if newest.workload.digest:
        return next((cell.name for cell in cells if cell.digest == newest.workload.digest), "")
    try:
        seen = of_result_name(newest.raw.rsplit("/", 1)[-1])
    except UsageError:
        return ""
    exact = [one.cell.name for one in nearest(seen, cells) if one.exact]
    return exact[0] if len(exact) == 1 else ""


def command_of(ranked: Ranked, *, repo: str, cell: str, weights: str = "") -> str:
    """The bisection that settles a ranking; ``weights``: the file of its prior, empty for none."""
    return bisect_command(
        Ends(
            cell=cell,
            metric=ranked.alert.finding.series.metric,
            good=ranked.good,
            bad=ranked.bad,
            repo=repo,
            weights=weights,
            better=way(ranked.alert.finding) < 0,
        )
    )


def track_suspects(ranked: Ranked, *, top: int, repo: str, cell: str, weights: Path) -> TrackSuspectsDocument:
    """A ranking as it is told; its weights are written for a bisection.

    ``cell``: the name of ours that measures what the alert's does, empty where there is none.

    :raises UsageError: the weights cannot be written.
    """
    series = ranked.alert.finding.series
    text = commit_weights_text(
        commit_weights(ranked.ranking), f"suspects of alert {ranked.alert.id}, {series.cell} {series.metric}"
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


def note_of(ranked: Ranked, cell: str) -> str:
    """How the window was found; where no cell of ours is known, what stands for it in the command."""
    if cell:
        return ranked.why
    theirs = ranked.alert.finding.series.cell
    unknown = f"no cell of ours is known to be {theirs}: name yours for CELL (perfbisect cells import)"
    return f"{ranked.why}; {unknown}"


def _what(ranked: Ranked) -> str:
    told = alert_document(ranked.alert)
    since = f"{effect_words(told)}, {told.shape}, begun on the night of {told.first[:10]}"
    now = "" if told.now == "still there" else f", {told.now}"
    return f"{told.metric} of {told.cell} {since}{now} ({told.event})"
