"""Points of a cell -> the series of its metrics, with their discontinuities and hints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import median
from typing import Any, Literal

import numpy as np

from perfbisect.model.attempt import is_same_class
from perfbisect.model.commit_details import Evidence
from perfbisect.model.metric import Metric, MetricRef, parse_metric
from perfbisect.series.points import ALONE, Point, day_number
from perfbisect.series.sources.kanban import of_nightly
from perfbisect.serving.eras import DIFFUSION_ERAS, NIGHTLY_ERAS, OMNI_ERAS, Era
from perfbisect.stats.robust import Array
from perfbisect.stats.two_sample import Scale

StatisticKind = Literal["typical", "mean", "tail"]
"""Of a metric of requests: its median, its mean, a percentile. A metric that is one number is typical."""

DiscontinuityKind = Literal[
    "digest", "model", "server", "instrument", "workload", "keys", "warmups", "environment"
]

ENVIRONMENT = ("image", "torch")
"""Covariates of what the engine ran in."""

_SAME_TOKENS = 0.02
"""By how much, relatively, the mean prompt of one workload differs between nights at least."""

_UNUSUAL = 5.0
"""How many times the usual difference between nights is unusual, where a workload draws its prompts anew."""


HEADLINES = ("audio_ttfp", "ttft", "latency", "image_generation", "video_generation", "e2el")
"""The metric by which a cell is shown and compared where none is named: the first that it reports."""


@dataclass(frozen=True)
class Discontinuity:
    """Something changed between ``index`` - 1 and ``index``. ``change``: what was before and after."""

    index: int
    kind: DiscontinuityKind
    change: Evidence


@dataclass(frozen=True)
class CellSeries:
    """One metric of one cell over time, oldest first; all sequences have one length.

    ``metric``: with its statistic (``ttft:p99``), the bare name for the median. ``values`` are in its unit.
    ``nights``: days counted from 1970-01-01 (UTC), so that a missing night is a gap. ``boundaries``: nothing
    is compared across them. ``hints``: what else changed beside it, from which a cause may be read.
    ``lacking``: points of the cell between the first and the last of these that do not report the metric.
    """

    cell: str
    metric: str
    part: StatisticKind
    row: Metric
    values: tuple[float, ...]
    nights: tuple[int, ...]
    points: tuple[Point, ...]
    boundaries: tuple[Discontinuity, ...]
    hints: tuple[Discontinuity, ...]
    lacking: int

    @property
    def key(self) -> tuple[str, str]:
        return self.cell, self.metric

    @property
    def sign(self) -> int:
        """+1 where larger is worse."""
        return self.row.sign

    @property
    def scale(self) -> Scale:
        return Scale.of(self.row)

    @property
    def min_effect(self) -> float:
        return self.row.smallest_effect

    @property
    def group(self) -> str:
        """The kind of server start that measures it, every night the same: one group is one vote."""
        last = self.points[-1]
        suite, kind = last.covariates.get("suite", ALONE), "-text" if last.workload.only_text else ""
        machine = f"{_ON}{last.machine}" if last.machine else ""
        return f"{last.build.pipeline}/{last.workload.test if suite == ALONE else suite}{kind}{machine}"

    @property
    def covariates(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(point.covariates for point in self.points)

    @property
    def machines(self) -> tuple[str, ...]:
        """The host that measured each night; empty where it is not known."""
        return tuple(str(covariates.get("host") or "") for covariates in self.covariates)

    def levels(self, places: Sequence[int]) -> Array:
        """The values at these places on the metric's scale: logs, or shares as they are; larger is worse."""
        return self.scale.signed(np.array([self.values[place] for place in places]))

    def change(self, before: float, after: float) -> float:
        """A value against another: as a share, or the difference where the metric is itself a share."""
        return after - before if self.row.absolute else after / before - 1

    def segments(self) -> tuple[slice, ...]:
        """The stretches between boundaries: each is judged as a series of its own."""
        cuts = sorted({0, len(self.values), *(b.index for b in self.boundaries)})
        return tuple(slice(a, b) for a, b in pairwise(cuts))


def eras_of(point: Point) -> tuple[Era, ...]:
    """The eras of the instrument that measured a point: its client, and the harness that called it."""
    is_diffusion = any(key.startswith("latency:") for key in point.values)
    # The last era of the harness sends more warm-ups only where more than two requests are sent at once.
    is_filled = not is_diffusion and (point.workload.concurrency or 0) > 2
    harness = (NIGHTLY_ERAS if is_filled else NIGHTLY_ERAS[:-1]) if of_nightly(point.build) else ()
    if is_diffusion:
        return (*DIFFUSION_ERAS, *harness)
    is_omni = point.workload.backend.endswith(("-omni", "-speech"))
    return (*(OMNI_ERAS if is_omni else ()), *harness)


def build_series(
    points: Sequence[Point],
    eras: Callable[[Point], Sequence[Era]] = eras_of,
    *,
    metric: str = "",
    cell: str = "",
) -> tuple[CellSeries, ...]:
    """The series of one cell's points, by metric: the median first, then the mean, then the percentiles.

    ``eras``: the table of the instrument that measured a point, in order of time. ``metric``: this one alone.
    ``cell``: the name of the series, where it is not the points' own.
    """
    ordered = sorted(points, key=lambda point: point.order)
    wanted = str(parse_metric(metric)) if metric else ""
    columns: dict[MetricRef, dict[int, float]] = {}
    for index, point in enumerate(ordered):
        for ref, value in point.metrics():
            # A ratio needs a positive number; of a share zero is a value too.
            is_usable = math.isfinite(value) and (value > 0 or (ref.metric.absolute and value == 0))
            if is_usable and ref.statistic != "std" and wanted in ("", str(ref)):
                columns.setdefault(ref, {})[index] = value
    series = []
    # Most metrics of a cell are reported by the same points.
    tracks: dict[tuple[int, ...], _Track] = {}
    for ref, column in columns.items():
        places = tuple(column)
        if places not in tracks:
            own = tuple(ordered[index] for index in places)
            tracks[places] = _Track(
                points=own,
                nights=tuple(day_number(point.night) for point in own),
                marks=tuple(_marks(own, eras)),
                hints=tuple(sorted(_hints(own, eras), key=lambda hint: (hint.index, hint.kind))),
            )
        track = tracks[places]
        series.append(
            CellSeries(
                cell=cell or track.points[0].cell,
                metric=str(ref),
                part=part_of(ref.statistic),
                row=ref.metric,
                values=tuple(column.values()),
                nights=track.nights,
                points=track.points,
                boundaries=track.boundaries(ref.metric.name),
                hints=track.hints,
                lacking=max(column) - min(column) + 1 - len(column),
            )
        )
    rank = {"typical": 0, "mean": 1, "tail": 2}
    return tuple(sorted(series, key=lambda item: (rank[item.part], item.metric)))


@dataclass(frozen=True)
class _Track:
    """What the series of the same points share; ``marks``: with the era of the instrument behind it."""

    points: tuple[Point, ...]
    nights: tuple[int, ...]
    marks: tuple[tuple[Discontinuity, Era | None], ...]
    hints: tuple[Discontinuity, ...]

    def boundaries(self, metric: str) -> tuple[Discontinuity, ...]:
        return tuple(mark for mark, era in self.marks if era is None or era.touched(metric))


def nightly(series: CellSeries) -> CellSeries:
    """The same with one value a night: the median of those of a night, beside the last of its points."""
    places: dict[int, list[int]] = {}
    for place, night in enumerate(series.nights):
        places.setdefault(night, []).append(place)
    if len(places) == len(series.nights):
        return series
    kept = [places[night] for night in sorted(places)]
    index_of = {place: index for index, night_places in enumerate(kept) for place in night_places}

    def moved(marks: Sequence[Discontinuity]) -> tuple[Discontinuity, ...]:
        # A mark between two launches of one night has no place in a series of nights.
        across_nights = (mark for mark in marks if index_of[mark.index] != index_of[mark.index - 1])
        moved_marks = (replace(mark, index=index_of[mark.index]) for mark in across_nights)
        return tuple({str(mark): mark for mark in moved_marks}.values())

    return replace(
        series,
        values=tuple(median(series.values[place] for place in night_places) for night_places in kept),
        nights=tuple(sorted(places)),
        points=tuple(series.points[night_places[-1]] for night_places in kept),
        boundaries=moved(series.boundaries),
        hints=moved(series.hints),
    )


def part_of(statistic: str) -> StatisticKind:
    """What a statistic says of the requests of a metric."""
    if statistic in ("", "median", "p50"):
        return "typical"
    return "mean" if statistic == "mean" else "tail"


def _marks(
    points: Sequence[Point], eras: Callable[[Point], Sequence[Era]]
) -> Iterator[tuple[Discontinuity, Era | None]]:
    for index, (before, after) in enumerate(pairwise(points), start=1):
        a, b = before.workload, after.workload
        if a.digest and b.digest and a.digest != b.digest:
            change = Evidence("digest", {"after": b.digest[:12], "before": a.digest[:12]})
            yield Discontinuity(index, "digest", change), None
        if a.model and b.model and a.model != b.model:
            change = Evidence("model", {"after": b.model, "before": a.model})
            yield Discontinuity(index, "model", change), None
        left, right = before.covariates.get("server"), after.covariates.get("server")
        if left and right and left != right:
            yield Discontinuity(index, "server", Evidence("server arguments")), None
        for era in _new_eras(before, after, eras):
            change = Evidence("era", {"what": era.what, "by": era.change})
            yield Discontinuity(index, "instrument", change), era


def _new_eras(before: Point, after: Point, eras: Callable[[Point], Sequence[Era]]) -> list[Era]:
    """Eras that the later point is in and the earlier is not.

    A point is of the era of its commit where that is known: the instrument is part of it.
    """
    old, new = (point.build.fixed or point.began for point in (before, after))
    return [era for era in eras(after) if era.reached(new) and not era.reached(old)]


def _hints(points: Sequence[Point], eras: Callable[[Point], Sequence[Era]]) -> Iterator[Discontinuity]:
    yield from _prompt_hints(points, eras)
    for index, (before, after) in enumerate(pairwise(points), start=1):
        a, b = before.covariates, after.covariates
        if a.get("keys") != b.get("keys"):
            yield Discontinuity(index, "keys", Evidence("keys"))
        old, new = a.get("warmups"), b.get("warmups")
        if None not in (old, new) and old != new:
            yield Discontinuity(index, "warmups", Evidence("warmups", {"after": new, "before": old}))
        for name in ENVIRONMENT:
            old, new = a.get(name), b.get(name)
            if None not in (old, new) and old != new:
                change = Evidence("environment", {"name": name, "after": new, "before": old})
                yield Discontinuity(index, "environment", change)
        old, new = a.get("suite"), b.get("suite")
        if None not in (old, new) and old != new:
            yield Discontinuity(index, "server", Evidence("suite", {"is_alone": new == ALONE}))


def _prompt_hints(points: Sequence[Point], eras: Callable[[Point], Sequence[Era]]) -> Iterator[Discontinuity]:
    """Where the prompts got longer or shorter by more than they do from night to night.

    Where an era changed how tokens are counted, both sides are judged by themselves.
    """
    stretches: list[dict[int, tuple[float, float]]] = [{}]
    for index, (before, after) in enumerate(pairwise(points), start=1):
        if any(era.touched("input_tokens") for era in _new_eras(before, after, eras)):
            # Since 2026-04-08 vLLM-Omni counts images and sounds as input tokens: that jump is not a longer
            # prompt.
            stretches.append({})
            continue
        old, new = before.covariates.get("input_tokens"), after.covariates.get("input_tokens")
        if old and new:
            stretches[-1][index] = (old, new)
    for stretch in stretches:
        sizes = {index: abs(math.log(new / old)) for index, (old, new) in stretch.items()}
        # Data sets that draw prompts anew differ every night.
        usual = _UNUSUAL * median(sizes.values()) if sizes else 0.0
        for index, (old, new) in stretch.items():
            if sizes[index] > max(_SAME_TOKENS, usual):
                yield Discontinuity(index, "workload", Evidence("prompts", {"after": new, "before": old}))


_ON = " on "
"""Between the name of a cell and its machine, of every machine but the first."""


def machine_series(points: Iterable[Point]) -> Iterator[tuple[str, tuple[Point, ...]]]:
    """The points of each cell by machine, with a name: ``qwen3_tts@c4-n40 on H100``, ``... on box2``.

    Machines are those of a fleet, by their names, and kinds of machines elsewhere. The one that measured
    first keeps the cell's own name, so that its alerts stay when another comes.
    """
    for cell, group in groupby(sorted(points, key=lambda point: point.order), key=lambda point: point.cell):
        ordered = tuple(group)
        by_machine: dict[tuple[str, str], list[Point]] = {}
        for point, machine in zip(ordered, _machines(ordered), strict=True):
            by_machine.setdefault(machine, []).append(point)
        first_kind = next(iter(by_machine))[0]
        names: list[str] = []
        for (kind, fleet_name), own in by_machine.items():
            mark = fleet_name or (kind if kind != first_kind else own[0].host or kind)
            name = f"{cell}{_ON}{mark}" if names else cell
            names.append(f"{name}: {kind}" if name in names else name)
            yield names[-1], tuple(own)


def _machines(ordered: Sequence[Point]) -> Iterator[tuple[str, str]]:
    """The kind of machine of each point and, of a fleet, its name.

    Points without a kind count with the first. A class that does not name its processors, as those of before
    did not, goes on in the first that does. What a host measured before it was a machine of a fleet is its.
    """
    kinds: list[list[str]] = []
    for hardware in dict.fromkeys(point.hardware for point in ordered if point.hardware):
        same = (kind for kind in kinds if all(is_same_class(hardware, other) for other in kind))
        if (known := next(same, None)) is not None:
            known.append(hardware)
        else:
            kinds.append([hardware])
    first = kinds[0][0] if kinds else ""
    kind_of = {hardware: kind[0] for kind in kinds for hardware in kind}
    names = {point.host: point.machine for point in reversed(ordered) if point.machine and point.host}
    for point in ordered:
        yield kind_of.get(point.hardware, first), point.machine or names.get(point.host, "")


@dataclass(frozen=True)
class MachineSeriesStart:
    """Another machine, or kind of machine, begins to measure a cell: ``first`` is its first point, ``before``
    the last point of another."""

    name: str
    first: Point
    before: Point

    @property
    def change(self) -> Evidence:
        """What the two do not share: ``names`` in a fleet, and parts of the kind ``before`` and ``after``."""
        names = [point.machine or point.host for point in (self.before, self.first)]
        is_of_fleet = bool(self.before.machine or self.first.machine)
        if not is_of_fleet or names[0] == names[1]:
            names = []
        before, after = self.before.hardware.split(", "), self.first.hardware.split(", ")
        old, new = [x for x in before if x not in after], [x for x in after if x not in before]
        if old or new or not names:
            old, new = old or before, new or after
        return Evidence("machine", {"names": names, "before": old, "after": new})


def machine_series_starts(points: Iterable[Point]) -> Iterator[MachineSeriesStart]:
    """Where another machine began to measure a cell: an update of the driver makes one too.

    Of a fleet not one that measures it beside others, on the same night.
    """
    # Points without a kind count with the first, so that they begin no series.
    named = tuple(point for point in points if point.hardware)
    for name, own in machine_series(named):
        first, mine = own[0], {id(point) for point in own}
        others = [point for point in named if point.cell == first.cell and id(point) not in mine]
        earlier = [point for point in others if point.order < first.order]
        is_beside = first.machine and any(point.night == first.night for point in others)
        if earlier and not is_beside:
            yield MachineSeriesStart(name, first, max(earlier, key=lambda point: point.order))


def cell_of_series(name: str) -> str:
    """The cell of a machine series' name."""
    return name.partition(_ON)[0]
