"""Many series judged together: false discovery rate, coverage, and nights at which several changed.

Every series gives its evidence e(b) for a change before night b. Series of one server start share its luck:
they are one vote, their mean, which is an e-value whatever binds them. The votes are independent and
multiply, each mixed with indifference, since a change reaches an unknown share of the servers:

    E(b) = mean over shares of the product over groups of (1 - share + share * mean of e(b))

By Markov's inequality the sum of E(b) / (number of nights) reaches 1 / p with a probability of at most p
where nothing changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
from pydantic import ConfigDict

from perfbisect.series.detection.likelihood import INNER, likely_places
from perfbisect.series.detection.model import (
    ChangePoint,
    JudgedSeries,
    SeriesRefusal,
    SeriesValues,
    Test,
    judge_series,
)
from perfbisect.series.points import Night
from perfbisect.stats.robust import Array, log_sum_exp

FDR = 0.05  # share of false ones among the series that are reported to have changed
_EVENT_P = 0.01  # largest p of a joint event

_SHARES = (0.5, 0.15, 0.05)  # shares of the servers that are weighed, so that many quiet ones do not outvote
_SUPPORT = math.log(3.0)  # log evidence from which a series or a group supports or contradicts an event
_MAX_VOTE = 20.0  # log evidence beyond which one group adds nothing: no single server decides an event


_JSON = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


@dataclass(frozen=True, kw_only=True)
class SeriesCoverage:
    """A series, or a segment of one.

    ``p``: of a step or drift, ``p_transient``: of a transient. ``smallest``: the step detected with a power
    of 0.8, a ratio; ``why``: the reason it was not judged.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    series: str
    nights: int
    p: float | None = None
    p_transient: float | None = None
    smallest: float | None = None
    changes: int = 0
    why: SeriesRefusal | None = None


@dataclass(frozen=True)
class Coverage:
    """The series that were judged, then those that were not; ``cut``: the largest significant p of a test.

    Steps and transients are two families: many wild nights do not make steps significant.
    """

    series: tuple[SeriesCoverage, ...]
    fdr: float
    cut: Mapping[Test, float]

    @property
    def judged(self) -> int:
        return sum(entry.why is None for entry in self.series)

    def is_significant(self, point: ChangePoint) -> bool:
        return point.p <= self.cut[point.test]


@dataclass(frozen=True)
class JointChange:
    """A change between two nights for which no series is evidence enough by itself.

    ``after``: the last night surely before it, ``by``: the first surely after it. ``p``: bound on the
    probability of so much evidence without a change. ``series`` support it by themselves; ``servers``
    (groups) support it, ``against`` contradict it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    after: Night
    by: Night
    p: float
    series: tuple[str, ...]
    servers: tuple[str, ...]
    against: tuple[str, ...]

    def includes(self, night: int) -> bool:
        return self.after < night <= self.by


@dataclass(frozen=True)
class Detection:
    """The changes of many series by key, significant or not."""

    points: Mapping[str, tuple[ChangePoint, ...]]
    events: tuple[JointChange, ...]
    coverage: Coverage

    @property
    def alerts(self) -> tuple[ChangePoint, ...]:
        """Those that are significant and relevant."""
        points = [point for points in self.points.values() for point in points]
        return tuple(x for x in points if x.is_relevant and self.coverage.is_significant(x))


Judge = Callable[[SeriesValues, float], JudgedSeries]
"""Judges a series at a rate of false alarms, as :func:`judge_series`."""


def detect_all(series: Sequence[SeriesValues], fdr: float = FDR, judge: Judge = judge_series) -> Detection:
    """Judge every series at the false discovery rate ``fdr``.

    Two hypotheses a series, "its level did not change" and "no night is apart from its level", each in a
    family of its own, by Benjamini and Hochberg (1995), which also holds for series of a server that go up
    and down together (Benjamini and Yekutieli 2001: positive dependence). Each series has a key of its own.
    """
    valid = [item for item in series if not item.refusal]
    # A series is also judged at this rate by itself: what it finds decides its shape, the cut which is
    # reported.
    judged = [judge(item, fdr) for item in valid]
    points, entries = {}, []
    for item, j in zip(valid, judged, strict=True):
        points[item.key] = j.points
        nights, changes = len(item.values), len(j.points)
        entries.append(
            SeriesCoverage(
                series=item.key,
                nights=nights,
                p=j.p["level"],
                p_transient=j.p["transient"],
                smallest=j.smallest,
                changes=changes,
            )
        )
    for item in series:
        if item.refusal:
            entries.append(SeriesCoverage(series=item.key, nights=len(item.values), why=item.refusal))
    tests: tuple[Test, ...] = get_args(Test)
    # With one p for both tests each transient night was a discovery that raised the cut for all steps.
    cut = {test: threshold([j.p[test] for j in judged], fdr) for test in tests}
    coverage = Coverage(tuple(entries), fdr, cut)
    return Detection(points, find_joint_changes(valid, judged, fdr), coverage)


def threshold(p: Sequence[float], fdr: float) -> float:
    """The largest significant p: k / m of ``fdr`` where k of m series are rejected, 0 where none is.

    Further changes of a rejected series are significant up to it, too. scipy.stats.false_discovery_control
    takes longer to import than most detections.
    """
    ranks = np.arange(1, len(p) + 1)
    rejected = ranks[np.sort(np.array(p, float)) * len(p) / ranks <= fdr]
    return fdr * int(rejected.max(initial=0)) / max(1, len(p))


def find_joint_changes(
    series: Sequence[SeriesValues], judged: Sequence[JudgedSeries], rate: float = _EVENT_P
) -> tuple[JointChange, ...]:
    """The nights at which at least two series changed together, in order of time."""
    nights = np.array(sorted({night for item in series for night in item.nights}))[1:]
    if len(nights) < 2 or len(series) < 2:
        return ()
    evidence = np.zeros((len(series), len(nights)))
    for row, item, j in zip(evidence, series, judged, strict=True):
        # A night that the series lacks is part of the change before its next one.
        at = np.searchsorted(np.array(item.nights), nights)
        inside = (at > 0) & (at < len(item.nights))
        row[inside] = j.evidence[at[inside]]
    # Series of one server start are not independent; a series without a group counts as a start of its own.
    names = [s.group or s.key for s in series]
    groups = list(dict.fromkeys(names))
    votes = np.array([_log_mean(evidence[[name == group for name in names]]) for group in groups])
    # The cap is one-sided: evidence against is bounded by the mix with indifference already.
    capped = np.minimum(votes, _MAX_VOTE)
    # It is not known how many servers a change reaches, so that the shares are averaged, not chosen.
    mixed = [np.logaddexp(math.log1p(-share), math.log(share) + capped).sum(0) for share in _SHARES]
    joint = _log_mean(np.array(mixed))

    def events() -> Iterator[JointChange]:
        free = np.ones(len(nights), bool)
        while free.any():
            peak = low = high = int(np.argmax(np.where(free, joint, -np.inf)))
            # A change explains the nights next to it, and on while they support one.
            while low > 0 and free[low - 1] and (peak - low < INNER or joint[low - 1] > 0):
                low -= 1
            while high < len(joint) - 1 and free[high + 1] and (high - peak < INNER or joint[high + 1] > 0):
                high += 1
            near = np.arange(low, high + 1)
            # A uniform prior over all nights: it is the correction for the search over nights.
            total = float(log_sum_exp(joint[near])) - math.log(len(nights))
            # Markov alone, without SAFETY: that factor was simulated for single series.
            if total < -math.log(rate):
                break
            free[near] = False
            weights = np.exp(joint[near] - joint[near].max())
            at = likely_places(near, weights / weights.sum(), 0.95)
            support, vote = evidence[:, at].max(1), votes[:, at].max(1)
            members = tuple(s.key for s, e in zip(series, support, strict=True) if e > _SUPPORT)
            before = max(n for item in series for n in item.nights if n < int(nights[at[0]]))
            # A change in one series alone is an alert, not an event.
            if len(members) > 1:
                yield JointChange(
                    after=before,
                    by=int(nights[at[-1]]),
                    p=math.exp(-total),
                    series=members,
                    servers=tuple(g for g, e in zip(groups, vote, strict=True) if e > _SUPPORT),
                    against=tuple(g for g, e in zip(groups, vote, strict=True) if e < -_SUPPORT),
                )

    return tuple(sorted(events(), key=lambda event: (event.after, event.by)))


def _log_mean(logs: Array) -> Array:
    return log_sum_exp(logs, axis=0) - math.log(len(logs))
