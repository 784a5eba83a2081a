"""``perfbisect track``: what a series of nights says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import click

from perfbisect.commands.options import InState
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import DAY, Argument, AsJson, Option, prints

Cells = Annotated[tuple[str, ...], Argument("[CELL...]")]
Since = Annotated[str, Option("Leave older nights.", metavar="DAY", type=DAY)]


@prints("perfbisect.series.night_table:TrackShowDocument")
def show(
    workspace: InState,
    *,
    metric: Annotated[
        str, Option("Metric to show, e.g. ttft:p99.", metavar="M", default="the first of latency")
    ] = "",
    cells: Cells = (),
    since: Since = "",
) -> CommandResult:
    """The nights of each CELL: date, build, value, change against the night before, and what marks them.

    Without a cell one line for every cell. A CELL may be the beginning of names, up to one of / @ -:
    qwen3_omni, qwen3_omni/random, qwen3_omni/random@c4; none of these is of qwen3_omni_chunk.

    \b
    Examples:
      perfbisect track show
      perfbisect track show qwen3_tts/random@c4-n40 --metric audio_rtf
    """
    from perfbisect.commands.output import report_result
    from perfbisect.series.night_table import show_nights
    from perfbisect.series.report import series_report
    from perfbisect.series.store import SeriesStore

    with SeriesStore.of(workspace.state) as store:
        document = show_nights(store, cells, metric=metric, since=since)
    return report_result(document, series_report("show", document=document))


@prints("perfbisect.series.nightly_report:TrackReportDocument", has_full=True)
def report(
    workspace: InState,
    *,
    format: Annotated[
        Literal["md", "html", "json"], Option("Form; html is one page that opens from disk.")
    ] = "md",
    metrics: Annotated[
        tuple[str, ...],
        Option(
            "Add a table of all cells: last value, 7-night mean, change, verdict. Repeatable.",
            ("--metric",),
            metavar="M",
        ),
    ] = (),
    fdr: Annotated[float, Option("The rate with which the alert was reported.")] = 0.05,
) -> CommandResult:
    """What is at another level than before on the last night, and the events of all nights, with evidence.

    Nothing is written down: only `track detect` tells.

    \b
    Examples:
      perfbisect track report > nightly.md
      perfbisect track report --format html > nightly.html
      perfbisect track report --metric tput_per_gpu --metric ttft:p99
    """
    from perfbisect.commands.outcomes import measured_outcomes
    from perfbisect.commands.output import page_result
    from perfbisect.series.detect import analyze_series
    from perfbisect.series.nightly_report import build_nightly_report
    from perfbisect.series.report import nightly_report
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.table import load_suspect_table

    with SeriesStore.of(workspace.state) as store:
        analysis = analyze_series(store, load_suspect_table(), fdr)
        measured = measured_outcomes(store, analysis, workspace.jobs.all(), workspace.repository)
        document = build_nightly_report(analysis, fdr=fdr, metrics=metrics, measured=measured)
    if format == "json":
        return CommandResult(document, (), json=True)
    return page_result(document, nightly_report(document), format)


@prints("perfbisect.series.rebaseline:TrackRebaselineDocument")
def rebaseline(
    workspace: InState,
    *,
    until: Annotated[
        str, Option("The last of these nights.", metavar="DAY", type=DAY, default="the last in the store")
    ] = "",
    cells: Cells = (),
) -> CommandResult:
    """What the baselines of each CELL (none named: of all) would be: the mean of the last seven nights.

    A mean that is worse by more than 7 % does not become the baseline. Left out are the nights of a
    transient, of a regression that was not accepted (closed), and those before the newest change of
    workload, instrument or level. A CELL may be the beginning of names, as in track show.

    \b
    Example:
      perfbisect track rebaseline qwen_image_single_device
    """
    from perfbisect.commands.output import report_result
    from perfbisect.series.detect import analyze_series
    from perfbisect.series.rebaseline import rebaseline as propose_baselines
    from perfbisect.series.report import series_report
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.table import load_suspect_table

    with SeriesStore.of(workspace.state) as store:
        analysis = analyze_series(store, load_suspect_table())
        document = propose_baselines(store, analysis, cells, until=until)
    return report_result(document, series_report("rebaseline", document=document))


@prints("perfbisect.series.ingest:TrackIngestDocument")
def ingest(
    workspace: InState,
    *,
    places: Annotated[tuple[str, ...], Argument("PATH_OR_URL...")],
    zone: Annotated[
        str, Option("Time zone of times that say none, e.g. UTC, Asia/Shanghai.", metavar="ZONE")
    ] = "",
    since: Annotated[
        str, Option("Leave older builds.", metavar="DAY", type=DAY, default="of Buildkite: 90 days ago")
    ] = "",
    branch: Annotated[str, Option("Of Buildkite: whose builds; '' for all.")] = "main",
    source: Annotated[
        str | None,
        Option(
            "What it must be: buildkite, kanban, journals, dashboard, folder.", ("--from",), metavar="SOURCE"
        ),
    ] = None,
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

    from perfbisect.commands.output import print_progress, report_result
    from perfbisect.series.ingest import ingest as ingest_places
    from perfbisect.series.report import series_report
    from perfbisect.series.sources import IngestOptions
    from perfbisect.series.store import SeriesStore
    from perfbisect.system.clock import now

    started, since = now(), since
    if not since and any("://" in place for place in places):
        since = (started - timedelta(days=90)).date().isoformat()
    ingest_options = IngestOptions(
        zone=zone,
        since=since,
        branch=branch,
        now=started,
        variables=os.environ,
        say=print_progress,
    )
    with SeriesStore.of(workspace.state) as store:
        document = ingest_places(store, places, ingest_options, source=source)
    return report_result(document, series_report("ingest", document=document))


@prints("perfbisect.series.export:TrackExportDocument")
def export(
    workspace: InState,
    *,
    format: Annotated[
        Literal["csv", "json", "parquet", "github-action-benchmark"], Option("Form of the file.")
    ] = "csv",
    out: Annotated[
        Path | None,
        Option(
            "File to write.",
            ("-o", "--out"),
            type=click.Path(path_type=Path, dir_okay=False),
            default="standard output",
        ),
    ] = None,
    metric: Annotated[str, Option("This metric alone, e.g. ttft:p99.", metavar="M")] = "",
    cells: Cells = (),
    since: Since = "",
    as_json: AsJson = False,
) -> CommandResult | int:
    """The series of each CELL, or of all, for others to read.

    csv, json and parquet have a row for each metric of each point; parquet needs the extra `parquet`, and
    memory for all rows. github-action-benchmark has the newest night, as two files:
    of -o bench.json, bench-smaller.json for its tool customSmallerIsBetter and bench-bigger.json for
    customBiggerIsBetter.

    \b
    Examples:
      perfbisect track export > series.csv
      perfbisect track export --format parquet -o series.parquet
      perfbisect track export --format github-action-benchmark -o bench.json
    """
    from perfbisect.commands.output import print_text, report_result
    from perfbisect.errors import UsageError
    from perfbisect.series.export import csv_parts, export_files, json_parts, series_for_export
    from perfbisect.series.report import series_report
    from perfbisect.series.store import SeriesStore

    if out is None and (as_json or format not in ("csv", "json")):
        files = "a binary file" if format == "parquet" else "two files"
        what = "--json tells of files" if as_json else f"{format} is {files}"
        raise UsageError(f"{what}, and none is named", next_step="add -o FILE")
    with SeriesStore.of(workspace.state) as store:
        series = series_for_export(store, cells, metric=metric, since=since)
        if out is None:
            parts = json_parts if format == "json" else csv_parts
            for part in parts(series, metric):
                print_text(part, nl=False)
            return 0
        document = export_files(series, format, out, metric=metric)
    return report_result(document, series_report("export", document=document))


@prints("perfbisect.series.publish:TrackPublishDocument")
def publish(
    workspace: InState,
    *,
    folder: Annotated[Path, Argument(type=click.Path(path_type=Path, file_okay=False))],
    jobs: Annotated[tuple[str, ...], Argument("[JOB...]")] = (),
) -> CommandResult:
    """Write what `perfbisect run` measured into FOLDER as result files of vLLM-Omni's kanban.

    A file is one run: what the client reported, with the time in UTC, and with commit, version of the engine
    and device, which the kanban's own files lack. Nothing is published twice; `track ingest FOLDER` gives the
    same points as the journals. Without JOB all runs.

    \b
    Examples:
      perfbisect track publish our-kanban
      perfbisect track publish our-kanban 20260412-190000-1f3c
    """
    from perfbisect.commands.output import report_result
    from perfbisect.series.publish import publish as publish_results
    from perfbisect.series.report import series_report

    known = workspace.jobs
    published = [known.find(name) for name in jobs] if jobs else known.all()
    document = publish_results(folder, published)
    return report_result(document, series_report("publish", document=document))


@prints("perfbisect.series.detect:TrackDetectDocument", has_full=True)
def detect(
    workspace: InState,
    *,
    since: Annotated[
        str, Option("Tell changes from this night on; all nights are judged.", metavar="DAY", type=DAY)
    ] = "",
    fdr: Annotated[float, Option("Share of false ones among the series that are alarmed, at most.")] = 0.05,
    everything: Annotated[bool, Option("Show earlier alerts in full, too.", ("--all",))] = False,
) -> CommandResult:
    """Judge every series in the store: what changed, since when, by how much, of what shape and cause.

    Medians and single numbers are judged together; means and percentiles by themselves. Earlier alerts
    keep their names and states and are not repeated.

    \b
    Examples:
      perfbisect track detect
      perfbisect track detect --since 2026-04-01 --json
    """
    from perfbisect.commands.output import report_result
    from perfbisect.common.quantities import stamp
    from perfbisect.series.detect import detect as detect_changes
    from perfbisect.series.report import detect_report
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.table import load_suspect_table
    from perfbisect.system.clock import now

    with SeriesStore.of(workspace.state) as store:
        told = stamp(now())
        document = detect_changes(store, load_suspect_table(), now=told, since=since, fdr=fdr)
    return report_result(document, detect_report(document, everything=everything))
