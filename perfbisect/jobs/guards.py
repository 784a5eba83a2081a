"""Metrics that must not move while the headline does: in the confirming A/B, launches against launches."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from perfbisect.jobs.documents import GuardDocument, reported_value
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.serving.families import FAMILIES


def guard_metrics(cell: Cell) -> tuple[MetricRef, ...]:
    """The guards of a cell: its own and its family's, each once."""
    names = dict.fromkeys((*cell.guards, *FAMILIES[cell.family].guards))
    return tuple(parse_metric(name) for name in names)


def compare_guards(
    metrics: Sequence[MetricRef], left: Sequence[Attempt], right: Sequence[Attempt]
) -> tuple[GuardDocument, ...]:
    """Each guard on both sides: one value a launch, the medians, and whether it moved.

    It moved if the medians differ by more than the metric's smallest effect and no launch of one side lies
    among those of the other: two launches agree, where there are two.
    """
    return tuple(_guard(metric, left, right) for metric in metrics)


def _guard(metric: MetricRef, left: Sequence[Attempt], right: Sequence[Attempt]) -> GuardDocument:
    row = metric.metric
    sides = [
        [v for v in (reported_value(a, metric) for a in side) if v is not None] for side in (left, right)
    ]
    document = GuardDocument(
        name=str(metric), display=row.display, unit=row.unit, left=None, right=None, moved=False
    )
    if not sides[0] or not sides[1]:
        return document.model_copy(update={"note": "not reported"})
    a, b = median(sides[0]), median(sides[1])
    size = abs(b - a) if row.absolute else abs(b - a) / abs(a) if a else float(b != a)
    apart = max(sides[0]) < min(sides[1]) or max(sides[1]) < min(sides[0])
    note = "one launch a side only" if min(map(len, sides)) < 2 else ""
    return document.model_copy(
        update={"left": a, "right": b, "moved": size > row.smallest_effect and apart, "note": note}
    )
