"""Many series judged together: how many false alarms are among those told, and which nights several share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfbisect.series.detection.joint import JointEvent, find_joint_events
from perfbisect.series.detection.model import ChangePoint, JudgedSeries, SeriesValues, judge_series
from perfbisect.stats.robust import Array

FDR = 0.05
"""Share of false ones among the series that are told to have changed."""


@dataclass(frozen=True)
class CoverageEntry:
    """A series that was judged."""

    key: str
    nights: int
    p: float
    """The smallest p of anything in it."""
    smallest: float
    """The smallest step that it would have shown in four of five cases: a ratio, or a difference."""
    breaks: int
    """Changes told of it, alarmed or listed."""


@dataclass(frozen=True)
class RefusedSeries:
    """A series that was not judged, and why."""

    key: str
    nights: int
    reason: str


@dataclass(frozen=True)
class Coverage:
    """What was judged and what was not: the denominator of every rate."""

    judged: tuple[CoverageEntry, ...]
    refused: tuple[RefusedSeries, ...]
    fdr: float
    cut: float
    """The largest significant p, :func:`threshold`; 0 where none is."""

    def is_significant(self, p: float) -> bool:
        """Whether a change of this p is reported at the false discovery rate."""
        return p <= self.cut


@dataclass(frozen=True)
class Detection:
    """The changes of many series."""

    alerts: tuple[ChangePoint, ...]
    """Told at the false discovery rate, and at least the smallest effect worth telling."""
    listed: tuple[ChangePoint, ...]
    """Seen at a p of at most the rate, and too small to tell or too many to be sure among so many series."""
    events: tuple[JointEvent, ...]
    """Nights at which the series together speak of a change."""
    census: Coverage


def detect_all(series: Sequence[SeriesValues], fdr: float = FDR) -> Detection:
    """Judge every series, and hold the expected share of false ones among those alarmed at ``fdr``.

    One hypothesis a series, "nothing changed in it", by Benjamini and Hochberg (1995) over all that were
    judged, which also holds where series that share a server go up and down together (Benjamini and
    Yekutieli 2001: positive dependence).

    :raises ValueError: two series of one key, or a rate outside (0, 1).
    """
    if not 0 < fdr < 1:
        raise ValueError(f"a false discovery rate lies between 0 and 1: {fdr}")
    keys = [item.key for item in series]
    if len(set(keys)) != len(keys):
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise ValueError(f"series of one key: {', '.join(twice)}")
    refused = tuple(RefusedSeries(s.key, len(s.values), s.refusal) for s in series if s.refusal)
    able = [s for s in series if not s.refusal]
    seen = [judge_series(s, fdr) for s in able]
    cut = threshold([j.p for j in seen], fdr)
    found = [b for j in seen for b in j.breaks]
    entries = tuple(_entry(s, j) for s, j in zip(able, seen, strict=True))
    coverage = Coverage(entries, refused, fdr, cut)
    reported = [coverage.is_significant(point.p) and point.telling for point in found]
    alerts = tuple(point for point, is_alert in zip(found, reported, strict=True) if is_alert)
    listed = tuple(point for point, is_alert in zip(found, reported, strict=True) if not is_alert)
    return Detection(alerts, listed, find_joint_events(able, seen, fdr), coverage)


def _entry(series: SeriesValues, judged: JudgedSeries) -> CoverageEntry:
    return CoverageEntry(series.key, len(series.values), judged.p, judged.smallest, len(judged.breaks))


def adjusted_p(p: Sequence[float]) -> Array:
    """Benjamini and Hochberg's adjusted p: the smallest rate at which each hypothesis would be rejected.

    As scipy.stats.false_discovery_control, whose import takes longer than most detections.
    """
    values = np.array(p, float)
    by = np.argsort(-values, kind="stable")
    ranks = np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[by] = np.minimum.accumulate(np.minimum(1.0, values[by] * len(values) / ranks))
    return adjusted


def threshold(p: Sequence[float], fdr: float) -> float:
    """The largest p that may be told at ``fdr``: k / m of it where Benjamini and Hochberg's step-up rule
    rejects k of m series; 0 where it rejects none. A further change of a series that is rejected is told up
    to it too."""
    return fdr * int(np.sum(adjusted_p(p) <= fdr)) / max(1, len(p))
