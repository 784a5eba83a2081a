"""Which nights a baseline is made of: those of one workload, one instrument and one level.

A mean over a change is a number that no night ever had, and a mean over a regression absorbs it. So it begins
at the newest change of what is asked, of how it is measured, or of the level, where that is as good or was
accepted (closed); a change for the worse that was not is left out, and so is every night of a transient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfbisect.core.alert import Alert, beside_worse, recovery
from perfbisect.core.finding import Finding
from perfbisect.core.reported_series import CellSeries

Change = tuple[Alert, Finding]
"""An alert, with the finding that it was made of."""

OTHERWISE = ("instrument", "workload")
"""Causes by which a cell is another one since: no level of the product changed."""

_OF_ALL = ("product", "night")
"""Causes of a transient that say that the whole cell was another one on its nights."""

_ANEW = ("workload", "warmups", "server")
"""Hints after which what is measured is not what it was."""


@dataclass(frozen=True)
class LeftOut:
    """A night (days since 1970-01-01) that is in no mean. ``word``: why, in a word or two for a table;
    ``why``: with what changed and when."""

    night: int
    word: str
    why: str


@dataclass(frozen=True)
class Chosen:
    """``values``: one a night, oldest first. ``skip``: why no mean is made at all; empty where one may be."""

    values: tuple[float, ...]
    left_out: tuple[LeftOut, ...]
    skip: str = ""


@dataclass(frozen=True)
class Anew:
    """From ``night`` on a series is another one."""

    night: int
    word: str
    why: str


def chosen(
    series: CellSeries, changes: Sequence[Change], *, first: int, last: int, others: Iterable[Anew] = ()
) -> Chosen:
    """The nights from ``first`` to ``last``, both included, of which a mean is of one thing.

    ``series`` has one value a night; ``changes`` are those of its cell; ``others``: where cells of the same
    requests say that these changed.
    """
    begun = [change for change in changes if change[1].first <= last]
    anew = (*_anew(series), *others, *_levels(series, begun))
    start = max((one for one in anew if one.night <= last), key=lambda one: one.night, default=None)
    bad = {one.night: one for one in _left(series, begun)}
    values, left = [], []
    for night, value in zip(series.nights, series.values, strict=True):
        if not first <= night <= last:
            continue
        if night in bad:
            left.append(bad[night])
        elif start is not None and night < start.night:
            left.append(LeftOut(night, start.word, start.why))
        else:
            values.append(value)
    return Chosen(tuple(values), tuple(left), _skip(series, begun, last))


def _anew(series: CellSeries) -> Iterator[Anew]:
    for mark in (*series.boundaries, *(hint for hint in series.hints if hint.kind in _ANEW)):
        yield Anew(series.nights[mark.index], f"{mark.kind} changed", mark.what)


def _levels(series: CellSeries, changes: Sequence[Change]) -> Iterator[Anew]:
    """Nights from which on a cell is another one, or the series at a level that a baseline may have."""
    for alert, finding in changes:
        if finding.is_over:
            continue
        nights = finding.series.nights
        if alert.cause in OTHERWISE:
            why = f"alert {alert.id}: {alert.evidence[0]}"
            yield Anew(nights[max((finding.index, *finding.places))], f"{alert.cause} changed", why)
        elif finding.series.key == series.key and (alert.state == "closed" or _better(alert, changes)):
            begun = nights[recovery(finding) or finding.after[0]]
            yield Anew(begun, f"alert {alert.id}", f"alert {alert.id}: another level since")


def _left(series: CellSeries, changes: Sequence[Change]) -> Iterator[LeftOut]:
    """Nights of transients, and of what is worse and was not accepted; last those of the series itself."""
    for alert, finding in sorted(changes, key=lambda change: change[1].series.key == series.key):
        own = finding.series.key == series.key
        if not own and (alert.part != "typical" or alert.cause not in _OF_ALL):
            continue
        still = alert.cause not in OTHERWISE and alert.state != "closed"
        if alert.shape == "transient" and (finding.is_over or still):
            what = f"{alert.cause}, transient"
        elif own and _worse(alert, changes):
            what = f"{alert.cause}, not accepted"
        else:
            continue
        until = recovery(finding) or finding.after[-1] + 1
        for place in range(min(finding.places, default=finding.index), until):
            yield LeftOut(finding.series.nights[place], f"alert {alert.id}", f"alert {alert.id}: {what}")


def _skip(series: CellSeries, changes: Sequence[Change], last: int) -> str:
    """The series is at a level that nobody accepted."""
    for alert, finding in changes:
        if finding.series.key != series.key or alert.shape == "transient" or not _worse(alert, changes):
            continue
        back = recovery(finding)
        end = finding.end if back is None else back
        if end == len(series.nights) or series.nights[end] > last:
            return f"alert {alert.id} is {alert.state}"
    return ""


def _worse(alert: Alert, changes: Sequence[Change]) -> bool:
    """A change of level that no baseline may have: for the worse and not accepted, or beside such a one."""
    if alert.state == "closed" or alert.cause in OTHERWISE:
        return False
    return alert.worse or _is_beside_worse(alert, changes)


def _better(alert: Alert, changes: Sequence[Change]) -> bool:
    return alert.shape != "transient" and not alert.worse and not _is_beside_worse(alert, changes)


def _is_beside_worse(alert: Alert, changes: Sequence[Change]) -> bool:
    return beside_worse(alert, [other for other, _ in changes]) is not None
