"""Which nights a baseline is made of: those of one workload, one instrument and one level.

A mean over a change is a number that no night ever had, and a mean over a regression absorbs it. So it begins
at the newest change of what is asked, of how it is measured, or of the level, where that is as good or was
accepted (closed); a change for the worse that was not is left out, and so is every night of a transient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfbisect.core.alert import Alert, beside_worse, recovery
from perfbisect.core.cause_facts import Evidence
from perfbisect.core.reported_series import CellSeries

OTHERWISE = ("instrument", "workload")
"""Causes by which a cell is another one since: no level of the product changed."""

_OF_ALL = ("product", "night")
"""Causes of a transient that say that the whole cell was another one on its nights."""

_ANEW = ("workload", "warmups", "server")
"""Hints after which what is measured is not what it was."""


@dataclass(frozen=True)
class LeftOut:
    """A night (days since 1970-01-01) that is in no mean. ``word``: why, in a word or two for a table;
    ``why``: with what changed and when, of which ``evidence`` says more where it is an alert's."""

    night: int
    word: str
    why: str
    evidence: Evidence | None = None


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
    evidence: Evidence | None = None


def chosen(
    series: CellSeries, alerts: Sequence[Alert], *, first: int, last: int, others: Iterable[Anew] = ()
) -> Chosen:
    """The nights from ``first`` to ``last``, both included, of which a mean is of one thing.

    ``series`` has one value a night; ``alerts`` are those of its cell; ``others``: where cells of the same
    requests say that these changed.
    """
    begun = [one for one in alerts if one.finding.first <= last]
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
            left.append(LeftOut(night, start.word, start.why, start.evidence))
        else:
            values.append(value)
    return Chosen(tuple(values), tuple(left), _skip(series, begun, last))


def _anew(series: CellSeries) -> Iterator[Anew]:
    for mark in (*series.boundaries, *(hint for hint in series.hints if hint.kind in _ANEW)):
        yield Anew(series.nights[mark.index], f"{mark.kind} changed", mark.what)


def _levels(series: CellSeries, alerts: Iterable[Alert]) -> Iterator[Anew]:
    """Nights from which on a cell is another one, or the series at a level that a baseline may have."""
    among = tuple(alerts)
    for one in among:
        finding, word = one.finding, one.cause.word
        if _over(one):
            continue
        nights = finding.series.nights
        if word in OTHERWISE:
            night = nights[max((finding.index, *finding.places))]
            yield Anew(night, f"{word} changed", f"alert {one.id}", one.cause.evidence[0])
        elif finding.series.key == series.key and (one.state == "closed" or _better(one, among)):
            begun = nights[recovery(finding) or finding.after[0]]
            yield Anew(begun, f"alert {one.id}", f"alert {one.id}: another level since")


def _left(series: CellSeries, alerts: Iterable[Alert]) -> Iterator[LeftOut]:
    """Nights of transients, and of what is worse and was not accepted; last those of the series itself."""
    among = sorted(alerts, key=lambda one: one.finding.series.key == series.key)
    for one in among:
        finding, own = one.finding, one.finding.series.key == series.key
        if not own and (finding.series.part != "typical" or one.cause.word not in _OF_ALL):
            continue
        still = one.cause.word not in OTHERWISE and one.state != "closed"
        if finding.found.shape == "transient" and (_over(one) or still):
            told = f"{one.cause.word}, transient"
        elif own and _worse(one, among):
            told = f"{one.cause.word}, not accepted"
        else:
            continue
        until = recovery(finding) or finding.after[-1] + 1
        for place in range(min(finding.places, default=finding.index), until):
            yield LeftOut(finding.series.nights[place], f"alert {one.id}", f"alert {one.id}: {told}")


def _skip(series: CellSeries, alerts: Iterable[Alert], last: int) -> str:
    """The series is at a level that nobody accepted."""
    among = tuple(alerts)
    for one in among:
        finding = one.finding
        if finding.series.key != series.key or finding.found.shape == "transient" or not _worse(one, among):
            continue
        back = recovery(finding)
        end = finding.end if back is None else back
        if end == len(series.nights) or series.nights[end] > last:
            return f"alert {one.id} is {one.state}"
    return ""


def _over(alert: Alert) -> bool:
    return alert.finding.found.shape == "transient" and alert.finding.until is not None


def _worse(alert: Alert, among: Iterable[Alert]) -> bool:
    """A change of level that no baseline may have: for the worse and not accepted, or beside such a one."""
    if alert.state == "closed" or alert.cause.word in OTHERWISE:
        return False
    return alert.finding.shift > 0 or bool(beside_worse(alert, among))


def _better(alert: Alert, among: Iterable[Alert]) -> bool:
    lasting = alert.finding.found.shape != "transient"
    return lasting and alert.finding.shift < 0 and not beside_worse(alert, among)
