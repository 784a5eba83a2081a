"""Which nights a baseline is made of: those of one workload, one instrument and one accepted level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfbisect.core.alert import Alert, beside_worse, recovery
from perfbisect.core.baseline import DAYS
from perfbisect.core.finding import Finding
from perfbisect.core.reported_series import CellSeries

Change = tuple[Alert, Finding]
"""An alert, with the finding that it was made of."""

_NOT_THE_PRODUCT = ("instrument", "workload")
"""Causes of a change after which a cell measures something else."""

_OF_THE_CELL = ("product", "night")
"""Causes of a transient that spoils a night for all metrics of its cell."""

_BREAKS = ("workload", "warmups", "server")
"""Hints after which a cell measures something else."""


@dataclass(frozen=True)
class Nights:
    """``values``: one a night. ``left_out``: the other nights (days since 1970-01-01) of the last seven.

    ``skip``: why there is no baseline at all.
    """

    values: tuple[float, ...] = ()
    left_out: tuple[int, ...] = ()
    skip: str = ""


def choose_nights(
    series: CellSeries, changes: Sequence[Change], *, last: int, breaks: Iterable[int] = ()
) -> Nights:
    """The nights of one level among the seven that end with ``last``.

    ``series`` has one value a night; ``changes`` are those of its cell; ``breaks``: nights from which on it
    measures something else, as other cells show.
    """
    hints = (hint for hint in series.hints if hint.kind in _BREAKS)
    starts = [*breaks, *(series.nights[mark.index] for mark in (*series.boundaries, *hints))]
    bad: set[int] = set()
    skip = ""
    alerts = [alert for alert, _ in changes]
    for alert, finding in changes:
        if finding.first > last:
            continue
        nights, back = finding.series.nights, recovery(finding)
        own = finding.series.key == series.key
        changed = nights[min(finding.places, default=finding.index) : back or finding.after[-1] + 1]
        accepted = alert.state == "closed" or alert.cause in _NOT_THE_PRODUCT
        if alert.shape == "transient" and (finding.is_over or not accepted):
            if own or (alert.part == "typical" and alert.cause in _OF_THE_CELL):
                bad.update(changed)
        elif alert.cause in _NOT_THE_PRODUCT:
            starts.append(nights[max((finding.index, *finding.places))])
        elif own and not accepted and (alert.worse or beside_worse(alert, alerts)):
            bad.update(changed)
            end = finding.end if back is None else back
            if end == len(nights) or nights[end] > last:
                skip = f"alert {alert.id} is {alert.state}"
        elif own:
            starts.append(nights[back or finding.after[0]])
    start = max((night for night in starts if night <= last), default=0)
    asked = {n: v for n, v in zip(series.nights, series.values, strict=True) if last - DAYS < n <= last}
    kept = {n: v for n, v in asked.items() if n >= start and n not in bad}
    return Nights(tuple(kept.values()), tuple(n for n in asked if n not in kept), skip)
