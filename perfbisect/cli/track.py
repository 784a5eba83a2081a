"""``perfbisect track``: what a series of nights says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from perfbisect.commands import options
from perfbisect.commands.options import Verbs
from perfbisect.commands.output import CommandResult, page_result, report_result

if TYPE_CHECKING:
    from perfbisect.commands.workspace import Workspace
    from perfbisect.model.commit_details import RequestPhase
    from perfbisect.series.alerts import State
    from perfbisect.series.detect import SeriesAnalysis
    from perfbisect.series.export import Form
    from perfbisect.series.outcomes import MeasuredOutcome
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.job import RankedAlert

CELLS = click.argument("cells", nargs=-1, metavar="[CELL...]")
FDR = click.option(
    "--fdr", type=float, default=0.05, show_default=True, help="The rate with which the alert was reported."
)


def _day_option(name: str, help: str) -> Callable[[Any], Any]:
    """An option whose value is a day in ISO 8601, or empty."""

    def iso_day(_: click.Context, __: click.Parameter, day: datetime | None) -> str:
        return f"{day:%Y-%m-%d}" if day else ""

    return click.option(name, type=click.DateTime(["%Y-%m-%d"]), metavar="DAY", callback=iso_day, help=help)


SINCE = _day_option("--since", "Leave older nights.")


@contextmanager
def _open_store(workspace: Workspace) -> Iterator[SeriesStore]:
    from perfbisect.series.store import SeriesStore

    with SeriesStore.of(workspace.state) as store:
        yield store


def _analyze(store: SeriesStore, fdr: float = 0.05) -> SeriesAnalysis:
    from perfbisect.series.detect import analyze_series
    from perfbisect.series.suspects.table import load_suspect_table

    return analyze_series(store, load_suspect_table(), fdr)


def rank_window(
    workspace: Workspace, alert: str, fdr: float, phase: RequestPhase | None = None
) -> tuple[RankedAlert, MeasuredOutcome | None]:
    """The alert of a name, with the ranked commits of its window, and what a bisection says of it.

    ``phase``: was seen to move.
    """
    from perfbisect.dashboard.outcomes import measured_outcomes
    from perfbisect.series.suspects.job import find_alert, rank_alert
    from perfbisect.series.suspects.table import load_suspect_table

    table, repository = load_suspect_table(), workspace.needed_repository()
    with _open_store(workspace) as store:
        analysis = _analyze(store, fdr)
        ranked = rank_alert(store, analysis, find_alert(store, analysis, alert), repository, table, phase)
        outcomes = measured_outcomes(store, analysis, workspace.jobs.all(), repository)
    return ranked, outcomes.get(ranked.alert.id)


@click.command(short_help="The nights of a cell: date, build, value, change.")
@CELLS
@click.option("--metric", metavar="M", help="Metric to show, e.g. ttft:p99.  [default: the first of latency]")
@SINCE
@options.in_workspace(options.state)
@options.as_json
def show(workspace: Workspace, cells: tuple[str, ...], metric: str | None, since: str) -> CommandResult:
    """The nights of each CELL: date, build, value, change against the night before, and what marks them.

    Without a cell one line for every cell. A CELL may be the beginning of names, up to one of / @ -:
    qwen3_omni, qwen3_omni/random, qwen3_omni/random@c4; none of these is of qwen3_omni_chunk.

    \b
    Examples:
      perfbisect track show
      perfbisect track show qwen3_tts/random@c4-n40 --metric audio_rtf
    """
    from perfbisect.series.night_table import nights_report, show_nights

    with _open_store(workspace) as store:
        document = show_nights(store, cells, metric=metric or "", since=since)
    return report_result(document, nights_report(document))


@click.command(short_help="The ranked commits behind an alert, with the evidence.")
@click.argument("alert")
@options.repo
@click.option(
    "--top", type=click.IntRange(1), default=20, show_default=True, help="So many commits, at most."
)
@click.option(
    "--cell", metavar="CELL", help="Cell of ours for the bisection.  [default: the one that agrees]"
)
@click.option(
    "--phase",
    type=click.Choice(["queue", "prefill", "decode", "outside"]),
    help="Phase of a request that perfbisect explain saw move: code that runs in it is likelier.",
)
@click.option("--md", "markdown", is_flag=True, help="As Markdown, for an issue.")
@FDR
@options.state
@options.as_json
def suspects(
    alert: str,
    repo: Path | None,
    top: int,
    cell: str | None,
    phase: RequestPhase | None,
    markdown: bool,
    fdr: float,
    state: Path | None,
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
    from perfbisect.commands.workspace import open_workspace
    from perfbisect.report.markdown import report_markdown
    from perfbisect.series.suspects import job

    workspace = open_workspace(repo=repo, state=state)
    ranked, measured = rank_window(workspace, alert, fdr, phase)
    weights = workspace.state / "track" / "suspects" / f"{ranked.alert.id}.yaml"
    job.write_weights(ranked, weights)
    cell = cell or job.cell_of_ours(ranked.finding)
    repo = repo or workspace.needed_repository().path
    document = job.track_suspects(
        ranked, top=top, repo=str(repo), cell=cell, weights=str(weights), phase=phase, measured=measured
    )
    report = job.suspects_report(document)
    return report_result(document, report, lines=[report_markdown(report)] if markdown else None)


@click.command(short_help="The nightly report, in the nightlies' own table.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "html", "json"]),
    default="md",
    show_default=True,
    help="Form; html is one page that opens from disk.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="M",
    help="Add a table of all cells: last value, 7-night mean, change, verdict. Repeatable.",
)
@FDR
@options.in_workspace(options.state)
@options.full
@options.as_json
def report(workspace: Workspace, form: str, metrics: tuple[str, ...], fdr: float) -> CommandResult:
    """What is at another level than before on the last night, and the events of all nights, with evidence.

    Nothing is written down: only `track detect` tells.

    \b
    Examples:
      perfbisect track report > nightly.md
      perfbisect track report --format html > nightly.html
      perfbisect track report --metric tput_per_gpu --metric ttft:p99
    """
    from perfbisect.dashboard.outcomes import measured_outcomes
    from perfbisect.series.nightly_report import build_nightly_report
    from perfbisect.series.report import nightly_report

    with _open_store(workspace) as store:
        analysis = _analyze(store, fdr)
        measured = measured_outcomes(store, analysis, workspace.jobs.all(), workspace.repository)
        document = build_nightly_report(analysis, fdr=fdr, metrics=metrics, measured=measured)
    if form == "json":
        return CommandResult(document, (), json=True)
    return page_result(document, nightly_report(document), form)


@click.command(short_help="New baselines: old, 7-day mean, new, n, status.")
@CELLS
@_day_option("--until", "The last of these nights.  [default: the last in the store]")
@options.in_workspace(options.state)
@options.as_json
def rebaseline(workspace: Workspace, cells: tuple[str, ...], until: str) -> CommandResult:
    """What the baselines of each CELL (none named: of all) would be: the mean of the last seven nights.

    A mean that is worse by more than 7 % does not become the baseline. Left out are the nights of a
    transient, of a regression that was not accepted (closed), and those before the newest change of
    workload, instrument or level. A CELL may be the beginning of names, as in track show.

    \b
    Example:
      perfbisect track rebaseline qwen_image_single_device
    """
    from perfbisect.series.rebaseline import rebaseline as propose_baselines
    from perfbisect.series.rebaseline import rebaseline_report

    with _open_store(workspace) as store:
        document = propose_baselines(store, _analyze(store), cells, until=until)
    return report_result(document, rebaseline_report(document))


@click.command(short_help="Bring results in: folders, dashboards' files, Buildkite, our journals.")
@click.argument("places", nargs=-1, required=True, metavar="PATH_OR_URL...")
@click.option("--zone", metavar="ZONE", help="Time zone of times that say none, e.g. UTC, Asia/Shanghai.")
@_day_option("--since", "Leave older builds.  [default for Buildkite: 90 days ago]")
@click.option("--branch", default="main", show_default=True, help="Of Buildkite: whose builds; '' for all.")
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    help="What it must be: buildkite, kanban, journals, dashboard, folder.",
)
@options.in_workspace(options.state)
@options.as_json
def ingest(
    workspace: Workspace,
    places: tuple[str, ...],
    zone: str | None,
    since: str,
    branch: str,
    source: str | None,
) -> CommandResult:
    """Bring in what is new at each PATH_OR_URL: a kanban checkout, a folder of result files, a pipeline or
    build of Buildkite (token in BUILDKITE_TOKEN), files of ci.vllm.ai, PyTorch HUD or InferenceX, a state
    folder of ours. Nothing is brought in twice.

    What is no measurement is rejected with its reason: broken files, forms of zeros, runs with
    failed requests, the same file in another layout.

    \b
    Examples:
      perfbisect track ingest vllm-omni-kanban
      perfbisect track ingest nightly-results/ --zone UTC
      perfbisect track ingest https://buildkite.com/vllm/vllm-omni --since 2026-04-01
      perfbisect track ingest perf.json results_bmk.zip
    """
    import os
    from datetime import timedelta

    from perfbisect.commands.output import print_progress
    from perfbisect.series.ingest import ingest as ingest_places
    from perfbisect.series.ingest import ingest_report
    from perfbisect.series.sources import IngestOptions
    from perfbisect.system.clock import now

    started = now()
    if not since and any("://" in place for place in places):
        since = (started - timedelta(days=90)).date().isoformat()
    ingest_options = IngestOptions(
        zone=zone or "",
        since=since,
        branch=branch,
        now=started,
        variables=os.environ,
        say=print_progress,
    )
    with _open_store(workspace) as store:
        document = ingest_places(store, places, ingest_options, source=source)
    return report_result(document, ingest_report(document))


@click.command(short_help="The series as CSV, or for github-action-benchmark.")
@CELLS
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "github-action-benchmark"]),
    default="csv",
    show_default=True,
    help="Form of the file.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write.  [default: standard output]",
)
@click.option("--metric", metavar="M", help="This metric alone, e.g. ttft:p99.")
@SINCE
@options.in_workspace(options.state)
@options.json_flag
def export(
    cells: tuple[str, ...],
    form: str,
    out: Path | None,
    metric: str | None,
    since: str,
    workspace: Workspace,
    as_json: bool,
) -> int:
    """The series of each CELL, or of all, for others to read.

    csv has a row for each metric of each point. github-action-benchmark has the newest night, as two files:
    of -o bench.json, bench-smaller.json for its tool customSmallerIsBetter and bench-bigger.json for
    customBiggerIsBetter.

    \b
    Examples:
      perfbisect track export > series.csv
      perfbisect track export --format github-action-benchmark -o bench.json
    """
    from perfbisect.commands.output import print_output, print_text
    from perfbisect.errors import UsageError
    from perfbisect.series.export import csv_parts, export_files, export_report, series_for_export

    if out is None and (as_json or form != "csv"):
        what = "--json tells of files" if as_json else f"{form} is two files"
        raise UsageError(f"{what}, and none is named", next_step="add -o FILE")
    with _open_store(workspace) as store:
        series = series_for_export(store, cells, metric=metric or "", since=since)
        if out is None:
            for part in csv_parts(series, metric or ""):
                print_text(part, nl=False)
            return 0
        document = export_files(series, cast("Form", form), out, metric=metric or "")
    return print_output(report_result(document, export_report(document)), as_json=as_json)


@click.command(short_help="Our own launches in the kanban's file format.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@options.in_workspace(options.state)
@options.as_json
def publish(workspace: Workspace, folder: Path, jobs: tuple[str, ...]) -> CommandResult:
    """Write what `perfbisect run` measured into FOLDER as result files of vLLM-Omni's kanban.

    A file is one run: what the client reported, with the time in UTC, and with commit, version of the engine
    and device, which the kanban's own files lack. Nothing is published twice; `track ingest FOLDER` gives the
    same points as the journals. Without JOB all runs.

    \b
    Examples:
      perfbisect track publish our-kanban
      perfbisect track publish our-kanban 20260412-190000-1f3c
    """
    from perfbisect.series.publish import publish as publish_results
    from perfbisect.series.publish import publish_report

    all_jobs = workspace.jobs
    document = publish_results(folder, [all_jobs.find(name) for name in jobs] if jobs else all_jobs.all())
    return report_result(document, publish_report(document))


@click.command(short_help="Change points, drifts, transients, instrument changes.")
@_day_option("--since", "Tell changes from this night on; all nights are judged.")
@click.option(
    "--fdr",
    type=float,
    default=0.05,
    show_default=True,
    help="Share of false ones among the series that are alarmed, at most.",
)
@click.option("--all", "everything", is_flag=True, help="Show earlier alerts in full, too.")
@options.in_workspace(options.state)
@options.full
@options.as_json
def detect(workspace: Workspace, since: str, fdr: float, everything: bool) -> CommandResult:
    """Judge every series in the store: what changed, since when, by how much, of what shape and cause.

    Medians and single numbers are judged together; means and percentiles by themselves. Earlier alerts
    keep their names and states and are not repeated.

    \b
    Examples:
      perfbisect track detect
      perfbisect track detect --since 2026-04-01 --json
    """
    from perfbisect.common.quantities import stamp
    from perfbisect.series.detect import detect as detect_changes
    from perfbisect.series.report import detect_report
    from perfbisect.series.suspects.table import load_suspect_table
    from perfbisect.system.clock import now

    with _open_store(workspace) as store:
        document = detect_changes(store, load_suspect_table(), now=stamp(now()), since=since, fdr=fdr)
    return report_result(document, detect_report(document, everything=everything))


def _state_command(
    name: str, state_set: State, short_help: str, description: str, reason: str
) -> click.Command:
    example = f'\n\n\b\nExample:\n  perfbisect track {name} 20260412-3f1a --reason "{reason}"\n'

    @click.command(name, short_help=short_help, help=description + example)
    @click.argument("alert")
    @click.option(
        "--reason", required=True, metavar="TEXT", help="Kept with the alert: who, which issue, what for."
    )
    @options.in_workspace(options.state)
    @options.as_json
    def command(workspace: Workspace, alert: str, reason: str) -> CommandResult:
        from perfbisect.series.detect import set_state
        from perfbisect.series.report import state_report

        with _open_store(workspace) as store:
            document = set_state(store, alert, state_set, reason)
        return report_result(document, state_report(document))

    return command


ack = _state_command(
    "ack",
    "acknowledged",
    "Somebody knows of an alert.",
    "ALERT, or all alerts of an event, is being looked at and is not repeated.",
    "issue 2711",
)
close = _state_command(
    "close",
    "closed",
    "An alert is fixed or accepted.",
    "ALERT, or all alerts of an event, is fixed, or accepted as it is. A later change of the series is an "
    "alert of its own.",
    "fixed by #2716",
)
reopen = _state_command(
    "reopen",
    "open",
    "An alert is not settled after all.",
    "ALERT, or all alerts of an event, is open again.",
    "still slow",
)


@click.group("track", cls=Verbs, short_help="What the nightly series say.")
def track() -> None:
    """What the nightly series say: results made elsewhere, brought in and read.

    \b
    Example:
      perfbisect track ingest vllm-omni-kanban
    """


for verb in (ingest, show, detect, suspects, report, ack, close, reopen, rebaseline, export, publish):
    track.add_command(verb)
