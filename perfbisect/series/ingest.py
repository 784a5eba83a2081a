"""``track ingest``: stores what is new at each place, and makes the points of the builds that it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from pydantic import Field

from perfbisect.jobs.documents import Document
from perfbisect.model.commit_details import Evidence
from perfbisect.series.points import Build, Point, RawFile, RejectedResult
from perfbisect.series.sources import IngestOptions, ResultSource, SourceBuild, find_source, journals, sweeps
from perfbisect.series.sources.base import UnreadableFileError
from perfbisect.series.sources.results import read_file, zone_of
from perfbisect.series.store import FileState, SeriesStore

_AHEAD = timedelta(days=1)
"""How far a result's clock may be ahead of ours: zones are mistaken more often than years."""

_OTHER_PROMPTS = 2.0
"""How many times longer prompts are those of another workload: one that draws them anew varies by less."""

_Results = tuple[tuple[Point, ...], tuple[RejectedResult, ...]]


class FateDocument(Document):
    """Rejected results of one kind, with an example."""

    fate: str
    count: int
    why: Evidence
    file: str


class TrackIngestDocument(Document):
    """JSON of ``track ingest``; ``points`` and ``rejected`` cover the builds with new files."""

    schema_: Literal["perfbisect.track-ingest/3"] = Field(default="perfbisect.track-ingest/3", alias="schema")
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
    latest = options.now + _AHEAD if options.now else None
    builds, files = 0, Counter[FileState]()
    admitted: dict[int, _Results] = {}
    for place in places:
        for batch in _batches(store, *find_source(place, source), options):
            with store.transaction():
                for build, new_files in batch:
                    builds += 1
                    number = store.keep_build(build.build, whole=build.whole)
                    states = Counter(store.keep_file(number, file, version) for file, version in new_files)
                    files += states + Counter({"unchanged": len(build.files) - states.total()})
                # Derived again as a whole: what counts depends on all files of a build, so order of ingests
                # does not matter.
                for number, changed in store.changed_builds():
                    admitted[number] = admit_build(changed, store.files(number), latest)
                    store.replace_results(number, *admitted[number])
    branches = Counter(build.of_main for build in store.builds())
    rejected = [result for _, of_build in admitted.values() for result in of_build]
    examples = {result.kind: result for result in reversed(rejected)}
    return TrackIngestDocument(
        store=str(store.path),
        builds=builds,
        new=files["new"],
        changed=files["changed"],
        unchanged=files["unchanged"],
        duplicates=files["duplicate"],
        points=sum(len(points) for points, _ in admitted.values()),
        rejected=tuple(
            FateDocument(fate=kind, count=count, why=examples[kind].why, file=examples[kind].raw)
            for kind, count in Counter(result.kind for result in rejected).most_common()
        ),
        cells=len(store.cells()),
        builds_not_of_main=branches[False],
        builds_of_unknown_branch=branches[None],
    )


_NewFiles = Iterable[tuple[RawFile, str]]
"""Files with their versions."""


def _batches(
    store: SeriesStore, source: ResultSource, place: str, options: IngestOptions
) -> Iterator[Iterable[tuple[SourceBuild, _NewFiles]]]:
    """The builds that are stored at once, with their new files: all of a path, each one of a service."""
    versions = store.versions()
    builds = source.builds(place, replace(options, finished=store.whole_builds()))
    # Lazy: a large folder is read file by file while it is stored.
    loaded = ((build, _read_new(build, versions)) for build in builds)
    if not source.IS_REMOTE:
        yield loaded
        return
    for build, new_files in loaded:
        yield [(build, list(new_files))]  # What is fetched is fetched before the store is locked.


def _read_new(build: SourceBuild, versions: dict[str, str]) -> _NewFiles:
    for file in build.files:
        version = f"{file.version} {build.zone}"
        if versions.get(file.place) != version:
            text, commands = _stored_text(file.read), _stored_text(file.commands)
            yield RawFile(file.name, file.place, text, commands, build.zone, file.facts), version


def _stored_text(read: Callable[[], str]) -> str:
    try:
        return read()
    except UnreadableFileError as error:
        return error.text


def admit_build(build: Build, files: Iterable[RawFile], latest: datetime | None = None) -> _Results:
    """Admit the results of a build: its points and the rejected ones.

    What began after ``latest`` was measured by a clock that is wrong: one such night would be the last of all
    for years.
    """
    points: list[Point] = []
    rejected: list[RejectedResult] = []
    runs: list[journals.PublishedRun] = []
    sweep: list[sweeps.SweepRun] = []
    # Launches that the journal itself has: files published of them are the same launches once more.
    starts: set[str] = set()
    for file in files:
        for read in read_file(build, file):
            result = read.point if isinstance(read, sweeps.SweepRun) else read
            if isinstance(result, RejectedResult):
                rejected.append(result)
            elif file.duplicate_of:
                rejected.append(result.rejected("twin", Evidence("same file", {"file": file.duplicate_of})))
            elif isinstance(result, journals.PublishedRun):
                runs.append(result)
            elif latest is not None and result.moment > latest:
                ahead = Evidence("clock ahead", {"time": result.began})
                rejected.append(replace(result.rejected("broken", ahead), night=""))
            elif isinstance(read, sweeps.SweepRun):
                sweep.append(read)
            else:
                starts.add(result.start)
                points.append(result)
    for launch in journals.published_results(runs, starts):
        if isinstance(launch, Point):
            points.append(launch)
        else:
            rejected.append(launch)
    points += sweeps.merge_runs(sweep)
    admitted, others = admit_results(points)
    rejected += others
    # A night passes midnight: all of a build is of the day on which its first result began.
    night = _night(points)
    return admitted, tuple(
        replace(result, night=night or result.night or build.fixed[:10]) for result in rejected
    )


def admit_results(points: Sequence[Point]) -> _Results:
    """The points of one build with their night and server start, and the rejected ones.

    What surely measured another commit than its build's is set aside.

    Of several like results of a cell the last counts, since a step that is run again replaces the first; of
    unlike workloads none counts, since it is not known which is which.
    """
    night = _night(points)
    by_cell: dict[str, list[Point]] = {}
    admitted: list[Point] = []
    rejected: list[RejectedResult] = []
    for point in sorted(points, key=lambda point: point.order):
        placed = replace(point, night=night, start=_start(point))
        if other := point.other_commit:
            rejected.append(placed.rejected("mislabelled", other))
        else:
            by_cell.setdefault(point.cell, []).append(placed)
    for cell, results in by_cell.items():
        last = results[-1]
        unlike = next(filter(None, (_difference(point, last) for point in results)), None)
        # All launches of one job are points; elsewhere a second result of a cell replaces the first.
        if last.build.source == journals.SOURCE:
            admitted += results
        elif unlike:
            rejected += [point.rejected("ambiguous", unlike) for point in results]
        else:
            again = Evidence("measured again", {"cell": cell, "file": last.raw})
            rejected += [point.rejected("repeated", again) for point in results[:-1]]
            admitted.append(last)
    return tuple(sorted(admitted, key=lambda p: (p.began, p.cell, p.raw))), tuple(rejected)


def _night(points: Iterable[Point]) -> str:
    return min((point.began for point in points), default="")[:10]


def _start(point: Point) -> str:
    """One server serves every workload of a test; that for text alone is another test of the same name."""
    kind = "-text" if point.workload.only_text else ""
    return point.start or f"{point.build.key}/{point.workload.test}{kind}"


def _difference(a: Point, b: Point) -> Evidence | None:
    """Why two results of one name are of unlike workloads; None where they are alike."""
    left, right = (float(point.covariates.get("input_tokens") or 0) for point in (a, b))
    has_other_prompts = left and right and max(left, right) > _OTHER_PROMPTS * min(left, right)
    if a.workload == b.workload and not has_other_prompts:
        return None
    tokens = [left, right] if a.workload == b.workload else []
    return Evidence("unlike workloads", {"files": [a.raw, b.raw], "tokens": tokens})
