"""``perfbisect track``: what a series of nights says."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from perfbisect.cli.groups import Verbs
from perfbisect.commands import options
from perfbisect.commands.invocation import Measuring
from perfbisect.commands.options import Minutes

if TYPE_CHECKING:
    from perfbisect.series.export import Form


@click.command(short_help="The nights of a cell: date, build, value, change.")
@click.argument("cells", nargs=-1, metavar="[CELL...]")
@click.option("--metric", metavar="M", help="Metric to show, e.g. ttft:p99.  [default: the first of latency]")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), metavar="DAY", help="Leave older nights.")
@options.state
@options.as_json
def trend(
    cells: tuple[str, ...], metric: str | None, since: datetime | None, state: Path | None, as_json: bool
) -> int:
    """The nights of each CELL: date, build, value, change against the night before, and what marks them.

    Without a cell one line for every cell. A CELL may be the beginning of names, up to one of / @ -:
    qwen3_omni, qwen3_omni/random, qwen3_omni/random@c4; none of these is of qwen3_omni_chunk.

    \b
    Examples:
      perfbisect track trend
      perfbisect track trend qwen3_tts/random@c4-n40 --metric audio_rtf
    """
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.series.alert_state import marks
    from perfbisect.series.render import trend_lines
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.trend import trend as track_trend_table

    with SeriesStore.of(place(state=state).state) as store:
        first = f"{since:%Y-%m-%d}" if since else ""
        document = track_trend_table(store, cells, metric=metric or "", since=first, marks=marks(store))
    emit(document, trend_lines(document), as_json=as_json)
    return 0


FDR = click.option(
    "--fdr", type=float, default=0.05, show_default=True, help="The rate with which the alert was told."
)


@click.command(short_help="The ranked commits behind an alert, with the evidence.")
@click.argument("alert")
@options.repo
@click.option(
    "--top", type=click.IntRange(1), default=20, show_default=True, help="So many commits, at most."
)
@click.option(
    "--cell", metavar="CELL", help="Cell of ours for the bisection.  [default: the one that agrees]"
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
    markdown: bool,
    fdr: float,
    state: Path | None,
    as_json: bool,
) -> int:
    """Rank the commits of ALERT's window by how likely each is behind it, with every piece of evidence.

    ALERT is the name of an alert, its beginning, or an event. Last comes the command of the bisection that
    settles it; the ranking is its prior. Nothing is measured.

    \b
    Examples:
      perfbisect track suspects 20260412-product --repo vllm-omni
      perfbisect track suspects 20260412-3f1a --repo vllm-omni --top 5 --json
    """
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.series.detect import look
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.job import cell_of_ours, ranked, the_alert, track_suspects
    from perfbisect.series.suspects.render import suspects_lines, suspects_markdown
    from perfbisect.series.suspects.table import load_suspect_table

    here, table = place(repo=repo, state=state), load_suspect_table()
    repository = here.needed_repository()
    with SeriesStore.of(here.state) as store:
        seen = look(store, table, fdr)
        found = ranked(store, seen, the_alert(store, seen, alert), repository, table)
    document = track_suspects(
        found,
        top=top,
        repo=str(repo or repository.path),
        cell=cell or cell_of_ours(found.finding),
        weights=here.state / "track" / "suspects" / f"{found.alert.id}.yaml",
    )
    lines = [suspects_markdown(document)] if markdown else suspects_lines(document)
    emit(document, lines, as_json=as_json)
    return 0


@click.command(short_help="Does this machine show an alert's step at all?")
@click.argument("alert")
@click.option("--cell", metavar="CELL", help="Cell of ours to measure.  [default: the one that agrees]")
@click.option("--blocks", type=click.IntRange(1), default=10, show_default=True, help="Most blocks of four.")
@click.option("--budget", type=Minutes(), help="Measure no longer than this: 3h, 90m.  [default: 15h]")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws which side begins a block.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; start nothing.")
@FDR
@options.measuring
def repro(
    alert: str,
    cell: str | None,
    blocks: int,
    budget: float | None,
    seed: int,
    dry_run: bool,
    fdr: float,
    measuring: Measuring,
) -> int:
    """Compare the ends of ALERT's window on this machine, before anything is bisected.

    A is the last commit that the night before may have run, B the last that the first slow night may have
    run. A nightly's machine may show what this one does not: then a bisection here finds nothing.

    \b
    Examples:
      perfbisect track repro 20260412-3f1a --repo vllm-omni --cell my_cell.yaml --dry-run
      perfbisect track repro 20260412-product --repo vllm-omni --cell qwen3_tts --machine cuda

    Exit code: 3 it is there (a regression), 0 it is not, 4 inconclusive.
    """
    from perfbisect.commands import wiring
    from perfbisect.commands.compare_request import TypedContest, contest, planned_all
    from perfbisect.commands.comparisons import settle
    from perfbisect.commands.detach import leave
    from perfbisect.commands.output import UNDONE, emit, teller
    from perfbisect.commands.session import hand_out
    from perfbisect.commands.workspace import place_of
    from perfbisect.common.text import line
    from perfbisect.compare.kinds import compare_kind_exit_code
    from perfbisect.compare.report import plan_lines, result_lines
    from perfbisect.errors import UsageError
    from perfbisect.series.detect import look
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.job import cell_of_ours, ranked, the_alert
    from perfbisect.series.suspects.table import load_suspect_table

    if measuring.detach and not dry_run:
        return leave(measuring)
    here, table = place_of(measuring), load_suspect_table()
    repository = here.needed_repository()
    with SeriesStore.of(here.state) as store:
        seen = look(store, table, fdr)
        found = ranked(store, seen, the_alert(store, seen, alert), repository, table)
    ours = found.alert
    chosen = cell or cell_of_ours(found.finding) or here.setting("cell", None)
    if not chosen:
        raise UsageError(
            f"no cell of ours is known to be {ours.cell}",
            next_step="--cell CELL; perfbisect cells import makes cells of vLLM-Omni's specifications",
        )
    if measuring.expect_workload is not None:
        wiring.refuse_another(wiring.the_cell(here, chosen, None), measuring.expect_workload)
    judged = replace(measuring, metric=measuring.metric or ours.metric)
    typed = TypedContest(chosen, found.good, found.bad, None, blocks, budget, seed, judged, dry=dry_run)
    asked = contest(here, typed)
    direction = "worse" if ours.worse else "better"
    told = f"alert {ours.id}: {ours.metric} of {ours.cell} became {direction} there; does it here?"
    if dry_run:
        shown = planned_all([asked])
        told_first = (line(told, 400), "", *plan_lines(shown), UNDONE)
        emit(shown, told_first, as_json=measuring.as_json, full=measuring.full)
        return 0
    teller(measuring)(line(told, 400))
    job = wiring.new_job(here)
    document = settle(here, asked, measuring, job)
    return hand_out(document, result_lines(document), compare_kind_exit_code(document), measuring, job)


@click.command(short_help="The nightly report, in the nightlies' own table.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "html", "json"]),
    default="md",
    show_default=True,
    help="Form; html is one page that opens from disk.",
)
@FDR
@options.state
@options.full
@options.as_json
def report(form: str, fdr: float, state: Path | None, full: bool, as_json: bool) -> int:
    """What is at another level than before on the last night, and the events of all nights, with evidence.

    Nothing is written down: only `track detect` tells.

    \b
    Examples:
      perfbisect track report > nightly.md
      perfbisect track report --format html > nightly.html
    """
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.series.detect import look
    from perfbisect.series.render import nightly_html, nightly_markdown
    from perfbisect.series.report import report as nightly
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.table import load_suspect_table

    with SeriesStore.of(place(state=state).state) as store:
        document = nightly(look(store, load_suspect_table(), fdr), fdr=fdr)
    shown = nightly_html if form == "html" else nightly_markdown
    written = form == "json"
    emit(document, [shown(document).rstrip("\n")], as_json=as_json or written, full=full or written)
    return 0


@click.command(short_help="New baselines: old, 7-day mean, new, n, status.")
@click.argument("cells", nargs=-1, metavar="[CELL...]")
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DAY",
    help="The last of these nights.  [default: the last in the store]",
)
@options.state
@options.as_json
def rebaseline(
    cells: tuple[str, ...],
    until: datetime | None,
    state: Path | None,
    as_json: bool,
) -> int:
    """What the baselines of each CELL (none named: of all) would be: the mean of the last seven nights.

    A mean that is worse by more than 7 % does not become the baseline. Left out are the nights of a
    transient, of a regression that was not accepted (closed), and those before the newest change of
    workload, instrument or level. A CELL may be the beginning of names, as in track trend.

    \b
    Example:
      perfbisect track rebaseline qwen_image_single_device
    """
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.series.detect import look
    from perfbisect.series.rebaseline import rebaseline as proposals
    from perfbisect.series.render import rebaseline_lines
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.table import load_suspect_table

    with SeriesStore.of(place(state=state).state) as store:
        last = f"{until:%Y-%m-%d}" if until else ""
        document = proposals(store, look(store, load_suspect_table()), cells, until=last)
    emit(document, rebaseline_lines(document), as_json=as_json)
    return 0


@click.command(short_help="Bring results in: a kanban, folders, Buildkite, our journals.")
@click.argument("places", nargs=-1, required=True, metavar="PATH_OR_URL...")
@click.option("--zone", metavar="ZONE", help="Time zone of times that say none, e.g. UTC, Asia/Shanghai.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DAY",
    help="Leave older builds.  [default for Buildkite: 90 days ago]",
)
@click.option("--branch", default="main", show_default=True, help="Of Buildkite: whose builds; '' for all.")
@click.option("--logs/--no-logs", default=True, help="Of Buildkite: keep the ends of the jobs' logs, or not.")
@click.option(
    "--from", "source", metavar="SOURCE", help="What it must be: buildkite, kanban, journals, folder."
)
@options.state
@options.as_json
def ingest(
    places: tuple[str, ...],
    zone: str | None,
    since: datetime | None,
    branch: str,
    logs: bool,
    source: str | None,
    state: Path | None,
    as_json: bool,
) -> int:
    """Bring in what is new at each PATH_OR_URL: a kanban checkout, a folder of result files, a pipeline or
    build of Buildkite (token in BUILDKITE_TOKEN), a state folder of ours. Nothing is brought in twice.

    What is no measurement is left out and told with its reason: broken files, forms of zeros, runs with
    failed requests, the same file in another layout.

    \b
    Examples:
      perfbisect track ingest vllm-omni-kanban
      perfbisect track ingest nightly-results/ --zone UTC
      perfbisect track ingest https://buildkite.com/vllm/vllm-omni --since 2026-04-01
    """
    import os
    from datetime import timedelta

    from perfbisect.commands.output import emit, say
    from perfbisect.commands.workspace import place
    from perfbisect.series.ingest import ingest as bring_in
    from perfbisect.series.ingest import ingest_document, zone_of
    from perfbisect.series.render import ingest_lines
    from perfbisect.series.sources import Asked
    from perfbisect.series.store import SeriesStore
    from perfbisect.system.clock import now

    here = now()
    recent = (here - timedelta(days=90)).date().isoformat()
    remote = any("://" in text for text in places)
    asked = Asked(
        zone=zone_of(zone) if zone else None,
        since=f"{since:%Y-%m-%d}" if since else recent if remote else "",
        branch=branch,
        logs=logs,
        now=here,
        variables=os.environ,
        say=say,
    )
    with SeriesStore.of(place(state=state).state) as store:
        document = ingest_document(store, bring_in(store, places, asked, source=source))
    emit(document, ingest_lines(document), as_json=as_json)
    return 0


@click.command(short_help="The series as CSV, or for github-action-benchmark.")
@click.argument("cells", nargs=-1, metavar="[CELL...]")
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
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), metavar="DAY", help="Leave older nights.")
@options.state
@options.as_json
def export(
    cells: tuple[str, ...],
    form: str,
    out: Path | None,
    metric: str | None,
    since: datetime | None,
    state: Path | None,
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
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.errors import UsageError
    from perfbisect.series.documents import TrackExportDocument
    from perfbisect.series.export import export_files, series_for_export, table
    from perfbisect.series.store import SeriesStore

    if out is None and (as_json or form != "csv"):
        what = "--json tells of files" if as_json else f"{form} is two files"
        raise UsageError(f"{what}, and none is named", next_step="add -o FILE")
    with SeriesStore.of(place(state=state).state) as store:
        series = series_for_export(
            store, cells, metric=metric or "", since=f"{since:%Y-%m-%d}" if since else ""
        )
    if out is None:
        click.echo(table(series, metric or ""), nl=False)
        return 0
    files = export_files(series, cast("Form", form), out, metric=metric or "")
    document = TrackExportDocument(
        format=form,
        files={name: str(path) for name, path in files.items()},
        points=sum(len(points) for _, points in series),
        cells=len({points[0].cell for _, points in series}),
    )
    lines = [f"{path}: {name}" for name, path in document.files.items()]
    emit(document, [*lines, f"{document.points} points of {document.cells} cells were read"], as_json=as_json)
    return 0


@click.command(short_help="Our own launches in the kanban's file format.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@options.state
@options.as_json
def publish(folder: Path, jobs: tuple[str, ...], state: Path | None, as_json: bool) -> int:
    """Write what `perfbisect run` measured into FOLDER as result files of vLLM-Omni's kanban.

    A file is one run: what the client reported, with the time in UTC, and with commit, version of the engine
    and device, which the kanban's own files lack. Nothing is published twice; `track ingest FOLDER` gives the
    same points as the journals. Without JOB all runs.

    \b
    Examples:
      perfbisect track publish our-kanban
      perfbisect track publish our-kanban 20260412-190000-1f3c
    """
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.series.documents import TrackPublishDocument
    from perfbisect.series.publish import publish as write

    here = place(state=state)
    chosen = [here.jobs.find(name) for name in jobs] if jobs else here.jobs.all()
    done = write(folder, chosen)
    document = TrackPublishDocument(
        folder=str(folder),
        launches=done.launches,
        written=tuple(map(str, done.written)),
        unchanged=done.unchanged,
        removed=tuple(map(str, done.removed)),
        left_out=done.left_out,
    )
    lines = [
        f"{folder}: {done.launches} launches; {len(done.written)} files written, {done.unchanged} were there",
        *([f"  {len(done.removed)} removed: their launches turned out to be void"] if done.removed else []),
        *(f"  left out: {why}" for why in done.left_out),
    ]
    emit(document, lines, as_json=as_json)
    return 0


Mark = Literal["open", "acknowledged", "closed"]


@click.command(short_help="Change points, drifts, transients, instrument changes.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DAY",
    help="Tell changes from this night on; all nights are judged.",
)
@click.option(
    "--fdr",
    type=float,
    default=0.05,
    show_default=True,
    help="Share of false ones among the series that are alarmed, at most.",
)
@click.option("--all", "everything", is_flag=True, help="Tell in full what was told before, too.")
@options.state
@options.full
@options.as_json
def detect(
    since: datetime | None, fdr: float, everything: bool, state: Path | None, full: bool, as_json: bool
) -> int:
    """Judge every series in the store: what changed, since when, by how much, of what shape and cause.

    Medians and single numbers are judged together; means and percentiles by themselves. What was told before
    keeps its name and state, and is not told again.

    \b
    Examples:
      perfbisect track detect
      perfbisect track detect --since 2026-04-01 --json
    """
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.common.moments import stamp
    from perfbisect.series.detect import detect as judge
    from perfbisect.series.render import detect_lines
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.table import load_suspect_table
    from perfbisect.system.clock import now

    day = f"{since:%Y-%m-%d}" if since else ""
    with SeriesStore.of(place(state=state).state) as store:
        document = judge(store, load_suspect_table(), now=stamp(now()), since=day, fdr=fdr)
    emit(document, detect_lines(document, everything=everything), as_json=as_json, full=full)
    return 0


def _verb(name: str, mark: Mark, short: str, told: str) -> click.Command:
    @click.command(name, short_help=short, help=told)
    @click.argument("alert")
    @click.option(
        "--why", required=True, metavar="TEXT", help="Kept with the alert: who, which issue, what for."
    )
    @options.state
    @options.as_json
    def verb(alert: str, why: str, state: Path | None, as_json: bool) -> int:
        return _mark(alert, mark, why, state, as_json)

    return verb


def _mark(alert: str, mark: Mark, why: str, state: Path | None, as_json: bool) -> int:
    from perfbisect.commands.output import emit
    from perfbisect.commands.workspace import place
    from perfbisect.series.alert_state import mark as said
    from perfbisect.series.render import state_lines
    from perfbisect.series.store import SeriesStore

    with SeriesStore.of(place(state=state).state) as store:
        document = said(store, alert, mark, why)
    emit(document, state_lines(document), as_json=as_json)
    return 0


_EXAMPLE = """

\b
Example:
  perfbisect track {name} 20260412-3f1a --why "{why}"
"""

ack = _verb(
    "ack",
    "acknowledged",
    "Somebody knows of an alert.",
    "ALERT, or all alerts of an event, is known: somebody looks at it, and it is not told again."
    + _EXAMPLE.format(name="ack", why="issue 2711"),
)
close = _verb(
    "close",
    "closed",
    "An alert is fixed or accepted.",
    "ALERT, or all alerts of an event, is fixed, or accepted as it is. A later change of the series is an "
    "alert of its own." + _EXAMPLE.format(name="close", why="fixed by #2716"),
)
reopen = _verb(
    "reopen",
    "open",
    "An alert is not settled after all.",
    "ALERT, or all alerts of an event, is open again." + _EXAMPLE.format(name="reopen", why="still slow"),
)


@click.group("track", cls=Verbs, short_help="What the nightly series say.")
def track() -> None:
    """What the nightly series say: results made elsewhere, brought in and read.

    \b
    Example:
      perfbisect track ingest vllm-omni-kanban
    """


for verb in (
    *(ingest, trend, detect, suspects, report, repro, ack, close, reopen, rebaseline),
    *(export, publish),
):
    track.add_command(verb)
