"""Changes that were found in reported series, at the nights of the whole series.

Series are judged in families, each with its own rate of false alarms: medians and single numbers are one,
means and percentiles another, since a cold request in twenty moves these and nothing that lasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from perfbisect.model.metric import PER_UNIT
from perfbisect.series.detection.fdr import Coverage, adjusted_p, detect_all
from perfbisect.series.detection.joint import JointEvent
from perfbisect.series.detection.model import ChangePoint, SeriesValues
from perfbisect.series.series import CellSeries


@dataclass(frozen=True)
class SeriesChange:
    """A change in a series (one value a night).

    ``index``: the place of its first night, ``until``: the first night after it, None where it has not ended;
    ``places``: those that hold the first night with a probability of 95 %. ``begin``, ``end``: the
    nights that are compared lie from ``begin`` up to ``end`` (not included): the level before it and its own.
    ``q``: the share of false ones among all that are told as surely as this one, at most. ``joined``: its own
    nights would not have been enough; with those of these servers, which moved on the same night, they are.
    """

    series: CellSeries
    found: ChangePoint
    index: int
    until: int | None
    places: tuple[int, ...]
    begin: int
    end: int
    q: float
    joined: tuple[str, ...] = ()

    @property
    def before(self) -> tuple[int, ...]:
        """Places of the nights before it, at the level that it left."""
        return tuple(range(self.begin, self.places[0] if self.places else self.index)) or (self.index - 1,)

    @property
    def after(self) -> tuple[int, ...]:
        """Places of the nights that show it; of a drift those after it."""
        if self.found.shape == "drift":
            return tuple(range(min(self.until or self.index, self.end - 1), self.end))
        last = self.end if self.until is None else self.until
        return tuple(range(self.index, max(last, self.index + 1)))

    @property
    def first(self) -> int:
        """The night (days since 1970-01-01) at which it most probably began."""
        return self.series.nights[self.index]

    @property
    def last(self) -> int:
        """The newest night that shows it."""
        return self.series.nights[self.after[-1]]

    @property
    def nights(self) -> frozenset[int]:
        """The nights at which it may have begun."""
        return frozenset(self.series.nights[place] for place in self.places)

    @property
    def is_over(self) -> bool:
        """A transient whose end was seen."""
        return self.found.shape == "transient" and self.until is not None

    @property
    def shift(self) -> float:
        """Log of new over old level, above 0 worse."""
        return float(self.series.sign * np.log1p(max(self.found.effect, -0.999999)))


SuppressionReason = Literal["starts the series", "too small", "too doubtful", "reported by the median"]


@dataclass(frozen=True)
class Suppression:
    """Why a change is no alert. ``least``: the smallest effect worth telling, where it is smaller;
    ``metric``: the median that tells the same change."""

    kind: SuppressionReason
    least: float = 0.0
    metric: str = ""


@dataclass(frozen=True)
class JudgedFamily:
    """What was found in series that are judged together.

    ``alerts`` are told at the rate of false alarms, ``listed`` are too small or too doubtful, with why.
    """

    alerts: tuple[SeriesChange, ...]
    listed: tuple[tuple[SeriesChange, Suppression], ...]
    census: Coverage
    left: tuple[tuple[str, str], ...] = ()
    """Series that are not judged at all, and why."""
    shared: tuple[JointEvent, ...] = ()
    """Nights at which the series together speak of a change that no alert tells."""


def not_judged(series: CellSeries, beside: Iterable[str]) -> str:
    """Why a series is none of those that are judged; empty where it is. ``beside``: the cell's metrics."""
    if series.row.guard:
        return "a covariate: causes are read from it"
    if series.metric == f"{series.row.name}:p50" and series.row.name in beside:
        return "the median, once more"
    if series.row.name in PER_UNIT and not series.row.per_request:
        return f"follows from {' and '.join(PER_UNIT[series.row.name])}"
    return ""


def select_alerts(series: Sequence[CellSeries], fdr: float) -> JudgedFamily:
    """The changes of these series, each of one value a night; stretches between boundaries by themselves.

    :raises ValueError: a rate outside (0, 1).
    """
    metrics: dict[str, set[str]] = {}
    for item in series:
        metrics.setdefault(item.cell, set()).add(item.metric)
    left = {id(item): not_judged(item, metrics[item.cell]) for item in series}
    judged = [item for item in series if not left[id(item)]]
    stretches = {
        key: (judged_series, part) for judged_series in judged for key, part in _stretches(judged_series)
    }
    seen = detect_all([_series(key, *which) for key, which in stretches.items()], fdr)
    entries = seen.census.judged
    adjusted = adjusted_p([entry.p for entry in entries])
    q = {entry.key: float(rate) for entry, rate in zip(entries, adjusted, strict=True)}
    ends = _ends((*seen.alerts, *seen.listed))
    alerts: list[SeriesChange] = []
    doubtful: list[tuple[SeriesChange, Suppression]] = []
    for found in (*seen.alerts, *seen.listed):
        finding = _finding(found, *stretches[found.key], ends, q[found.key])
        rejection = _rejection(finding, significant=seen.census.is_significant(found.p))
        if rejection is None:
            alerts.append(finding)
        else:
            doubtful.append((finding, rejection))
    told, still = _joined(alerts, doubtful, seen.census, seen.events)
    return JudgedFamily(
        _ordered(told),
        tuple(sorted(still, key=lambda one: _order(one[0]))),
        seen.census,
        tuple((f"{item.cell} {item.metric}", why) for item in series if (why := left[id(item)])),
        _untold(seen.events, told),
    )


def _rejection(finding: SeriesChange, *, significant: bool) -> Suppression | None:
    """Why a change is listed and no alert; None where it is one."""
    if finding.found.shape == "transient" and finding.index == finding.begin:
        return Suppression("starts the series")
    if not finding.found.telling:
        return Suppression("too small", least=finding.series.min_effect)
    return None if significant else Suppression("too doubtful")


def _stretches(series: CellSeries) -> Iterator[tuple[str, slice]]:
    for number, part in enumerate(series.segments()):
        yield f"{series.cell} {series.metric}" + (f" #{number + 1}" if number else ""), part


def _series(key: str, series: CellSeries, part: slice) -> SeriesValues:
    return SeriesValues(
        key, series.values[part], series.nights[part], series.sign, series.min_effect, series.group,
        series.row.absolute,
    )  # fmt: skip


def _ends(breaks: Iterable[ChangePoint]) -> dict[str, list[int]]:
    """By series, the indices at which its level changes for good."""
    found: dict[str, list[int]] = {}
    for change in breaks:
        if change.shape != "transient":
            found.setdefault(change.key, []).append(change.index)
    return {key: sorted(indices) for key, indices in found.items()}


def _finding(
    found: ChangePoint, series: CellSeries, part: slice, ends: dict[str, list[int]], q: float
) -> SeriesChange:
    levels = ends.get(found.key, [])
    start, stop = part.start, part.stop
    return SeriesChange(
        series=series,
        found=found,
        index=start + found.index,
        until=None if found.until is None else start + found.until,
        places=tuple(start + place for place in found.places),
        begin=start + max((i for i in levels if i < found.index), default=0),
        end=min((start + i for i in levels if i > found.index), default=stop),
        q=q,
    )


def _joined(
    alerts: Sequence[SeriesChange],
    doubtful: Sequence[tuple[SeriesChange, Suppression]],
    census: Coverage,
    shared: Sequence[JointEvent],
) -> tuple[list[SeriesChange], list[tuple[SeriesChange, Suppression]]]:
    """Doubtful changes on a night at which the servers together speak of one are told.

    A change's p is for any night of its series. Where other servers name the night, it is that of this very
    night, as many times as nights are named; it has to be what the rate allows to one series more.
    """
    told: list[SeriesChange] = list(alerts)
    still: list[tuple[SeriesChange, Suppression]] = []
    most = census.cut + census.fdr / max(1, len(census.judged))
    for finding, rejection in doubtful:
        votes = {vote for event in shared if _of(event, finding) for vote in event.votes}
        others = votes - {finding.series.group}
        named = sum(any(_within(event, night) for event in shared) for night in finding.series.nights)
        if rejection.kind == "too doubtful" and others and finding.found.local * named <= most:
            told.append(replace(finding, joined=tuple(sorted(others))))
        else:
            still.append((finding, rejection))
    return told, still


def _of(event: JointEvent, finding: SeriesChange) -> bool:
    """Whether a change is one of those that make an event."""
    return finding.found.key in event.members and any(_within(event, night) for night in finding.nights)


def _within(event: JointEvent, night: int) -> bool:
    before, last = event.window
    return before < night <= last


def _untold(events: Sequence[JointEvent], told: Sequence[SeriesChange]) -> tuple[JointEvent, ...]:
    """Events at whose nights nothing is told."""
    nights = frozenset().union(*(item.nights for item in told))
    return tuple(event for event in events if not any(_within(event, night) for night in nights))


def _order(finding: SeriesChange) -> tuple[int, str, str]:
    return finding.first, finding.series.cell, finding.series.metric


def _ordered(findings: Iterable[SeriesChange]) -> tuple[SeriesChange, ...]:
    return tuple(sorted(findings, key=_order))


def drop_duplicate_tails(tails: JudgedFamily, medians: JudgedFamily) -> JudgedFamily:
    """Means and percentiles that moved by themselves: what a median of the same cell tells of the same night
    is not told twice."""
    told: list[SeriesChange] = []
    listed = list(tails.listed)
    for alert in tails.alerts:
        same = next(
            (m for m in medians.alerts if m.series.cell == alert.series.cell and _together(m, alert)), None
        )
        if same is None:
            told.append(alert)
        else:
            listed.append((alert, Suppression("reported by the median", metric=same.series.metric)))
    return replace(tails, alerts=tuple(told), listed=tuple(sorted(listed, key=lambda x: _order(x[0]))))


def _together(one: SeriesChange, other: SeriesChange) -> bool:
    return bool(one.nights & other.nights) or one.first == other.first
