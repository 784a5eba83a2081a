"""Runs of ours that were published in the kanban's format: by launch the same points as from the journals."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfbisect.clients.published import BLOCK, Origin, PublishedRun, origin_of
from perfbisect.core.attempt import Attempt, Provenance
from perfbisect.core.moments import moment, stamp
from perfbisect.core.point import Build, Fate, Point, Rejection
from perfbisect.errors import ClientError
from perfbisect.sources.journals import PIPELINE, point_of

SOURCE = "journal"
"""As of what kind builds of ours are kept: their launches are no repetitions of each other."""


@dataclass(frozen=True)
class Part:
    """A run that was read from a file of a build."""

    published: PublishedRun
    place: str
    record: int

    @property
    def origin(self) -> Origin:
        return self.published.origin

    def rejected(self, build: Build, fate: Fate, reason: str) -> Rejection:
        """As no point. :raises ValueError: its launch began at no time."""
        night = stamp(moment(self.origin.began))[:10]
        return Rejection(build, fate, reason, self.place, self.record, self.origin.cell, night)


def build_in(document: object) -> Build | None:
    """The build of ours that a result is of: the one that its journal is. None: it is none of ours."""
    record = document[0] if isinstance(document, list) and document else document
    if not isinstance(record, Mapping) or BLOCK not in record:
        return None
    try:
        origin = origin_of(record)
    except ClientError:
        return None
    return Build(SOURCE, PIPELINE, origin.job, commit=str(record.get("commit") or ""), fixed=origin.planned)


def launches(build: Build, parts: Sequence[Part], told: Collection[str] = ()) -> Iterator[Point | Rejection]:
    """The launches of a build from their runs. ``told``: server starts of which the journal itself told.

    A launch of which a run is missing is none: its mean would be another one.
    """
    found: dict[str, dict[int, Part]] = {}
    for part in parts:
        origin = part.origin
        runs = found.setdefault(origin.launch, {})
        if origin.start in told or origin.run in runs:
            where = "in the journal" if origin.start in told else runs[origin.run].place
            yield part.rejected(build, "twin", f"the same run of the same launch is {where}")
        else:
            runs[origin.run] = part
    for runs in found.values():
        if not runs:
            continue
        last = runs[max(runs)]
        origin = last.origin
        if len(runs) == origin.runs:
            ordered = [runs[run] for run in sorted(runs)]
            attempt = _attempt(ordered)
            yield point_of(build, origin.cell, origin.model, attempt, last.place, last.record)
        else:
            there = f"{len(runs)} of the {origin.runs} runs of its launch are there"
            yield last.rejected(build, "unmeasured", there)


def cell_and_night(record: object) -> tuple[str, str]:
    """Of a result of ours that is none: its cell and its night; empty of others."""
    if not isinstance(record, Mapping) or BLOCK not in record:
        return "", ""
    try:
        origin = origin_of(record)
        return origin.cell, stamp(moment(origin.began))[:10]
    except (ClientError, ValueError):
        return "", ""


def _attempt(parts: Sequence[Part]) -> Attempt:
    origin, last = parts[-1].origin, parts[-1].published
    return Attempt(
        id=origin.launch,
        change_id=last.commit,
        purpose="run",
        provenance=Provenance(
            cell_digest=origin.digest,
            machine_class=origin.machine,
            client_digest=origin.client,
            client_era=origin.era,
            engine_version=last.engine,
            facts={
                "machine": {"host": origin.host},
                "launch": {"id": origin.start, "suite": origin.suite or None},
            },
        ),
        runs=tuple(part.published.run for part in parts),
        started_at=origin.began,
    )
