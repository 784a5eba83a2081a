"""``track ingest``: stores what is new at each place, and makes the points of the builds that it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from pydantic import Field

from perfbisect.errors import LocatedError
from perfbisect.jobs.documents import Document
from perfbisect.report.document import Command, Items, Paragraph, Report, Verdict, code
from perfbisect.series.admission import NoZoneError, admit_build, check_zone, zone_of
from perfbisect.series.points import RawFile, RejectedResult
from perfbisect.series.sources import IngestOptions, ResultSource, SourceBuild, find_source
from perfbisect.series.store import FileState, SeriesStore

_AHEAD = timedelta(days=1)
"""How far a result's clock may be ahead of ours: zones are mistaken more often than years."""


class FateDocument(Document):
    """Rejected results of one kind, with an example."""

    fate: str
    count: int
    reason: str
    file: str


class TrackIngestDocument(Document):
    """JSON of ``track ingest``; ``points`` and ``rejected`` cover the builds with new files."""

    schema_: Literal["perfbisect.track-ingest/2"] = Field(default="perfbisect.track-ingest/2", alias="schema")
    store: str
    builds: int
    new: int
    changed: int
    unchanged: int
    duplicates: int
    points: int
    rejected: tuple[FateDocument, ...]
    cells: int
    builds_not_of_main: int
    builds_of_unknown_branch: int


def ingest(
    store: SeriesStore, places: Sequence[str], options: IngestOptions, *, source: str | None = None
) -> TrackIngestDocument:
    """Store what is new at each path or address, and make the points of the builds that it changes.

    A path is stored whole or not at all; of a service what came before a failure is kept.
    """
    if options.zone:
        zone_of(options.zone)  # An unknown one fails before anything is read.
    builds, files = 0, Counter[FileState]()
    for place in places:
        for states in _store_builds(store, *find_source(place, source), options):
            builds += 1
            files += states
    points, rejected = _admit_builds(store, options.now + _AHEAD if options.now else None)
    branches = Counter(build.of_main for build in store.builds())
    return TrackIngestDocument(
        store=str(store.path),
        builds=builds,
        new=files["new"],
        changed=files["changed"],
        unchanged=files["unchanged"],
        duplicates=files["duplicate"],
        points=points,
        rejected=_group_rejections(rejected),
        cells=len(store.cells()),
        builds_not_of_main=branches[False],
        builds_of_unknown_branch=branches[None],
    )


def _store_builds(
    store: SeriesStore, source: ResultSource, place: str, options: IngestOptions
) -> Iterator[Counter[FileState]]:
    """Store the builds of a place; yields the states of each build's files."""
    versions = store.versions()
    options = replace(options, finished=store.whole_builds())
    with nullcontext() if source.is_remote else store.transaction():
        for build in source.builds(place, options):
            # What is fetched is fetched before the store is locked.
            files = list(_read_new(build, versions)) if source.is_remote else _read_new(build, versions)
            with store.transaction() if source.is_remote else nullcontext():
                yield _store_build(store, build, files)


def _read_new(build: SourceBuild, versions: dict[str, str]) -> Iterator[tuple[RawFile, str]]:
    """The files that are new or changed, with their versions."""
    for file in build.files:
        version = f"{file.version} {build.zone}"
        if versions.get(file.place) != version:
            text, beside = file.read()
            yield RawFile(file.name, file.place, text, beside, build.zone, file.facts), version


def _store_build(
    store: SeriesStore, build: SourceBuild, files: Iterable[tuple[RawFile, str]]
) -> Counter[FileState]:
    number = store.keep_build(build.build, whole=build.whole)
    states: list[FileState] = []
    for file, version in files:
        try:
            check_zone(file.text, file.zone)
        except NoZoneError as error:
            raise LocatedError(
                f"{error}: nothing was ingested from there",
                file=file.place,
                field="date",
                allowed="a time with its zone, or --zone",
                next_step="add --zone UTC, or the zone of the machine that measured: --zone Asia/Shanghai",
            ) from None
        states.append(store.keep_file(number, file, version))
    return Counter[FileState](states) + Counter[FileState]({"unchanged": len(build.files) - len(states)})


def _admit_builds(store: SeriesStore, latest: datetime | None) -> tuple[int, list[RejectedResult]]:
    """Make the points of every changed build, also of an ingest that was cut short."""
    count, all_rejected = 0, list[RejectedResult]()
    with store.transaction():
        for number, build in store.changed_builds():
            points, rejected = admit_build(build, store.files(number), latest)
            store.replace_results(number, points, rejected)
            count += len(points)
            all_rejected += rejected
    return count, all_rejected


def _group_rejections(rejected: Sequence[RejectedResult]) -> tuple[FateDocument, ...]:
    examples = {result.kind: result for result in reversed(rejected)}
    return tuple(
        FateDocument(fate=kind, count=count, reason=examples[kind].reason, file=examples[kind].raw)
        for kind, count in Counter(result.kind for result in rejected).most_common()
    )


def ingest_report(document: TrackIngestDocument) -> Report:
    counts = {
        "new": document.new,
        "changed": document.changed,
        "known from elsewhere": document.duplicates,
        "unchanged": document.unchanged,
    }
    files = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    notes = [
        f"no point, {group.count} {group.fate}: {group.reason} ({group.file})" for group in document.rejected
    ]
    if document.builds_not_of_main:
        notes.append(f"{document.builds_not_of_main} builds are not of main")
    if document.builds_of_unknown_branch:
        notes.append(
            f"{document.builds_of_unknown_branch} builds do not say their branch: not known to be of main"
        )
    summary = [Paragraph(f"{document.builds} builds, {sum(counts.values())} files: {files or 'none'}")]
    if document.points or document.rejected:
        stored = f"{document.points} points; the store has {document.cells} cells ("
        summary.append(Paragraph((stored, code(document.store), ")")))
    following = "perfbisect track detect" if document.cells else "perfbisect track ingest PATH"
    rejected = [Items(tuple(notes))] if notes else []
    verdict = Verdict(f"{document.points} new points")
    return Report("Ingest", verdict, (*summary, *rejected, Command(following)))
