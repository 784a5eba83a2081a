"""Points of a cell -> the series of its metrics, with what stands beside them and where they break."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from perfbisect.errors import UsageError
from perfbisect.model.metric import Metric, parse_metric
from perfbisect.series.points import ALONE, Point
from perfbisect.serving.eras import Era

BuildRun = Literal["typical", "mean", "tail"]
"""Of a metric of requests: its median, its mean, a percentile. A metric that is one number is typical."""

DiscontinuityKind = Literal["digest", "model", "server", "instrument", "workload", "keys", "warmups"]

_SAME_TOKENS = 0.02
"""By how much, relatively, the mean prompt of one workload differs between nights at least."""

_UNUSUAL = 5.0
"""How many times the usual difference between nights is unusual, where a workload draws its prompts anew."""


HEADLINES = ("audio_ttfp", "ttft", "latency", "image_generation", "video_generation", "e2el")
"""The metric by which a cell is shown and compared where none is named: the first that it reports."""


@dataclass(frozen=True)
class Discontinuity:
    """Something changed between ``index`` - 1 and ``index``. ``what``: in words."""

    index: int
    kind: DiscontinuityKind
    what: str


@dataclass(frozen=True)
class CellSeries:
    """One metric of one cell over time, oldest first; all sequences have one length.

    ``metric``: with its statistic (``ttft:p99``), the bare name for the median. ``values`` are in its unit.
    ``nights``: days counted from 1970-01-01 (UTC), so that a missing night is a gap. ``starts``: which
    server start measured it; equal ones are one vote. ``sign`` is +1 where larger is worse. ``absolute``: the
    smallest effect and a change are differences, not ratios. ``boundaries``: the series is another one since,
    never scored across. ``hints``: what else changed beside it, from which a cause may be read: the length of
    the prompts, the names in the result, the warm-ups. ``lacking``: points of the cell between the first and
    the last of these that do not report the metric.
    """

    cell: str
    metric: str
    part: BuildRun
    row: Metric
    values: tuple[float, ...]
    nights: tuple[int, ...]
    starts: tuple[str, ...]
    points: tuple[Point, ...]
    boundaries: tuple[Discontinuity, ...]
    hints: tuple[Discontinuity, ...]
    lacking: int

    @property
    def key(self) -> tuple[str, str]:
        return self.cell, self.metric

    @property
    def sign(self) -> int:
        return self.row.sign

    @property
    def min_effect(self) -> float:
        return self.row.smallest_effect

    @property
    def group(self) -> str:
        """The kind of server start that measures it, every night the same: one group is one vote."""
        last = self.points[-1]
        suite, kind = last.covariates.get("suite", ALONE), "-text" if last.workload.only_text else ""
        return f"{last.build.pipeline}/{last.workload.test if suite == ALONE else suite}{kind}"

    @property
    def builds(self) -> tuple[str, ...]:
        """Names of the builds."""
        return tuple(point.build.name for point in self.points)

    @property
    def covariates(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(point.covariates for point in self.points)

    @property
    def of_main(self) -> tuple[bool | None, ...]:
        """For each point whether its build is of the main branch; None: not known."""
        return tuple(point.build.of_main for point in self.points)

    def segments(self) -> tuple[slice, ...]:
        """The stretches between boundaries: each is a series of its own for whoever scores."""
        cuts = sorted({0, len(self.values), *(b.index for b in self.boundaries)})
        return tuple(slice(a, b) for a, b in pairwise(cuts))


def build_series(
    points: Sequence[Point], eras: Callable[[Point], Sequence[Era]], *, metric: str = "", cell: str = ""
) -> tuple[CellSeries, ...]:
    """The series of one cell's points, by metric: the median first, then the mean, then the percentiles.

    ``eras``: the table of the instrument that measured a point, in order of time. ``metric``: this one alone.
    ``cell``: the name of the series, where it is not the points' own.

    :raises UsageError: there is no such metric.
    """
    ordered = sorted(points, key=lambda p: (p.began, p.raw, p.record))
    wanted = {str(parse_metric(metric))} if metric else None
    found: list[CellSeries] = []
    for key in _keys(ordered):
        ref = parse_metric(key)
        name = str(ref)
        if (wanted is not None and name not in wanted) or ref.statistic == "std":
            continue
        having = [i for i, point in enumerate(ordered) if _usable(point.values.get(key), ref.metric)]
        if not having:
            continue
        kept = [ordered[i] for i in having]
        found.append(
            CellSeries(
                cell=cell or kept[0].cell,
                metric=name,
                part=part_of(ref.statistic),
                row=ref.metric,
                values=tuple(point.values[key] for point in kept),
                nights=tuple(day_number(point.night) for point in kept),
                starts=tuple(point.start for point in kept),
                points=tuple(kept),
                boundaries=_boundaries(kept, ref.metric.name, eras),
                hints=_hints(kept, eras),
                lacking=having[-1] - having[0] + 1 - len(having),
            )
        )
    rank = {"typical": 0, "mean": 1, "tail": 2}
    return tuple(sorted(found, key=lambda s: (rank[s.part], s.metric)))


def nightly(series: CellSeries) -> CellSeries:
    """The same with one value a night: the median of those of a night, beside the last of its points."""
    places: dict[int, list[int]] = {}
    for place, night in enumerate(series.nights):
        places.setdefault(night, []).append(place)
    if len(places) == len(series.nights):
        return series
    kept = [places[night] for night in sorted(places)]

    def moved(marks: tuple[Discontinuity, ...]) -> tuple[Discontinuity, ...]:
        at = {place: index for index, found in enumerate(kept) for place in found}
        return tuple(
            dict.fromkeys(replace(m, index=at[m.index]) for m in marks if at[m.index] != at[m.index - 1])
        )

    return replace(
        series,
        values=tuple(median(series.values[i] for i in found) for found in kept),
        nights=tuple(sorted(places)),
        starts=tuple(series.starts[found[-1]] for found in kept),
        points=tuple(series.points[found[-1]] for found in kept),
        boundaries=moved(series.boundaries),
        hints=moved(series.hints),
    )


def day_number(night: str) -> int:
    """``2026-04-12`` -> days since 1970-01-01."""
    return (date.fromisoformat(night) - date(1970, 1, 1)).days


def night_of(number: int) -> str:
    """Days since 1970-01-01 -> ``2026-04-12``."""
    return date.fromordinal(date(1970, 1, 1).toordinal() + number).isoformat()


def _keys(points: Iterable[Point]) -> tuple[str, ...]:
    """The names under which points report, of metrics that the table knows."""
    found = dict.fromkeys(key for point in points for key in point.values)
    known = []
    for key in found:
        try:
            parse_metric(key)
        except UsageError:
            continue
        known.append(key)
    return tuple(known)


def _usable(value: float | None, metric: Metric) -> bool:
    """A ratio needs a positive number; of a share nothing is a value too."""
    return value is not None and math.isfinite(value) and (value > 0 or (metric.absolute and value == 0))


def part_of(statistic: str) -> BuildRun:
    """What a statistic says of the requests of a metric."""
    if statistic in ("", "median", "p50"):
        return "typical"
    return "mean" if statistic == "mean" else "tail"


def _boundaries(
    points: Sequence[Point], metric: str, eras: Callable[[Point], Sequence[Era]]
) -> tuple[Discontinuity, ...]:
    found: list[Discontinuity] = []
    for index in range(1, len(points)):
        before, after = points[index - 1], points[index]
        found += [Discontinuity(index, kind, what) for kind, what in _breaks(before, after)]
        touched = [era for era in _begun(before, after, eras) if era.touched(metric)]
        found += [Discontinuity(index, "instrument", f"{era.what} ({era.change})") for era in touched]
    return tuple(found)


def _begun(before: Point, after: Point, eras: Callable[[Point], Sequence[Era]]) -> list[Era]:
    """Eras that the later point is in and the earlier is not."""
    return [era for era in eras(after) if era.reached(_fixed(after)) and not era.reached(_fixed(before))]


def _hints(points: Sequence[Point], eras: Callable[[Point], Sequence[Era]]) -> tuple[Discontinuity, ...]:
    found = list(_prompts(points, eras))
    for index in range(1, len(points)):
        a, b = points[index - 1].covariates, points[index].covariates
        if a.get("keys") != b.get("keys"):
            found.append(Discontinuity(index, "keys", "the result has other names in it"))
        warm, warmer = a.get("warmups"), b.get("warmups")
        if warm is not None and warmer is not None and warm != warmer:
            found.append(Discontinuity(index, "warmups", f"{warmer} requests warm up, {warm} before"))
        was, now = a.get("suite"), b.get("suite")
        if was is not None and now is not None and was != now:
            told = "of its own" if now == ALONE else "that other cells share"
            found.append(
                Discontinuity(index, "server", f"since then it is measured on another server, {told}")
            )
    return tuple(sorted(found, key=lambda hint: (hint.index, hint.kind)))


def _prompts(points: Sequence[Point], eras: Callable[[Point], Sequence[Era]]) -> Iterable[Discontinuity]:
    """Where the prompts got longer or shorter by more than they do from night to night.

    Where an era changed how tokens are counted, both sides are looked at by themselves.
    """
    moves: list[dict[int, tuple[float, float]]] = [{}]
    for index in range(1, len(points)):
        before, after = points[index - 1], points[index]
        if any(era.touched("input_tokens") for era in _begun(before, after, eras)):
            moves.append({})
            continue
        left, right = before.covariates.get("input_tokens"), after.covariates.get("input_tokens")
        if left and right:
            moves[-1][index] = (left, right)
    for stretch in moves:
        sizes = {index: abs(math.log(right / left)) for index, (left, right) in stretch.items()}
        usual = _UNUSUAL * median(sizes.values()) if sizes else 0.0
        for index, (left, right) in stretch.items():
            if sizes[index] > max(_SAME_TOKENS, usual):
                yield Discontinuity(index, "workload", f"prompts have {right:.5g} tokens, {left:.5g} before")


def _fixed(point: Point) -> str:
    """When the commit was chosen, as far as is known: the instrument is part of it."""
    return point.build.fixed or point.began


def _breaks(before: Point, after: Point) -> Iterable[tuple[DiscontinuityKind, str]]:
    a, b = before.workload, after.workload
    if a.digest and b.digest and a.digest != b.digest:
        yield "digest", f"the cell's digest is {b.digest[:12]}, was {a.digest[:12]}"
    if a.model and b.model and a.model != b.model:
        yield "model", f"the model is {b.model}, was {a.model}"
    left, right = before.covariates.get("server"), after.covariates.get("server")
    if left and right and left != right:
        yield "server", "the server's arguments are others"
