"""What is behind a change that was found: who else moved on the same nights, and what besides."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from statistics import median

from perfbisect.model.metric import STAGE
from perfbisect.series.causes import (
    NEAR,
    Cause,
    ChangeContext,
    Evidence,
    Neighbour,
    NightCovariates,
    covariates_of,
    infer_cause,
)
from perfbisect.series.detection.evidence import INNER
from perfbisect.series.findings import SeriesChange
from perfbisect.series.points import Workload
from perfbisect.series.series import HEADLINES, CellSeries

Traits = Callable[[str], frozenset[str]]
"""The name of a cell -> what it runs."""

BACK = 20
"""Nights before a change over which a neighbour's noise is taken."""

_FEWEST = 3
"""Nights before, without which it is not known what a neighbour does every night."""
_LEVEL = 7
"""Nights whose median is a neighbour's level before."""
_FLOOR = 0.005
"""Least noise of a neighbour, of logs: nights that agree to the last digit are none without noise."""
_MAD = 1.4826
_LOW = 0.1
"""Requests a second up to which a cell is of low concurrency."""
_SHARE = 0.25
"""Of a move, what another metric of the same requests must show of it at least."""

_SEVERAL = 5
"""Nights of a step from which on they alone say that it stays: were machines of two kinds, so many in a row
of one kind would be rarer than one in twenty."""
_SETTLED = 7
"""Nights of a step from which on it stays, whatever single nights before were like."""

_ENOUGH = 1.5
"""By how much a change may be larger, in logs, than that of the prompts which is behind it."""

_SAME = {"itl": "tpot"}
"""Metrics of one thing that count it otherwise: chunks and tokens of one stream."""


class SeriesIndex:
    """The series of all cells, found by cell and metric."""

    def __init__(self, series: Sequence[CellSeries], traits: Traits) -> None:
        self._traits = traits
        self._by_cell: dict[str, dict[str, CellSeries]] = {}
        for item in series:
            self._by_cell.setdefault(item.cell, {})[item.metric] = item

    def get(self, cell: str, metric: str) -> CellSeries | None:
        """A metric of a cell, None where it does not report it."""
        return self._by_cell.get(cell, {}).get(metric)

    def model(self, cell: str) -> str:
        """What a cell serves, as its newest result says; empty where none does."""
        points = (item.points[-1] for item in self._by_cell.get(cell, {}).values())
        return next((point.workload.model for point in points if point.workload.model), "")

    def changed_work(self, like: Workload, nights: Collection[int]) -> Iterator[tuple[int, str, str, float]]:
        """Where the prompts changed, on one of these nights, of a cell of the model and data set of a
        workload: the night, the cell, how, and the log of by how much."""
        for metrics in self._by_cell.values():
            series = next(iter(metrics.values()))
            load, tokens = series.points[-1].workload, [c.get("input_tokens") for c in series.covariates]
            for hint in series.hints if (load.model, load.dataset) == (like.model, like.dataset) else ():
                before, after = tokens[hint.index - 1], tokens[hint.index]
                if hint.kind == "workload" and series.nights[hint.index] in nights and before and after:
                    yield series.nights[hint.index], series.cell, hint.what, abs(math.log(after / before))

    def beside(self, finding: SeriesChange) -> tuple[Neighbour, ...]:
        """Every cell that was measured on both sides of a change, the change's own among them, by the same
        metric; a cell that does not report that, by its headline."""
        metric, found = finding.series.metric, []
        for metrics in self._by_cell.values():
            names = (metric, *HEADLINES)
            series = next((metrics[name] for name in names if name in metrics), None)
            moved = None if series is None else shift(series, finding)
            if series is None or moved is None:
                continue
            load = series.points[-1].workload
            found.append(
                Neighbour(
                    cell=series.cell,
                    start=series.group,
                    shift=moved[0],
                    noise=moved[1],
                    control=_control(load) or series.metric.startswith(STAGE),
                    traits=self._traits(series.cell),
                )
            )
        return tuple(found)


def shift(series: CellSeries, finding: SeriesChange) -> tuple[float, float] | None:
    """By how much another series moved between the nights before a change and those that show it: the log,
    above 0 worse, and its noise from night to night; None where it was not measured on both sides, or is
    another series since."""
    own = finding.series
    first, last = own.nights[finding.after[0]], own.nights[finding.after[-1]]
    left, edge = own.nights[finding.before[0]], own.nights[finding.before[-1]]
    after = [i for i, night in enumerate(series.nights) if first <= night <= last]
    before = [i for i, night in enumerate(series.nights) if left <= night <= edge][-BACK:]
    if not after or len(before) < _FEWEST:
        return None
    if any(before[0] < boundary.index <= after[-1] for boundary in series.boundaries):
        return None
    if any(series.values[i] <= 0 for i in (*before, *after)):
        return None
    logs = [math.log(series.values[i]) for i in before]
    level = median(logs[-_LEVEL:])
    noise = max(_FLOOR, _MAD * median(abs(x - median(logs)) for x in logs))
    return series.sign * (median(math.log(series.values[i]) for i in after) - level), noise


def _control(load: Workload) -> bool:
    return load.concurrency == 1 or (load.concurrency is None and load.rate <= _LOW)


def infer_causes(findings: Sequence[SeriesChange], cells: SeriesIndex) -> tuple[Cause, ...]:
    """The cause of each, with the evidence for it."""
    first = [_other_work(f, _corrected(f, _cause(f, cells), cells), cells) for f in findings]
    return tuple(_inherited(f, cause, findings, first) for f, cause in zip(findings, first, strict=True))


def _cause(finding: SeriesChange, cells: SeriesIndex) -> Cause:
    series, (name, _, statistic) = finding.series, finding.series.metric.partition(":")
    beside = cells.beside(finding)
    own = shift(series, finding)
    medians = cells.get(series.cell, name) if statistic else None
    typical = shift(medians, finding) if medians else None
    # What moved on its second night is not behind a transient, but for one that lasts like a level.
    shape = finding.found.shape
    if shape == "transient" and len(finding.after) >= INNER:
        shape = "step"
    passing = shape == "transient"
    counted = _counted(finding, cells.get(series.cell, "input_tokens"))
    found = ChangeContext(
        metric=name,
        shift=finding.shift,
        noise=own[1] if own else _spread(finding),
        shape=shape,
        before=_nights(series, finding.before, counted),
        after=_nights(series, finding.after[: 1 if passing else BACK], counted),
        statistic="median" if series.part == "typical" else statistic,
        median=typical[0] if typical else None,
        neighbours=beside,
        over=finding.until is not None,
        saved=_saved(finding) if statistic else None,
    )
    return infer_cause(found)


def _saved(finding: SeriesChange) -> float | None:
    """Seconds that slow requests took before and no longer do, by how far a mean fell (over all requests) or
    a percentile (of one); None where it did not fall or is no time."""
    series = finding.series
    unit = {"ms": 0.001, "s": 1.0}.get(series.row.unit)
    if unit is None or finding.shift >= 0:
        return None
    old = median(series.values[i] for i in finding.before[-NEAR:])
    new = median(series.values[i] for i in finding.after[:NEAR])
    completed = series.covariates[finding.after[0]].get("completed") or 1
    return unit * (old - new) * (float(completed) if series.part == "mean" else 1.0)


def _spread(finding: SeriesChange) -> float:
    logs = [math.log(finding.series.values[i]) for i in finding.before if finding.series.values[i] > 0]
    return max(_FLOOR, _MAD * median(abs(x - median(logs)) for x in logs)) if logs else _FLOOR


def _nights(
    series: CellSeries, places: Sequence[int], counted: tuple[int, int]
) -> tuple[NightCovariates, ...]:
    """The covariates of these nights, but for those that say nothing there.

    These are input tokens of nights that count them otherwise (those not in ``counted``, of which the second
    is not included), and how long a run took whose requests come at a rate.
    """
    paced = series.points[-1].workload.rate != math.inf
    found = []
    for place in places[-BACK:]:
        alike = counted[0] <= series.nights[place] < counted[1]
        mute = {*(() if alike else ("input_tokens",)), *(("duration",) if paced else ())}
        known = {k: v for k, v in series.covariates[place].items() if k not in mute}
        found.append(covariates_of(known))
    return tuple(found)


def _counted(finding: SeriesChange, tokens: CellSeries | None) -> tuple[int, int]:
    """From which night on, and up to which, input tokens were counted as they are around a change."""
    marks = () if tokens is None else tuple(tokens.nights[b.index] for b in tokens.boundaries)
    first = finding.first
    return max((n for n in marks if n <= first), default=0), min(
        (n for n in marks if n > first), default=10**9
    )


def _corrected(finding: SeriesChange, cause: Cause, cells: SeriesIndex) -> Cause:
    """What a product's needs besides: a median, and other metrics of the same requests that agree."""
    if cause.word != "product":
        return cause
    series = finding.series
    if series.part != "typical":
        return Cause("unknown", (Evidence("median unchanged"), *cause.evidence))
    twin = cells.get(series.cell, _SAME.get(series.metric, ""))
    moved = shift(twin, finding) if twin else None
    if twin and moved and moved[0] * math.copysign(1.0, finding.shift) < _SHARE * abs(finding.shift):
        return Cause("unknown", (Evidence("same stream unchanged", name=twin.metric), *cause.evidence))
    nights = len(finding.after)
    by_servers = cause.has("all servers moved", "shared trait")
    if finding.found.shape == "step" and nights < _SEVERAL and not by_servers:
        others = (evidence for evidence in cause.evidence if evidence.kind != "lasting")
        return Cause("unknown", (Evidence("few nights", nights=nights), *others))
    seen = _seen_before(finding)
    if seen is not None:
        return Cause("unknown", (Evidence("level seen before", night=seen), *cause.evidence))
    return cause


def is_affected(one: Neighbour, finding: SeriesChange) -> bool:
    """Whether a neighbour moved as a change did: beyond its own nights, that way, by a size to compare."""
    own = finding.shift
    return one.moved and one.shift * own > 0 and abs(one.shift) >= _SHARE * min(abs(own), math.log(2))


def _other_work(finding: SeriesChange, own: Cause, cells: SeriesIndex) -> Cause:
    """Of a change on a night on which the requests of the same data set to the same model changed, that: one
    specification makes them for several cells, and not every server counts what a picture becomes."""
    if own.word not in ("product", "unknown"):
        return own
    load = finding.series.points[-1].workload
    if not load.dataset or not load.model:
        return own
    for _, cell, what, size in cells.changed_work(load, finding.nights):
        if abs(finding.shift) <= _ENOUGH * size:
            changed = Evidence("same requests changed", what=what, cell=cell)
            return Cause("workload", (changed, *own.evidence))
    return own


def _seen_before(finding: SeriesChange) -> int | None:
    """The last night before a step that had the new level already; None where there is none, or where the
    step has lasted so long that it is no matter of nights."""
    if finding.found.shape != "step" or len(finding.after) > _SETTLED:
        return None
    values, sign = finding.series.values, finding.series.sign
    new = sign * median(math.log(values[i]) for i in finding.after)
    like = [
        i for i in range(finding.begin, finding.index)
        if abs(sign * math.log(values[i]) - new) < _SHARE * abs(finding.shift)
    ]  # fmt: skip
    return finding.series.nights[like[-1]] if like else None


def _inherited(
    finding: SeriesChange, own: Cause, findings: Sequence[SeriesChange], causes: Sequence[Cause]
) -> Cause:
    """Of a change that says nothing by itself, the cause of those that its server shows on that night, with
    their evidence: its own only says why it says nothing."""
    if own.word != "unknown" or finding.series.part != "typical":
        return own
    for other, cause in zip(findings, causes, strict=True):
        together = other.nights == finding.nights and other.series.group == finding.series.group
        if cause.word == "product" and together:
            beside = Evidence("same start moved", name=other.series.metric, cell=other.series.cell)
            return Cause("product", (beside, *cause.evidence))
    return own
