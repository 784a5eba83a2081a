"""``perfbisect track export`` and ``perfbisect track publish``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from perfbisect.cli import options

if TYPE_CHECKING:
    from perfbisect.jobs.track_export import Form


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
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.errors import UsageError
    from perfbisect.jobs.track_export import export_files, series_for_export, table
    from perfbisect.render.track_documents import TrackExportDocument
    from perfbisect.store.series import SeriesStore

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
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.jobs.publish import publish as write
    from perfbisect.render.track_documents import TrackPublishDocument

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
