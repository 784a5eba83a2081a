"""Recorded points: results measured elsewhere, with their workload, build and machine.

Launch and provenance of a point are partly unknown, so it makes series and is never pooled with attempts.
Nights are numbers, days since 1970-01-01: a missing one is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from perfbisect.common.quantities import moment
from perfbisect.model.commit_details import Evidence
from perfbisect.model.metric import MetricRef, find_metric

_FIRST = date(1970, 1, 1)


def day_number(night: str) -> int:
    """``2026-04-12`` -> days since 1970-01-01."""
    return (date.fromisoformat(night) - _FIRST).days


def night_of(number: int) -> str:
    """Days since 1970-01-01 -> ``2026-04-12``."""
    return date.fromordinal(_FIRST.toordinal() + number).isoformat()


Night = Annotated[
    int,
    BeforeValidator(lambda night: day_number(night) if isinstance(night, str) else night),
    PlainSerializer(night_of),
    WithJsonSchema({"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}),
]
"""A night, in JSON as ``2026-04-12``."""

MAIN = ("main", "master")
"""Names of the branch whose builds are nightlies of the product."""

_ABBREVIATED = 7

RejectionKind = Literal[
    "broken",
    "other",
    "template",
    "failed",
    "silent",
    "repeated",
    "ambiguous",
    "twin",
    "unmeasured",
    "older",
    "mislabelled",
]
"""Why a result is no point; docs/track.md explains each."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a result and the name of its file say of the workload; not all of what makes a cell.

    ``lengths``: ``in2500-out900``. ``only_text``: the answers of a chat that can speak were text alone.
    ``digest``: of the cell, if the result has it. ``rate``: requests a second, infinite where the load is a
    concurrency. Without load and lengths the test's name is the cell's.
    """

    test: str
    dataset: str = ""
    concurrency: int | None = None
    rate: float = math.inf
    prompts: int = 0
    lengths: str = ""
    only_text: bool = False
    model: str = ""
    backend: str = ""
    digest: str = ""

    @property
    def cell(self) -> str:
        """The name of the cell: ``qwen3_tts/random@c4-n40``."""
        stem = f"{self.test}/{self.dataset}" if self.dataset else self.test
        load = [] if self.concurrency is None else [f"c{self.concurrency}"]
        if self.rate != math.inf:
            load.append(f"r{self.rate}")
        if self.prompts:
            load = [*(load or ["rinf"]), f"n{self.prompts}"]
        parts = [*load, *filter(None, [self.lengths])]
        return (f"{stem}@{'-'.join(parts)}" if parts else stem) + ("-text" if self.only_text else "")


@dataclass(frozen=True, slots=True)
class Build:
    """One night's work of a pipeline, or what stands for it.

    ``pipeline``: what numbers ``name``. ``fixed``: when the commit was chosen, ISO 8601 in UTC. ``fixed``,
    ``commit`` and ``branch`` are empty where they are not known.
    """

    source: str
    pipeline: str
    name: str
    commit: str = ""
    branch: str = ""
    fixed: str = ""
    url: str = ""

    @property
    def key(self) -> str:
        return f"{self.pipeline}#{self.name}"

    @property
    def of_main(self) -> bool | None:
        """Whether it is a build of the main branch; None: not known."""
        return self.branch in MAIN if self.branch else None

    @property
    def is_numbered(self) -> bool:
        """Whether a pipeline counts it."""
        return self.source in ("kanban", "buildkite") and self.name.isdigit()


@dataclass(frozen=True)
class RawFile:
    """A result file as it is stored.

    ``name``: path inside its build; ``place``: full path or address. ``beside``: the commands that made it.
    ``zone``: name of the time zone of times without one. ``facts``: covariates that the source knows.
    ``duplicate_of``: where the same content counts, if not here.
    """

    name: str
    place: str
    text: str
    beside: str = ""
    zone: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    duplicate_of: str = ""


@dataclass(frozen=True)
class RejectedResult:
    """A result that is no point, and why. ``raw``: its file, ``record``: its place in it."""

    build: Build
    kind: RejectionKind
    why: Evidence
    raw: str
    record: int = 0
    cell: str = ""
    night: str = ""


def message_of(text: object) -> Evidence:
    """Why a result is no point, in the words of an error."""
    return Evidence("message", {"message": str(text)})


ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedResult(Generic[ValueT]):
    """What a document says of one result.

    ``began``, ``ended``: as the document has them, with or without a zone; one may be empty. ``values`` may
    have the document's names and units.
    """

    workload: Workload
    began: str = ""
    ended: str = ""
    values: Mapping[str, ValueT]
    covariates: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(ReportedResult[float]):
    """One cell's result in one build.

    ``began``, ``ended``: ISO 8601 in UTC; ``night``: the day (UTC) on which the build's first result began.
    ``values``: metric -> value, named and in the units of the metric table (``ttft:median``).
    ``start``: the server start, which other cells may share. ``raw``: its file, ``record``: its place in it.

    ``covariates`` are not judged, causes are read from them; unknown ones are left out:
    ``duration`` of the run and seconds ``outside`` it since the client's start; requests ``completed``,
    ``failed``, requested (``prompts``), sent before (``warmups``), at once (``max_concurrent_requests``);
    mean ``input_tokens`` and ``output_tokens``, median ``audio_duration``; digests of the ``client`` (or its
    era), of the names in the result (``keys``), of the serve arguments (``server``), of the cells that share
    its server (``suite``); ``converted`` names; the ``baseline`` of the nightly; the ``commits`` that the
    result says it measured, by its keys, the surest first; ``machine`` of a fleet,
    ``runs`` of a sweep; ``host``, ``hardware``, ``engine``, ``torch``, ``image`` (with ``{sha}`` for the
    commit), ``job``.
    """

    build: Build
    night: str = ""
    start: str = ""
    raw: str = ""
    record: int = 0

    @property
    def cell(self) -> str:
        return self.workload.cell

    @property
    def moment(self) -> datetime:
        return moment(self.began)

    @property
    def order(self) -> tuple[str, str, str, str, int]:
        """Sort key: by cell, then by night and time; builds that overlap at midnight are apart."""
        return self.cell, self.night, self.began, self.raw, self.record

    @property
    def hardware(self) -> str:
        """The kind of machine as the source calls it; empty where it is not known."""
        return str(self.covariates.get("hardware") or "")

    @property
    def machine(self) -> str:
        """The machine of a fleet, by its name there; empty where there was none."""
        return str(self.covariates.get("machine") or "")

    @property
    def host(self) -> str:
        return str(self.covariates.get("host") or "")

    @property
    def baselines(self) -> dict[str, float]:
        """What the nightly compared with, by its own names; of several devices those of the point's own."""
        named = list[tuple[str, object]]()
        for name, value in (self.covariates.get("baseline") or {}).items():
            device, _, inner = name.rpartition(".")
            if isinstance(value, Mapping):
                named += value.items() if name == self.hardware else ()
            elif not self.hardware or device in ("", self.hardware):
                named.append((inner, value))
        # A bool is an int to Python, and no baseline.
        numbers = ((name, value) for name, value in named if isinstance(value, int | float))
        return {name: float(value) for name, value in numbers if not isinstance(value, bool) and value > 0}

    @property
    def other_commit(self) -> Evidence | None:
        """The commit that the result surely measured instead of its build's; None: it may be the same."""
        label, stated = self.build.commit.lower(), self.covariates.get("commits") or {}
        key, commit = next(iter(stated.items()), ("", ""))
        # Either may be abbreviated; git abbreviates to seven digits at least.
        digits = min(len(label), len(commit))
        if digits < _ABBREVIATED or label[:digits] == commit[:digits].lower():
            return None
        return Evidence("another commit", {"label": label, "measured": commit, "key": key})

    def metrics(self) -> Iterator[tuple[MetricRef, float]]:
        """The values of metrics that the table knows, by name."""
        for name, value in sorted(self.values.items()):
            if (ref := find_metric(name)) is not None:
                yield ref, value

    def rejected(self, kind: RejectionKind, why: Evidence) -> RejectedResult:
        """The same result as one that is no point."""
        night = self.night or self.began[:10]
        return RejectedResult(self.build, kind, why, self.raw, self.record, self.cell, night)


ALONE = "alone"
"""The suite of a cell that shares its server's starts with no other."""


def known(covariates: Mapping[str, Any]) -> dict[str, Any]:
    """Covariates without those that say nothing: None, empty text, empty lists and mappings."""
    return {name: value for name, value in covariates.items() if value not in (None, "", [], {})}
