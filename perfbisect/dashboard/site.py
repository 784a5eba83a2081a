"""Content of a dashboard: cells with their series, alerts, suspects and bisections.

Moments are UTC to the second, ``2026-04-12T19:01:15Z``. Effects are relative to the level before, or a
difference of shares where the metric is ``absolute``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field, model_validator

from perfbisect.bisect.documents import ReportDocument
from perfbisect.jobs.documents import Document, MetricDocument
from perfbisect.series.alerts import Alert, Moment, Real
from perfbisect.series.suspects.report import SuspectsDocument

Scalar = str | int | float | bool | None


class PointDocument(Document):
    """A cell's result in one build; its values stand in the series.

    ``commits``: first-parent commits since the cell's point before. ``of_main``: None where it is not known
    whether the build was one of the main branch. ``covariates``: see ``core.point.COVARIATES``.
    """

    build: str
    time: Moment
    commit: str = ""
    subject: str = ""
    commits: int | None = None
    url: str = ""
    of_main: bool | None = None
    covariates: dict[str, Scalar] = Field(default_factory=dict)


class LevelDocument(Document):
    """A stretch between two changes, from point ``first`` to point ``last`` (indices, both included).

    ``low`` and ``high`` are the 95 % interval of the level; ``spread`` is the relative robust standard
    deviation of its nights.
    """

    first: int
    last: int
    value: Real
    low: Real
    high: Real
    spread: Real | None = None


class MarkDocument(Document):
    """Something else changed at point ``at`` (index).

    ``cut``: the workload or the instrument is another one from there on, and nothing is compared across it;
    if not, it is a hint at a cause.
    """

    at: int
    what: str
    cut: bool = True


class SmallDocument(Document):
    """A change that was seen and is not alarmed, at point ``at`` (index): too small, or not sure enough."""

    at: int
    effect: Real
    interval: tuple[Real, Real]
    why: str


class SeriesMetricDocument(MetricDocument):
    """A metric of a series, its name with the statistic (``ttft:p99``). ``absolute``: effects are differences
    of shares, not ratios."""

    absolute: bool = False


class SeriesDocument(Document):
    """One metric of a cell: a value (or none) for each of the cell's points, and what was found in it.

    ``note``: why it was not judged, or how small a step so few nights can show.
    """

    metric: SeriesMetricDocument
    values: tuple[Real | None, ...]
    levels: tuple[LevelDocument, ...] = ()
    small: tuple[SmallDocument, ...] = ()
    discontinuities: tuple[MarkDocument, ...] = ()
    judged: bool = True
    note: str = ""


class SiteCellDocument(Document):
    """A cell on one kind of machine.

    ``name`` is the cell's, with the machine in it where the cell was measured on several kinds. ``load``: its
    concurrency or request rate, ``c64`` or ``r2.0``. ``headline`` names the series that is shown first;
    ``rows`` say what is measured.
    """

    name: str
    family: str
    model: str
    load: str
    machine: str
    headline: str
    digest: str = ""
    rows: tuple[tuple[str, str], ...] = ()
    points: tuple[PointDocument, ...]
    series: tuple[SeriesDocument, ...]

    @model_validator(mode="after")
    def _agrees(self) -> SiteCellDocument:
        count, times = len(self.points), [point.time for point in self.points]
        if not count:
            raise ValueError(f"{self.name!r} has no points")
        if times != sorted(times):
            raise ValueError(f"the points of {self.name!r} are in order of time")
        for item in self.series:
            where = f"{self.name!r}, {item.metric.name!r}"
            if len(item.values) != count:
                raise ValueError(f"{where}: {len(item.values)} values for {count} points")
            if any(not 0 <= x.first <= x.last < count for x in item.levels):
                raise ValueError(f"{where}: a level lies between two of its points")
            marks = [x.at for x in item.small] + [x.at for x in item.discontinuities]
            if any(not 0 <= at < count for at in marks):
                raise ValueError(f"{where}: a change is at one of its points")
        names = [item.metric.name for item in self.series]
        if self.headline not in names or len(set(names)) < len(names):
            raise ValueError(
                f"{self.name!r}: {self.headline!r} is one of its metrics, each stands once: {names}"
            )
        return self


class BisectionDocument(Document):
    """A bisection that was made, and the alerts that it was made for."""

    report: ReportDocument
    alerts: tuple[str, ...] = ()


class SiteDocument(Document):
    """All that a site shows.

    ``made``: when it was made. ``commit_url``: the address of a commit with ``{sha}`` in it; empty: no links.
    ``census``: what was judged and what was not, in words, with how many. ``notes``: remarks on all of it.
    """

    schema_: Literal["perfbisect.site/2"] = Field(default="perfbisect.site/2", alias="schema")
    title: str
    made: Moment
    cells: tuple[SiteCellDocument, ...]
    alerts: tuple[Alert, ...] = ()
    suspects: tuple[SuspectsDocument, ...] = ()
    bisections: tuple[BisectionDocument, ...] = ()
    commit_url: str = ""
    census: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _agrees(self) -> SiteDocument:
        series = {(cell.name, item.metric.name) for cell in self.cells for item in cell.series}
        _once("cell", (cell.name for cell in self.cells))
        _once("alert", (alert.id for alert in self.alerts))
        _once("ranking", (ranking.alert for ranking in self.suspects))
        _once("job", (bisection.report.job for bisection in self.bisections))
        known = {alert.id for alert in self.alerts}
        for alert in self.alerts:
            if (alert.cell, alert.metric) not in series:
                raise ValueError(f"alert {alert.id!r} is of no series: {alert.cell!r}, {alert.metric!r}")
        named = {ranking.alert for ranking in self.suspects}
        named |= {alert for bisection in self.bisections for alert in bisection.alerts}
        if named - known:
            raise ValueError(f"no such alerts: {sorted(named - known)}")
        return self


def _once(what: str, names: Iterable[str]) -> None:
    """:raises ValueError: a name stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"there are two of one {what}: {name!r}")
        seen.add(name)
