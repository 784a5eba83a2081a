"""Changes detected in cell series, and which of them become alerts.

Series are judged in families, each with its own false discovery rate: medians and single numbers are one,
means and percentiles another, since a cold request in twenty moves these and nothing that lasts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from perfbisect.model.attempt import is_same_class
from perfbisect.model.commit_details import MeasuredCell
from perfbisect.model.metric import PER_UNIT, STAGE
from perfbisect.series.detection.fdr import Coverage, JointChange, Judge, SeriesCoverage, detect_all
from perfbisect.series.detection.machines import replaced_machines
from perfbisect.series.detection.model import (
    GAUSSIAN,
    WEEK,
    ChangePoint,
    SeriesRefusal,
    SeriesValues,
    Test,
    judge_series,
)
from perfbisect.series.series import HEADLINES, CellSeries
from perfbisect.stats.robust import Array

NOISE_NIGHTS = 20  # nights before a change that show the noise of a cell
_FEWEST_NIGHTS = 3  # below which they show none
_MIN_NOISE = 0.005  # least noise of a cell, of logs or shares, also of nights that agree to the last digit
_LOW_RATE = 0.1  # requests a second up to which a cell is of low concurrency

SuppressionReason = Literal["starts the series", "too small", "too doubtful", "reported by the median"]


@dataclass(frozen=True)
class SeriesChange:
    """A change in a series of one value a night.

    ``start``, ``end``: the nights that are compared, the level before it and its own. ``suppression``: why it
    is no alert; ``duplicate_of``: the median that reports it. ``supported_by``: servers that moved on the
    same night, where its own nights are not enough.
    """

    series: CellSeries
    point: ChangePoint
    start: int
    end: int
    suppression: SuppressionReason | None = None
    duplicate_of: str = ""
    supported_by: tuple[str, ...] = ()

    @property
    def before(self) -> tuple[int, ...]:
        """Places of the nights at the level that it left."""
        return tuple(range(self.start, self.point.places[0])) or (self.point.index - 1,)

    @property
    def after(self) -> tuple[int, ...]:
        """Places of the nights that show it; of a drift those after it."""
        index, until = self.point.index, self.point.until
        if self.point.shape == "drift":
            return tuple(range(min(until or index, self.end - 1), self.end))
        return tuple(range(index, max(self.end if until is None else until, index + 1)))

    @property
    def first(self) -> int:
        """The night (days since 1970-01-01) on which it most probably began."""
        return self.series.nights[self.point.index]

    @property
    def nights(self) -> frozenset[int]:
        """The nights on which it may have begun."""
        return frozenset(self.series.nights[place] for place in self.point.places)

    @property
    def machines(self) -> tuple[str, str] | None:
        """The hosts before and after it, where no host of one level measured the other."""
        end = self.after[-1] + 1
        return replaced_machines(self.series.machines, self.start, self.point.places, end)

    @property
    def is_over(self) -> bool:
        """Whether it is a transient that ended."""
        return self.point.shape == "transient" and self.point.until is not None

    @property
    def shift(self) -> float:
        """The step from the old level to the new one on the metric's scale, above 0 worse."""
        return self.series.scale.difference(self.point.effect)

    @property
    def segment(self) -> slice:
        """The stretch between discontinuities that it is in."""
        parts = self.series.segments()
        return next(part for part in parts if part.start <= self.point.index < part.stop)


@dataclass(frozen=True)
class JudgedFamily:
    """Series that are judged together.

    ``joint_changes``: nights at which the series together show a change that no alert reports.
    """

    alerts: tuple[SeriesChange, ...]
    suppressed: tuple[SeriesChange, ...]
    coverage: Coverage
    joint_changes: tuple[JointChange, ...]

    def alarmed(self, test: Test) -> frozenset[tuple[str, str]]:
        """The series with an alert by a test."""
        return frozenset(alert.series.key for alert in self.alerts if alert.point.test == test)


def select_alerts(series: Sequence[CellSeries], fdr: float, judge: Judge = judge_series) -> JudgedFamily:
    """The changes of these series; segments between discontinuities are judged by themselves."""
    # Some clients report p50 beside the median: one number would be judged twice.
    medians = {(item.cell, item.row.name) for item in series if item.metric == item.row.name}
    excluded: list[SeriesCoverage] = []
    segments: dict[str, tuple[CellSeries, slice]] = {}
    values = []
    for item in series:
        name = f"{item.cell} {item.metric}"
        if (why := _exclusion(item, medians)) is not None:
            excluded.append(SeriesCoverage(series=name, nights=len(item.values), why=why))
            continue
        for number, segment in enumerate(item.segments(), 1):
            key = name if number == 1 else f"{name} #{number}"
            segments[key] = item, segment
            own, days, hosts = item.values[segment], item.nights[segment], item.machines[segment]
            values.append(
                SeriesValues(key, own, days, item.sign, item.min_effect, item.group, item.row.absolute, hosts)
            )
    detection = detect_all(values, fdr, judge)
    coverage, events = detection.coverage, detection.events
    changes = []
    for key, points in detection.points.items():
        levels = [point.index for point in points if point.shape != "transient"]
        for point in points:
            change = _change(point, levels, *segments[key])
            # The level before it is unknown: the first nights may be the end of another level.
            if point.shape == "transient" and change.point.index == change.start:
                change = replace(change, suppression="starts the series")
            elif not point.is_relevant:
                change = replace(change, suppression="too small")
            elif not coverage.is_significant(point):
                change = _support(replace(change, suppression="too doubtful"), coverage, events)
            changes.append(change)
    # An order that does not depend on the store: alerts are named one after the other.
    changes.sort(key=_order)
    alerts = tuple(change for change in changes if change.suppression is None)
    # A joint change that an alert names already is not told again.
    nights = frozenset().union(*(alert.nights for alert in alerts))
    return JudgedFamily(
        alerts=alerts,
        suppressed=tuple(change for change in changes if change.suppression is not None),
        coverage=replace(coverage, series=(*coverage.series, *excluded)),
        joint_changes=tuple(e for e in events if not any(e.includes(night) for night in nights)),
    )


def drop_duplicate_tails(tails: JudgedFamily, medians: JudgedFamily) -> JudgedFamily:
    """Suppress means and percentiles whose change, in the same direction, a median of the cell reports."""
    alerts, suppressed = [], list(tails.suppressed)
    for alert in tails.alerts:
        of_cell = (other for other in medians.alerts if other.series.cell == alert.series.cell)
        alike = (other for other in of_cell if other.shift * alert.shift > 0)
        same = (other for other in alike if alert.nights & other.nights or alert.first == other.first)
        if (reported := next(same, None)) is not None:
            by = reported.series.metric
            suppressed.append(replace(alert, suppression="reported by the median", duplicate_of=by))
        else:
            alerts.append(alert)
    return replace(tails, alerts=tuple(alerts), suppressed=tuple(sorted(suppressed, key=_order)))


def _exclusion(series: CellSeries, medians: Iterable[tuple[str, str]]) -> SeriesRefusal | None:
    """Why a series is not judged; None if it is."""
    if series.row.guard:
        return SeriesRefusal("covariate")
    if series.metric == f"{series.row.name}:p50" and (series.cell, series.row.name) in medians:
        return SeriesRefusal("median again")
    if series.row.name in PER_UNIT and not series.row.per_request:
        return SeriesRefusal("derived", of=tuple(PER_UNIT[series.row.name]))
    return None


def _change(point: ChangePoint, levels: Sequence[int], series: CellSeries, segment: slice) -> SeriesChange:
    """A change of a segment as one of its series. ``levels``: where the level changes for good."""
    offset = segment.start
    return SeriesChange(
        series=series,
        point=replace(
            point,
            index=offset + point.index,
            until=None if point.until is None else offset + point.until,
            places=tuple(offset + place for place in point.places),
        ),
        start=offset + max((i for i in levels if i < point.index), default=0),
        end=min((offset + i for i in levels if i > point.index), default=segment.stop),
    )


def _support(change: SeriesChange, coverage: Coverage, events: Sequence[JointChange]) -> SeriesChange:
    """Report a doubtful change of a night at which the servers together show one.

    Its p is for any night of its series. Where other servers name the night, it is the p of this very night,
    times the number of nights named; it must be what the rate allows to one series more.
    """
    own_events = [
        event
        for event in events
        if change.point.key in event.series and any(event.includes(night) for night in change.nights)
    ]
    # The change's own server is no support: its series share one start.
    servers = {server for event in own_events for server in event.servers} - {change.series.group}
    # Each named night is a test: p of this night is corrected by their number (Bonferroni).
    named = sum(any(event.includes(night) for event in events) for night in change.series.nights)
    one_more = coverage.cut[change.point.test] + coverage.fdr / max(1, coverage.judged)
    if not servers or change.point.local * named > one_more:
        return change
    return replace(change, suppression=None, supported_by=tuple(sorted(servers)))


def _order(change: SeriesChange) -> tuple[int, str, str]:
    return change.first, change.series.cell, change.series.metric


class SeriesIndex:
    """The series of all cells by cell and metric.

    ``traits``: the name of a cell -> what it runs; ``features``: its name, model and device -> what these
    imply.
    """

    def __init__(
        self,
        series: Sequence[CellSeries],
        traits: Callable[[str], frozenset[str]],
        features: Callable[[str, str, str], frozenset[str]] = lambda *_: frozenset(),
    ) -> None:
        self._traits, self._features = cache(traits), cache(features)
        self._by_cell: dict[str, dict[str, CellSeries]] = {}
        self._moves: dict[tuple[str, _Window], list[tuple[CellSeries, float, float]]] = {}
        for item in series:
            self._by_cell.setdefault(item.cell, {})[item.metric] = item

    def get(self, cell: str, metric: str) -> CellSeries | None:
        """A metric of a cell; None where it does not report it."""
        return self._by_cell.get(cell, {}).get(metric)

    def on_other_machines(self, like: CellSeries) -> tuple[CellSeries, ...]:
        """The same metric of the same cell on the other machines of its kind in a fleet."""
        own = like.points[-1]
        same = (metrics[like.metric] for metrics in self._by_cell.values() if like.metric in metrics)
        return tuple(
            series
            for series in same
            if own.machine
            and series.points[-1].cell == own.cell
            and series.points[-1].machine not in ("", own.machine)
            and is_same_class(series.points[-1].hardware, own.hardware)
        )

    def changed_prompts(
        self, like: CellSeries, nights: Collection[int]
    ) -> Iterator[tuple[int, str, float, float]]:
        """Where the prompts of a cell of the same model and data set changed on one of these nights.

        One specification makes them for several cells, and not every server counts the tokens of a picture.
        Yields the night, the cell, and the tokens of a prompt before and after.
        """
        own = like.points[-1].workload
        for metrics in self._by_cell.values() if own.model and own.dataset else ():
            series = next(iter(metrics.values()))
            load = series.points[-1].workload
            for hint in series.hints if (load.model, load.dataset) == (own.model, own.dataset) else ():
                before, after = (
                    series.points[at].covariates.get("input_tokens") for at in (hint.index - 1, hint.index)
                )
                if hint.kind == "workload" and series.nights[hint.index] in nights and before and after:
                    yield series.nights[hint.index], series.cell, before, after

    def measured_cells(self, change: SeriesChange) -> tuple[MeasuredCell, ...]:
        """Every cell measured on both sides of a change, by the same metric, else by its headline."""
        cells = []
        # A hit needs three deviations of the cell's own nights: noise must not count as a hit.
        for series, size, noise in self._moved(change.series.metric, _window(change)):
            load, metrics = series.points[-1].workload, self._by_cell[series.cell]
            # A server that answers one request at a time shows the machine more than the engine.
            low = load.concurrency == 1 or (load.concurrency is None and load.rate <= _LOW_RATE)
            newest = (item.points[-1].workload.model for item in metrics.values())
            model = next(filter(None, newest), "")
            cells.append(
                MeasuredCell(
                    cell=series.cell,
                    hit=abs(size) > 3 * noise and size * change.shift > 0,
                    start=series.group,
                    traits=self._traits(series.cell),
                    model=model,
                    features=self._features(series.cell, model, series.points[-1].hardware),
                    shift=size,
                    control=low or series.metric.startswith(STAGE),
                    machine=series.points[-1].machine,
                )
            )
        return tuple(cells)

    def _moved(self, metric: str, window: _Window) -> list[tuple[CellSeries, float, float]]:
        """The series of every cell that was measured around a window, with its shift and noise.

        Changes of one night often have the same window, and each asks for all cells.
        """
        if (metric, window) not in self._moves:
            moves = self._moves[metric, window] = []
            for metrics in self._by_cell.values():
                names = (name for name in (metric, *HEADLINES) if name in metrics)
                series = metrics.get(next(names, ""))
                if series is not None and (moved := _shift_in(series, window)) is not None:
                    moves.append((series, *moved))
        return self._moves[metric, window]


_Window = tuple[int, int, int, int]
"""The first and the last night before a change, and the first and the last that show it."""


def _window(change: SeriesChange) -> _Window:
    nights, before, after = change.series.nights, change.before, change.after
    return nights[before[0]], nights[before[-1]], nights[after[0]], nights[after[-1]]


def shift(series: CellSeries | None, change: SeriesChange) -> tuple[float, float] | None:
    """By how much a series moved between the nights before a change and those that show it, and its noise.

    On the metric's scale, above 0 worse. None where it was not measured on both sides, or is another series
    since.
    """
    return None if series is None else _shift_in(series, _window(change))


def _shift_in(series: CellSeries, window: _Window) -> tuple[float, float] | None:
    nights, (left, edge, first, last) = series.nights, window
    after = range(bisect_left(nights, first), bisect_right(nights, last))
    before = range(bisect_left(nights, left), bisect_right(nights, edge))[-NOISE_NIGHTS:]
    if not after or len(before) < _FEWEST_NIGHTS:
        return None
    # Another digest or era between both sides is another series.
    if any(before[0] < boundary.index <= after[-1] for boundary in series.boundaries):
        return None
    old = series.levels(before)
    return float(np.median(series.levels(after)) - np.median(old[-WEEK:])), noise_of(old)


def noise_of(levels: Array) -> float:
    """The robust standard deviation of nights, on their metric's scale."""
    return max(_MIN_NOISE, GAUSSIAN * float(np.median(np.abs(levels - np.median(levels)))))
