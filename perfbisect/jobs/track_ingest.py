"""``perfbisect track ingest``: files of every source into the store, and the store's files into points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from perfbisect.core.admission import Place, first_place
from perfbisect.core.point import Rejection
from perfbisect.errors import LocatedError, UsageError
from perfbisect.render.track_documents import FateDocument, TrackIngestDocument
from perfbisect.sources import Asked, Batch, Listed, Source, source_of
from perfbisect.sources.sorting import File, NoZoneError, check_zone, read_document, sort_build
from perfbisect.store.series import SeriesStore

_AHEAD = timedelta(days=1)
"""How far a result's clock may be ahead of ours: zones are mistaken more often than years."""


@dataclass(frozen=True)
class Ingested:
    """What an ingest brought: files by what became of them, and of the builds that were sorted again their
    points and what was no point, by its fate, with one of each."""

    builds: int = 0
    files: Counter[str] = field(default_factory=Counter)
    points: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    examples: Mapping[str, Rejection] = field(default_factory=dict)

    def with_files(self, told: Counter[str], builds: int) -> Ingested:
        return replace(self, builds=self.builds + builds, files=self.files + told)


def ingest(
    store: SeriesStore, arguments: Sequence[str], asked: Asked, *, source: str | None = None
) -> Ingested:
    """Brings in what is new at each path or address, and sorts the builds that it changes.

    A path is brought in whole or not at all; of a service what came before a failure is kept.

    :raises UsageError, LocatedError: a place that is none, a file whose time has no zone, a build that is
        there twice.
    :raises MachineError: a folder, a service or the store fails.
    """
    done = Ingested()
    for argument in arguments:
        done = _one(store, source_of(argument, source), argument, asked, done)
    return _sorted(store, done, asked.now + _AHEAD if asked.now else None)


def _one(store: SeriesStore, source: Source, argument: str, asked: Asked, done: Ingested) -> Ingested:
    limited = replace(asked, finished=store.whole_builds())
    known = store.known()
    with nullcontext() if source.remote else store.transaction():
        for batch in source.batches(argument, limited):
            read = _read(batch, known) if source.remote else None
            with store.transaction() if source.remote else nullcontext():
                done = done.with_files(_keep(store, batch, known, read), 1)
    return done


def _read(batch: Batch, known: dict[str, tuple[int, str]]) -> dict[str, tuple[str, str]]:
    """What is fetched is fetched before the store is held."""
    return {file.place: file.read() for file in batch.files if known.get(file.place) != _seen(file, batch)}


def _seen(file: Listed, batch: Batch) -> tuple[int, str]:
    return file.size, f"{file.version} {_zone_name(batch.zone)}"


def _keep(
    store: SeriesStore,
    batch: Batch,
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


def _sorted(store: SeriesStore, done: Ingested, latest: datetime | None) -> Ingested:
    """Makes the points of every build of which something is new, also by an ingest that was cut short."""
    points, rejected, examples = 0, Counter[str](), dict[str, Rejection]()
    with store.transaction():
        for number, build in store.unsorted():
            same = store.same(number)
            files = [
                File(
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


def _twin(file: int, places: dict[Place, tuple[int, str]] | None) -> str:
    """Where the same content counts, if not here."""
    if places is None:
        return ""
    number, path = places[first_place(places)]
    return "" if number == file else path


def ingest_document(store: SeriesStore, done: Ingested) -> TrackIngestDocument:
    """What an ingest brought, and how the store stands now."""
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
        elsewhere=done.files["elsewhere"],
        points=done.points,
        rejected=fates,
        cells=len(store.cells()),
        builds_not_of_main=sum(build.of_main is False for build in builds),
        builds_of_unknown_branch=sum(build.of_main is None for build in builds),
    )


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
