"""The files of one build -> its points, and what is none, each with its reason."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from perfbisect.cells.importers.vllm_omni import WARMUPS
from perfbisect.cells.match import WORKLOAD_PARTS, ReportedWorkload, parse_command, parse_result_name
from perfbisect.clients.eras import NIGHTLY_ERAS
from perfbisect.common.durations import moment, stamp
from perfbisect.errors import LocatedError, UsageError
from perfbisect.jobs.documents import Document
from perfbisect.report.document import Command, Items, Paragraph, Report, Verdict, code
from perfbisect.series.points import (
    Build,
    FileLocation,
    Point,
    RejectedResult,
    Workload,
    admit_results,
    known,
    preferred_location,
)
from perfbisect.series.sources import (
    IngestOptions,
    ResultSource,
    SourceBuild,
    SourceFile,
    journals,
    kanban,
    published,
    source_of,
)
from perfbisect.series.sources.files import LARGEST
from perfbisect.series.sources.results import ParsedResult, UnusableResult, readings
from perfbisect.series.store import SeriesStore

_PLAIN = "%Y%m%d-%H%M%S"
_TAIL = re.compile(
    r"[-_]\d{8}-\d{6}|_qps_(?:inf|[\d.]+)(?:_concurrency_\d+)?$|-(?:inf|[\d.]+)qps(?:-concurrency\d+)?"
)
"""What of a file's name is its load or its time, where the name follows no rule of the kanban."""

_LENGTHS = (("in", "random-input-len"), ("out", "random-output-len"))


@dataclass(frozen=True)
class StoredFile:
    """A file as it is kept: ``twin`` is where the same content counts, empty where it counts here."""

    name: str
    place: str
    text: str
    beside: str = ""
    zone: tzinfo | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    twin: str = ""


class NoZoneError(ValueError):
    """A time does not say its zone, and nobody said it."""


def sort_build(
    build: Build, files: Sequence[StoredFile], latest: datetime | None = None
) -> tuple[tuple[Point, ...], tuple[RejectedResult, ...]]:
    """Everything of one build, each in its place. What began after ``latest`` was measured by a clock that is
    wrong, and is no point: one such night would be the last of all for years."""
    points: list[Point] = []
    rejected: list[RejectedResult] = []
    parts: list[published.PublishedPart] = []
    for file in files:
        for found in _results(build, file):
            if isinstance(found, RejectedResult):
                rejected.append(found)
            elif isinstance(found, published.PublishedPart):
                if file.twin:
                    rejected.append(found.rejected(build, "twin", f"the same file as {file.twin}"))
                else:
                    parts.append(found)
            elif file.twin:
                reason = f"the same file as {file.twin}"
                rejected.append(
                    RejectedResult(
                        build, "twin", reason, file.place, found.record, found.cell, found.began[:10]
                    )
                )
            elif latest is not None and moment(found.began) > latest:
                reason = f"says {found.began}, which is not yet: the clock was wrong"
                rejected.append(RejectedResult(build, "broken", reason, file.place, found.record, found.cell))
            else:
                points.append(found)
    for launch in published.launches(build, parts, {point.start for point in points}):
        if isinstance(launch, RejectedResult):
            rejected.append(launch)
        else:
            points.append(launch)
    admitted, more = admit_results(points)
    night = min((point.began for point in points), default="")[:10]
    return admitted, tuple(replace(r, night=night or r.night or build.fixed[:10]) for r in (*rejected, *more))


def read_document(text: str) -> object:
    """A file's JSON. :raises ValueError: it is none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_zone(document: object, zone: tzinfo | None) -> None:
    """:raises NoZoneError: a result's time says no zone, and none is given."""
    for found in readings(document):
        told = found.ended or found.began if isinstance(found, ParsedResult) else ""
        if told:
            when(told, zone)


def when(text: str, zone: tzinfo | None) -> datetime:
    """A time as results tell it: ``20260412-190115`` or ISO 8601.

    :raises NoZoneError: it says no zone and none is given.
    :raises ValueError: it is no time.
    """
    try:
        found = datetime.strptime(text, _PLAIN)
    except ValueError:
        try:
            found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError:
            raise ValueError(f"{text!r} is no time") from None
    if found.tzinfo is not None:
        return found
    if zone is None:
        raise NoZoneError(f"{text!r} does not say its zone")
    return found.replace(tzinfo=zone)


def _results(build: Build, file: StoredFile) -> Iterator[Point | RejectedResult | published.PublishedPart]:
    try:
        document = read_document(file.text)
    except ValueError as error:
        cut = len(file.text.encode("utf-8", "replace")) >= LARGEST
        why = f"is larger than {LARGEST >> 20} MB" if cut else f"is no JSON: {error}"
        yield RejectedResult(build, "broken", why, file.place)
        return
    if isinstance(document, dict) and str(document.get("schema", "")).startswith("perfbisect.attempts/"):
        yield from journals.points_of(build, document, file.place)
        return
    if isinstance(document, dict) and isinstance(document.get("results"), list) and "date" in document:
        yield RejectedResult(
            build, "older", "a day's summary: no cells, requests or lengths stand behind it", file.place
        )
        return
    for record, found in enumerate(readings(document)):
        try:
            if isinstance(found, UnusableResult):
                yield _rejection(build, found, file, record, document)
            elif found.published is not None:
                moment(found.published.origin.began)
                yield published.PublishedPart(found.published, file.place, record)
            else:
                yield _point(build, file, found, record)
        except (ValueError, ArithmeticError) as error:
            yield RejectedResult(build, "broken", str(error), file.place, record)


def _point(build: Build, file: StoredFile, found: ParsedResult, record: int) -> Point:
    """:raises ValueError: no time, or one that is none; the name is of another run than the result."""
    name = file.name.rsplit("/", 1)[-1]
    sight, commands = _sight(name), _commands(file.beside)
    _same(sight, found)
    told = found.began or sight.time
    if not (told or found.ended):
        raise ValueError("says no time at which it was measured")
    length = timedelta(seconds=float(found.covariates["duration"]))
    ended = when(found.ended, file.zone) if found.ended else None
    began = ended - length if ended is not None else when(told, file.zone)
    facts = {**found.covariates, **file.facts}
    if sight.time and file.zone and ended is not None:
        facts["outside"] = _outside(when(sight.time, file.zone), began)
    facts["hardware"] = facts.get("hardware") or str(commands.get("gpu_type") or "").strip()
    if facts.get("warmups") is None:
        facts["warmups"] = commands.get("warmups", _warmups(build, began))
    return Point(
        build=build,
        workload=_workload(sight, commands, found),
        began=stamp(began),
        ended=stamp(ended or began + length),
        values=found.values,
        covariates=known(facts),
        raw=file.place,
        record=record,
    )


def _outside(started: datetime, began: datetime) -> float | None:
    """Seconds from the start that the file's name says to that of the run; None where that is none."""
    seconds = (began - started).total_seconds()
    return round(seconds, 1) if seconds > 0 else None


def _rejection(
    build: Build, found: UnusableResult, file: StoredFile, record: int, document: object
) -> RejectedResult:
    """With the cell and the night that the result or the file's name says; else they are empty."""
    told = document[record] if isinstance(document, list) and document else document
    cell, night = published.cell_and_night(told)
    sight = _sight(file.name.rsplit("/", 1)[-1])
    if not night and sight.time:
        night = stamp(when(sight.time, file.zone or timezone.utc))[:10]
    if not cell and sight.fields:
        cell = _named(sight)
    return RejectedResult(build, found.fate, found.reason, file.place, record, cell=cell, night=night)


def _named(sight: ReportedWorkload) -> str:
    """The cell that a file's name alone says."""
    concurrency, rate, prompts = (
        sight.fields[name] for name in ("max_concurrency", "request_rate", "num_prompts")
    )
    return Workload(
        test=sight.test,
        dataset=str(sight.fields["dataset_name"]),
        concurrency=concurrency if isinstance(concurrency, int) else None,
        rate=rate if isinstance(rate, float) else math.inf,
        prompts=prompts if isinstance(prompts, int) else 0,
        lengths=_lengths(sight.arguments),
    ).cell


def _lengths(arguments: Mapping[str, object]) -> str:
    return "-".join(f"{short}{arguments[name]}" for short, name in _LENGTHS if name in arguments)


def _workload(sight: ReportedWorkload, commands: Mapping[str, Any], found: ParsedResult) -> Workload:
    arguments = {**commands.get("arguments", {}), **sight.arguments}
    dataset = sight.fields.get("dataset_name") or commands.get("dataset") or ""
    return Workload(
        test=found.test or sight.test,
        dataset=found.setting or str(dataset),
        concurrency=found.concurrency,
        rate=found.rate,
        prompts=found.prompts,
        lengths=_lengths(arguments) or found.lengths,
        only_text=found.only_text,
        model=found.model,
        backend=found.backend,
        digest=found.digest,
    )


def _sight(name: str) -> ReportedWorkload:
    """What a file's name says; of a name that follows no rule the test, without its load and time."""
    try:
        return parse_result_name(name)
    except UsageError:
        stem = name.removesuffix(".json")
        return ReportedWorkload(name, {}, WORKLOAD_PARTS, _TAIL.sub("", stem) or stem)


def _same(sight: ReportedWorkload, found: ParsedResult) -> None:
    """:raises ValueError: the name says another load than the result."""
    told: dict[str, object] = {
        "num_prompts": found.prompts,
        "max_concurrency": found.concurrency,
        "request_rate": found.rate,
    }
    for name, value in told.items():
        if name in sight.fields and sight.fields[name] != value:
            raise ValueError(f"the file's name says {name} {sight.fields[name]}, the result {value}")


def _commands(text: str) -> Mapping[str, Any]:
    """What the commands beside a result say: device, data set, lengths, warm-ups; empty without them."""
    try:
        document = json.loads(text) if text else {}
        seen = parse_command(str(document["client_command"])) if document else None
    except (ValueError, KeyError, TypeError, UsageError):
        return {}
    if seen is None:
        return {}
    return {
        "gpu_type": document.get("gpu_type"),
        "dataset": seen.fields.get("dataset_name"),
        "warmups": seen.fields.get("num_warmups"),
        "arguments": seen.arguments,
    }


def _warmups(build: Build, began: datetime) -> int | None:
    """Of vLLM-Omni's nightly by its date; None where it is not known."""
    if not kanban.of_nightly(build):
        return None
    fixed = moment(build.fixed) if build.fixed else began
    return WARMUPS if NIGHTLY_ERAS[-1].reached(stamp(fixed)) else 0


_AHEAD = timedelta(days=1)
"""How far a result's clock may be ahead of ours: zones are mistaken more often than years."""


@dataclass(frozen=True)
class IngestResult:
    """What an ingest brought: files by what became of them, and of the builds that were sorted again their
    points and what was no point, by its fate, with one of each."""

    builds: int = 0
    files: Counter[str] = field(default_factory=Counter)
    points: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    examples: Mapping[str, RejectedResult] = field(default_factory=dict)

    def with_files(self, told: Counter[str], builds: int) -> IngestResult:
        return replace(self, builds=self.builds + builds, files=self.files + told)


def ingest(
    store: SeriesStore, arguments: Sequence[str], asked: IngestOptions, *, source: str | None = None
) -> IngestResult:
    """Brings in what is new at each path or address, and sorts the builds that it changes.

    A path is brought in whole or not at all; of a service what came before a failure is kept.

    :raises UsageError, LocatedError: a place that is none, a file whose time has no zone, a build that is
        there twice.
    :raises MachineError: a folder, a service or the store fails.
    """
    done = IngestResult()
    for argument in arguments:
        done = _one(store, source_of(argument, source), argument, asked, done)
    return _sorted(store, done, asked.now + _AHEAD if asked.now else None)


def _one(
    store: SeriesStore, source: ResultSource, argument: str, asked: IngestOptions, done: IngestResult
) -> IngestResult:
    limited = replace(asked, finished=store.whole_builds())
    known = store.known()
    with nullcontext() if source.remote else store.transaction():
        for batch in source.batches(argument, limited):
            read = _read(batch, known) if source.remote else None
            with store.transaction() if source.remote else nullcontext():
                done = done.with_files(_keep(store, batch, known, read), 1)
    return done


def _read(batch: SourceBuild, known: dict[str, tuple[int, str]]) -> dict[str, tuple[str, str]]:
    """What is fetched is fetched before the store is held."""
    return {file.place: file.read() for file in batch.files if known.get(file.place) != _seen(file, batch)}


def _seen(file: SourceFile, batch: SourceBuild) -> tuple[int, str]:
    return file.size, f"{file.version} {_zone_name(batch.zone)}"


def _keep(
    store: SeriesStore,
    batch: SourceBuild,
    known: dict[str, tuple[int, str]],
    read: dict[str, tuple[str, str]] | None,
) -> Counter[str]:
    told: Counter[str] = Counter()
    number = store.keep_build(batch.build, whole=batch.whole, logs=batch.logs)
    for file in batch.files:
        size, version = _seen(file, batch)
        if known.get(file.place) == (size, version):
            told["unchanged"] += 1
            continue
        text, beside = file.read() if read is None else read[file.place]
        document = _document(text)
        try:
            check_zone(document, batch.zone)
        except NoZoneError as error:
            raise LocatedError(
                f"{error}: nothing was ingested from there",
                file=file.place,
                field="date",
                allowed="a time with its zone, or --zone",
                next_step="add --zone UTC, or the zone of the machine that measured: --zone Asia/Shanghai",
            ) from None
        except ValueError:
            pass  # It is sorted as broken, with its reason.
        told[
            store.keep_file(
                number, name=file.name, place=file.place, size=size, version=version, text=text,
                document=document, beside=beside, zone=_zone_name(batch.zone), facts=file.facts,
            )
        ] += 1  # fmt: skip
    return told


def _document(text: str) -> object:
    try:
        return read_document(text)
    except ValueError:
        return None


def _sorted(store: SeriesStore, done: IngestResult, latest: datetime | None) -> IngestResult:
    """Makes the points of every build of which something is new, also by an ingest that was cut short."""
    points, rejected, examples = 0, Counter[str](), dict[str, RejectedResult]()
    with store.transaction():
        for number, build in store.unsorted():
            same = store.same(number)
            files = [
                StoredFile(
                    row.name, row.place, row.text, row.beside,
                    zone_of(row.zone) if row.zone else None, row.facts, _twin(row.id, same.get(row.id)),
                )
                for row in store.files(number)
            ]  # fmt: skip
            admitted, others = sort_build(build, files, latest)
            store.sorted_build(number, admitted, others)
            points += len(admitted)
            rejected.update(other.fate for other in others)
            for other in others:
                examples.setdefault(other.fate, other)
    return replace(done, points=points, rejected=rejected, examples=examples)


def _twin(file: int, places: dict[FileLocation, tuple[int, str]] | None) -> str:
    """Where the same content counts, if not here."""
    if places is None:
        return ""
    number, path = places[preferred_location(places)]
    return "" if number == file else path


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


def ingest_document(store: SeriesStore, done: IngestResult) -> TrackIngestDocument:
    """Summary of an ingest and of the store after it."""
    builds = store.builds()
    fates = tuple(
        FateDocument(fate=fate, count=count, reason=done.examples[fate].reason, file=done.examples[fate].raw)
        for fate, count in done.rejected.most_common()
    )
    return TrackIngestDocument(
        store=str(store.path),
        builds=done.builds,
        new=done.files["new"],
        changed=done.files["changed"],
        unchanged=done.files["unchanged"],
        duplicates=done.files["duplicate"],
        points=done.points,
        rejected=fates,
        cells=len(store.cells()),
        builds_not_of_main=sum(build.of_main is False for build in builds),
        builds_of_unknown_branch=sum(build.of_main is None for build in builds),
    )


def ingest_report(document: TrackIngestDocument) -> Report:
    """Report of ``track ingest``."""
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


def zone_of(name: str) -> tzinfo:
    """``UTC``, ``Asia/Shanghai`` -> the zone. :raises UsageError: there is none of that name."""
    if name.upper() in ("UTC", "Z"):
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"{name!r} is no time zone that this machine knows", next_step="such as --zone UTC"
        ) from None


def _zone_name(zone: tzinfo | None) -> str:
    if zone is None:
        return ""
    return "UTC" if zone is timezone.utc else str(zone)
