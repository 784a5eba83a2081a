"""Content of a dashboard: cells with their series, alerts, suspects and bisections.

Times are UTC to the second, ``2026-04-12T19:01:15Z``. Effects are relative to the level before, or a
difference of shares where the metric is ``absolute``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfbisect.bisect.documents import ReportDocument
from perfbisect.jobs.documents import MetricDocument
from perfbisect.series.alerts import Alert
from perfbisect.series.detection.levels import SeriesLevel
from perfbisect.series.suspects.report import SuspectsDocument

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class SitePoint:
    """A cell's result in one build; its values are in the series.

    ``commits``: first-parent commits since the cell's point before. ``of_main``: None if it is not known
    whether the build was one of the main branch.
    """

    build: str
    time: str
    commit: str = ""
    subject: str = ""
    commits: int | None = None
    url: str = ""
    of_main: bool | None = None
    covariates: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteMark:
    """Something else changed at point ``at`` (index).

    ``cut``: the workload or the instrument is different from there on, and nothing is compared across it;
    otherwise it is a hint at a cause.
    """

    at: int
    what: str
    cut: bool = True


@dataclass(frozen=True)
class SmallChange:
    """A change that is not reported, at point ``at`` (index): too small or too uncertain."""

    at: int
    effect: float
    interval: tuple[float, float]
    why: str


class SiteMetric(MetricDocument):
    """A metric of a series, its name with the statistic (``ttft:p99``). ``absolute``: effects are differences
    of shares, not ratios."""

    absolute: bool = False


@dataclass(frozen=True)
class SiteSeries:
    """One metric of a cell: a value or None for each of the cell's points, and what was detected in it.

    ``note``: why it was not judged, or the smallest step that it can show.
    """

    metric: SiteMetric
    values: tuple[float | None, ...]
    levels: tuple[SeriesLevel, ...] = ()
    small: tuple[SmallChange, ...] = ()
    discontinuities: tuple[SiteMark, ...] = ()
    judged: bool = True
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class SiteCell:
    """A cell on one kind of machine.

    ``name`` contains the machine if the cell was measured on several kinds. ``load``: its concurrency or
    request rate, ``c64`` or ``r2.0``. ``headline``: the series that is shown first; ``rows``: the workload.
    """

    name: str
    family: str
    model: str
    load: str
    machine: str
    headline: str
    digest: str = ""
    rows: tuple[tuple[str, str], ...] = ()
    points: tuple[SitePoint, ...]
    series: tuple[SiteSeries, ...]


@dataclass(frozen=True)
class SiteBisection:
    """A bisection and the alerts it was made for."""

    report: ReportDocument
    alerts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Site:
    """All that a site shows.

    ``made``: when it was built. ``commit_url``: the address of a commit with ``{sha}``; empty: no links.
    ``census``: how many series were judged, and how many not, by reason.
    """

    title: str
    made: str
    cells: tuple[SiteCell, ...]
    alerts: tuple[Alert, ...] = ()
    suspects: tuple[SuspectsDocument, ...] = ()
    bisections: tuple[SiteBisection, ...] = ()
    commit_url: str = ""
    census: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
