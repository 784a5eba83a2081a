"""A reported point: a result that was measured elsewhere, with what is known of how.

Its launch and provenance are partly unknown, so it makes series and is never pooled with attempts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any, Literal

from perfbisect.common.durations import moment

MAIN = ("main", "master")
"""Names of the branch whose builds are nightlies of the product."""

RejectionReason = Literal[
    "broken", "other", "template", "failed", "silent", "repeated", "ambiguous", "twin", "unmeasured", "older"
]
"""Why a result is no point.

``broken``: not whole, or its numbers contradict each other. ``other``: no result of a benchmark.
``template``: the form of zeros that a harness writes where a benchmark left none. ``failed``: requests failed
or were not sent. ``silent``: sound was asked for and none came. ``repeated``: a later result of the same cell
in the same build. ``ambiguous``: two workloads under one name. ``twin``: the same file in another layout.
``unmeasured``: an attempt of ours that failed. ``older``: a summary without cells and requests.
"""


@dataclass(frozen=True)
class Workload:
    """What a result and the name of its file say of the workload; not all of what makes a cell.

    ``lengths``: ``in2500-out900`` where the name says them. ``only_text``: the answers of a chat that can
    speak were text alone. ``digest``: of the cell, where the result was stamped with it. ``rate`` is in
    requests a second, infinite where the load is a concurrency. Without ``prompts`` the test's name is whole.
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
        """The name of the cell: ``qwen3_tts/random@c4-n40``; one name is one workload, as far as is known."""
        stem = f"{self.test}/{self.dataset}" if self.dataset else self.test
        if not self.prompts:
            return stem
        parts = [] if self.concurrency is None else [f"c{self.concurrency}"]
        if self.rate != math.inf:
            parts.append(f"r{self.rate}")
        parts = parts or ["rinf"]
        parts += [f"n{self.prompts}", *filter(None, [self.lengths])]
        return f"{stem}@{'-'.join(parts)}" + ("-text" if self.only_text else "")


@dataclass(frozen=True)
class Build:
    """One night's work of a pipeline, or what stands for it.

    ``pipeline`` says whose numbers ``name`` counts. ``fixed``: when the commit was chosen, ISO 8601 in UTC;
    empty where that is not known, as are ``commit`` and ``branch``.
    """

    source: str
    pipeline: str
    name: str
    commit: str = ""
    branch: str = ""
    fixed: str = ""
    state: str = ""
    url: str = ""
    message: str = ""

    @property
    def key(self) -> str:
        return f"{self.pipeline}#{self.name}"

    @property
    def of_main(self) -> bool | None:
        """True: a build of the main branch; None: not known."""
        return self.branch in MAIN if self.branch else None


@dataclass(frozen=True)
class Point:
    """One cell's result in one build.

    ``began`` and ``ended`` are ISO 8601 in UTC, ``night`` is the day (UTC) on which the build's first result
    began. ``values``: metric -> value, named and in the units of the metric table (``ttft:median``).
    ``covariates``: see ``COVARIATES``. ``start`` names the server start that it shares with other cells.
    ``raw`` is the file, ``record`` its place in it.
    """

    build: Build
    workload: Workload
    began: str
    ended: str
    values: Mapping[str, float]
    covariates: Mapping[str, Any] = field(default_factory=dict)
    night: str = ""
    start: str = ""
    raw: str = ""
    record: int = 0

    @property
    def cell(self) -> str:
        return self.workload.cell

    @property
    def moment(self) -> datetime:
        """When it began."""
        return moment(self.began)


@dataclass(frozen=True)
class RejectedResult:
    """A result that is no point, and why. ``raw`` is the file, ``record`` its place in it."""

    build: Build
    fate: RejectionReason
    reason: str
    raw: str
    record: int = 0
    cell: str = ""
    night: str = ""


ALONE = "alone"
"""The suite of a cell that shares its server's starts with no other."""

COVARIATES: Mapping[str, str] = {
    "duration": "seconds of the run by the clock",
    "outside": "seconds from when the client was started to its result, without the run itself",
    "completed": "requests that were answered",
    "failed": "requests that were not",
    "prompts": "requests that were asked for",
    "input_tokens": "tokens of a prompt, the mean",
    "output_tokens": "tokens of an answer, the mean",
    "audio_duration": "seconds of sound of an answer, the median",
    "max_concurrent_requests": "most requests at once",
    "warmups": "requests that were sent before and not counted",
    "client": "the load generator: its declared era, else its digest",
    "keys": "digest of the names in the result: another one is another instrument",
    "server": "digest of the serve arguments, where the result has them",
    "suite": "digest of the server whose starts other cells share, ``alone`` where none does",
    "converted": "names that were in another unit, and are converted",
    "baseline": "what the nightly compared with, as the file has it",
    "host": "where it ran",
    "hardware": "the device, as the source calls it",
    "engine": "version of the engine",
    "job": "the job of the build that measured it",
}
"""What may stand beside a point's values, and what it is: what is not known is left out.

None of it is judged; causes are read from it.
"""


def known(covariates: Mapping[str, Any]) -> dict[str, Any]:
    """Covariates without those that say nothing: None, empty text, empty lists and mappings."""
    return {name: value for name, value in covariates.items() if value not in (None, "", [], {})}


ON = " on "
"""Between the name of a cell and the kind of machine, of every kind but the first."""


def machine_series(points: Iterable[Point]) -> Iterator[tuple[str, tuple[Point, ...]]]:
    """The points of each cell by kind of machine, with a name: ``qwen3_tts@c4-n40 on H100``.

    The kind that measured first keeps the cell's own name, so that its alerts stay when another comes.
    Points that do not say their machine count with it.
    """
    for _, group in groupby(sorted(points, key=_place), key=lambda point: point.cell):
        ordered = tuple(group)
        kinds = dict.fromkeys(filter(None, map(machine_of, ordered)))
        first = next(iter(kinds), "")
        for kind in kinds or {"": None}:
            own = tuple(point for point in ordered if (machine_of(point) or first) == kind)
            yield (own[0].cell if kind == first else f"{own[0].cell}{ON}{kind}"), own


@dataclass(frozen=True)
class MachineSeriesStart:
    """Another kind of machine begins to measure a cell: ``first`` is its first point, ``before`` the last
    point of another kind."""

    name: str
    first: Point
    before: Point

    @property
    def what(self) -> str:
        """What the two kinds do not share: ``driver 550.54 -> driver 560.28``."""
        before, after = (machine_of(point).split(", ") for point in (self.before, self.first))
        gone, come = [x for x in before if x not in after], [x for x in after if x not in before]
        return f"{', '.join(gone or before)} -> {', '.join(come or after)}"


def machine_series_starts(points: Iterable[Point]) -> Iterator[MachineSeriesStart]:
    """Where another kind of machine began to measure a cell: an update of the driver makes one too."""
    named = tuple(point for point in points if machine_of(point))
    for name, own in machine_series(named):
        earlier = [p for p in named if p.cell == own[0].cell and _place(p) < _place(own[0])]
        if earlier:
            yield MachineSeriesStart(name, own[0], max(earlier, key=_place))


def _place(point: Point) -> tuple[str, str, str, int]:
    return point.cell, point.began, point.raw, point.record


def machine_of(point: Point) -> str:
    """The kind of machine as the source calls it; empty where it does not say."""
    return str(point.covariates.get("hardware") or "")


def cell_of_series(name: str) -> str:
    """The cell of a machine series' name."""
    return name.partition(ON)[0]


_UNLIKE = 2.0
"""How many times longer prompts are those of another workload: one that draws them anew varies by less."""


@dataclass(frozen=True)
class FileLocation:
    """A file with one content: its ``name`` in ``build``. ``numbered``: a pipeline counts the build."""

    build: str
    name: str
    numbered: bool


def preferred_location(places: Iterable[FileLocation]) -> FileLocation:
    """Which of the places of one content counts: in a numbered build before elsewhere, else by name."""
    return min(places, key=lambda place: (not place.numbered, place.build, place.name))


def admit_results(points: Sequence[Point]) -> tuple[tuple[Point, ...], tuple[RejectedResult, ...]]:
    """The results of one build -> its points with their night and server start, and what is none.

    Several results of one cell: the last of like ones counts, since a step that is run again replaces the
    first; where they are of unlike workloads neither does, since nothing tells which is which.
    """
    night = min((point.began for point in points), default="")[:10]
    by_cell: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda p: (p.began, p.raw, p.record)):
        by_cell.setdefault(point.cell, []).append(replace(point, night=night, start=_start(point)))
    admitted: list[Point] = []
    rejected: list[RejectedResult] = []
    for cell, found in by_cell.items():
        *earlier, last = found
        if earlier and last.build.source != "journal":
            unlike = next((p for p in earlier if not _alike(p, last)), None)
            if unlike is not None:
                rejected += [_rejection(p, "ambiguous", _two(unlike, last)) for p in found]
                continue
            rejected += [
                _rejection(p, "repeated", f"{cell} was measured again in this build: {last.raw}")
                for p in earlier
            ]
            found = [last]
        admitted += found
    return tuple(sorted(admitted, key=lambda p: (p.began, p.cell, p.raw))), tuple(rejected)


def _start(point: Point) -> str:
    """One server serves every workload of a test; that for text alone is another test of the same name."""
    if point.start:
        return point.start
    kind = "-text" if point.workload.only_text else ""
    return f"{point.build.key}/{point.workload.test}{kind}"


def _alike(a: Point, b: Point) -> bool:
    left, right = _prompt(a), _prompt(b)
    return a.workload == b.workload and not (left and right and max(left, right) > _UNLIKE * min(left, right))


def _prompt(point: Point) -> float:
    """Tokens of a prompt, the mean; 0 where it is not known."""
    return float(point.covariates.get("input_tokens") or 0)


def _two(a: Point, b: Point) -> str:
    other = a.workload != b.workload
    what = "models or backends differ" if other else f"prompts of {_prompt(a):g} and {_prompt(b):g} tokens"
    return f"two workloads under one name, {a.raw} and {b.raw}: {what}"


def _rejection(point: Point, fate: RejectionReason, reason: str) -> RejectedResult:
    return RejectedResult(point.build, fate, reason, point.raw, point.record, point.cell, point.night)
