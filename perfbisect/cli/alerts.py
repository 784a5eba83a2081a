"""``perfbisect track suspects``, ``ack``, ``close``, ``reopen``: the alerts of the series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from perfbisect.commands.options import InRepositoryAndState, InState, Repo
from perfbisect.commands.output import CommandResult, report_result
from perfbisect.commands.request import Argument, Option, prints
from perfbisect.commands.workspace import Workspace
from perfbisect.model.commit_details import RequestPhase

if TYPE_CHECKING:
    from perfbisect.series.alerts import MeasuredOutcome
    from perfbisect.series.alerts import State as AlertState
    from perfbisect.series.suspects.job import RankedAlert


Alert = Annotated[str, Argument()]
Fdr = Annotated[float, Option("The rate with which the alert was reported.")]


def rank_window(
    workspace: Workspace, alert: str, fdr: float, phase: RequestPhase | None = None
) -> tuple[RankedAlert, MeasuredOutcome | None]:
    """The alert of a name, with the ranked commits of its window, and what a bisection says of it.

    ``phase``: was seen to move.
    """
    from perfbisect.commands.outcomes import measured_outcomes
    from perfbisect.series.detect import analyze_series
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.job import find_alert, rank_alert
    from perfbisect.series.suspects.table import load_suspect_table

    table, repository = load_suspect_table(), workspace.needed_repository()
    with SeriesStore.of(workspace.state) as store:
        analysis = analyze_series(store, table, fdr)
        ranked = rank_alert(store, analysis, find_alert(store, analysis, alert), repository, table, phase)
        outcomes = measured_outcomes(store, analysis, workspace.jobs.all(), repository)
    return ranked, outcomes.get(ranked.alert.id)


@prints("perfbisect.series.suspects.job:TrackSuspectsDocument")
def suspects(
    workspace: InRepositoryAndState,
    *,
    alert: Alert,
    top: Annotated[int, Option("So many commits, at most.", type=click.IntRange(1))] = 20,
    cell: Annotated[
        str | None,
        Option("Cell of ours for the bisection.", metavar="CELL", default="the one that agrees"),
    ] = None,
    phase: Annotated[
        RequestPhase | None,
        Option("Phase of a request that perfbisect explain saw move: code that runs in it is likelier."),
    ] = None,
    markdown: Annotated[bool, Option("As Markdown, for an issue.", ("--md",))] = False,
    fdr: Fdr = 0.05,
    repo: Repo = None,
) -> CommandResult:
    """Rank the commits of ALERT's window by how likely each is behind it, with every piece of evidence.

    ALERT is the name of an alert, its beginning, or an event. Where a bisection of it named the commit, that
    comes first. Otherwise last comes the command of the bisection that settles it; the ranking is its prior.
    Nothing is measured.

    \b
    Examples:
      perfbisect track suspects 20260412-product --repo vllm-omni
      perfbisect track suspects 20260412-3f1a --repo vllm-omni --top 5 --json
    """
    from perfbisect.commands.output import report_result
    from perfbisect.report.markdown import report_markdown
    from perfbisect.series.report import series_report
    from perfbisect.series.suspects import job

    ranked, measured = rank_window(workspace, alert, fdr, phase)
    weights = workspace.state / "track" / "suspects" / f"{ranked.alert.id}.yaml"
    job.write_weights(ranked, weights)
    document = job.track_suspects(
        ranked,
        top=top,
        repo=str(repo or workspace.needed_repository().path),
        cell=cell or job.cell_of_ours(ranked.finding),
        weights=str(weights),
        phase=phase,
        measured=measured,
    )
    report = series_report("suspects", document=document)
    return report_result(document, report, lines=[report_markdown(report)] if markdown else None)


def _set_state(workspace: Workspace, alert: str, state: AlertState, reason: str) -> CommandResult:
    from perfbisect.series.detect import set_state
    from perfbisect.series.report import series_report
    from perfbisect.series.store import SeriesStore

    with SeriesStore.of(workspace.state) as store:
        document = set_state(store, alert, state, reason)
    return report_result(document, series_report("state", document=document))


_STATE = "perfbisect.series.detect:TrackStateDocument"
Reason = Annotated[str, Option("Kept with the alert: who, which issue, what for.", metavar="TEXT")]


@prints(_STATE)
def ack(workspace: InState, *, alert: Alert, reason: Reason) -> CommandResult:
    """ALERT, or all alerts of an event, is being looked at and is not repeated.

    \b
    Example:
      perfbisect track ack 20260412-3f1a --reason "issue 2711"
    """
    return _set_state(workspace, alert, "acknowledged", reason)


@prints(_STATE)
def close(workspace: InState, *, alert: Alert, reason: Reason) -> CommandResult:
    """ALERT, or all alerts of an event, is fixed, or accepted as it is. A later change of the series is an
    alert of its own.

    \b
    Example:
      perfbisect track close 20260412-3f1a --reason "fixed by #2716"
    """
    return _set_state(workspace, alert, "closed", reason)


@prints(_STATE)
def reopen(workspace: InState, *, alert: Alert, reason: Reason) -> CommandResult:
    """ALERT, or all alerts of an event, is open again.

    \b
    Example:
      perfbisect track reopen 20260412-3f1a --reason "still slow"
    """
    return _set_state(workspace, alert, "open", reason)
