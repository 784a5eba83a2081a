"""What the site is made of: cells with their series, alerts, suspects, bisections. Everything is decided
before; a site shows it and judges nothing.

The parts are the JSON of ``track detect`` (alerts) and ``track suspects`` (suspects), each with what only a
page needs. Moments are UTC to the second, ``2026-04-12T19:01:15Z``. Effects are relative to the level before
(0.1: 10 % more, whether that is better or worse), or a difference of shares where the metric is ``absolute``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from perfbisect.jobs.documents import Document, LongDocument, MetricDocument, ReportDocument
from perfbisect.series.alerts import Alert, Moment, Probability, Real, ReportRow, State
from perfbisect.series.detection.model import Shape
from perfbisect.series.findings import RejectionKind


class FateDocument(Document):
    """Results that are no points, by why; with one of them."""

    fate: str
    count: int
    reason: str
    file: str


class TrackIngestDocument(Document):
    """``perfbisect track ingest``. ``points``, ``rejected``: of the builds of which something was new."""

    schema_: Literal["perfbisect.track-ingest/1"] = Field(default="perfbisect.track-ingest/1", alias="schema")
    store: str
    builds: int
    new: int
    changed: int
    unchanged: int
    elsewhere: int
    points: int
    rejected: tuple[FateDocument, ...]
    cells: int
    builds_not_of_main: int
    builds_of_unknown_branch: int


class TrendRowDocument(Document):
    """One night of a cell. ``value`` None: it has none, ``marks`` say why. ``change``: against the last value
    before, as a share (of a share: the difference). ``main``: None where the branch is not known."""

    began: str
    night: str
    build: str
    url: str
    commit: str
    main: bool | None
    value: float | None
    change: float | None
    marks: tuple[str, ...]


class TrendDocument(Document):
    """A metric of a cell. ``lacking``: points of the cell that do not report it.

    ``neutral``: neither more nor less of it is better, whatever its ``direction`` says: it is a property of
    what is asked or answered.
    """

    cell: str
    metric: MetricDocument
    rows: tuple[TrendRowDocument, ...]
    lacking: int
    neutral: bool = False


class CellLineDocument(Document):
    """A cell in the list: its last value of a metric."""

    cell: str
    metric: str
    unit: str
    nights: int
    first: str
    last: str
    value: float
    change: float | None
    marks: tuple[str, ...]


class TrackTrendDocument(Document):
    """``perfbisect track trend``: the tables that were asked for, or the list of all cells."""

    schema_: Literal["perfbisect.track-trend/1"] = Field(default="perfbisect.track-trend/1", alias="schema")
    tables: tuple[TrendDocument, ...]
    cells: tuple[CellLineDocument, ...]
    unknown_branch: int


class BaselineDocument(Document):
    """A baseline: ``name`` and numbers as the specification has them. ``n``: nights of the mean;
    ``left_out``: other nights that were measured, of another level or workload."""

    cell: str
    name: str
    old: float | None
    mean: float | None
    new: float | None
    change: float | None
    n: int
    status: str
    why: str
    left_out: tuple[str, ...] = ()


class TrackRebaselineDocument(Document):
    """``perfbisect track rebaseline``: means from ``first`` to ``last``, both included."""

    schema_: Literal["perfbisect.track-rebaseline/1"] = Field(
        default="perfbisect.track-rebaseline/1", alias="schema"
    )
    first: str
    last: str
    rows: tuple[BaselineDocument, ...]


class TrackExportDocument(Document):
    """``perfbisect track export`` into files, by what they are; ``points``: those that were read."""

    schema_: Literal["perfbisect.track-export/1"] = Field(default="perfbisect.track-export/1", alias="schema")
    format: str
    files: dict[str, str]
    points: int
    cells: int


class TrackPublishDocument(Document):
    """``perfbisect track publish``. ``launches`` stand in the folder now; ``left_out`` do not, and why."""

    schema_: Literal["perfbisect.track-publish/1"] = Field(
        default="perfbisect.track-publish/1", alias="schema"
    )
    folder: str
    launches: int
    written: tuple[str, ...]
    unchanged: int
    removed: tuple[str, ...]
    left_out: tuple[str, ...]


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


class BoundaryDocument(Document):
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
    boundaries: tuple[BoundaryDocument, ...] = ()
    judged: bool = True
    note: str = ""


class SiteCellDocument(Document):
    """A cell's lineage on one kind of machine.

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
        for one in self.series:
            where = f"{self.name!r}, {one.metric.name!r}"
            if len(one.values) != count:
                raise ValueError(f"{where}: {len(one.values)} values for {count} points")
            if any(not 0 <= x.first <= x.last < count for x in one.levels):
                raise ValueError(f"{where}: a level lies between two of its points")
            marks = [x.at for x in one.small] + [x.at for x in one.boundaries]
            if any(not 0 <= at < count for at in marks):
                raise ValueError(f"{where}: a change is at one of its points")
        names = [one.metric.name for one in self.series]
        if self.headline not in names or len(set(names)) < len(names):
            raise ValueError(
                f"{self.name!r}: {self.headline!r} is one of its metrics, each stands once: {names}"
            )
        return self


class FactorDocument(Document):
    """One piece of evidence for or against a commit: by how much it multiplies its odds."""

    name: str
    weight: Real
    words: str


class SuspectDocument(Document):
    """A commit of an alert's window. ``evidence``: what its probability is a product of."""

    sha: str
    subject: str
    date: str
    p: Probability
    evidence: tuple[FactorDocument, ...]


class SuspectsDocument(Document):
    """The commits that could be behind an alert, best first, and the command that settles it.

    ``elsewhere``: the probability that none of them is it. ``radius``: what the cells that were hit have and
    the others have not. ``attributed``: by which commit's revert the series recovered. ``note``: why there
    are no suspects, or what is not known of them.
    """

    alert: str
    suspects: tuple[SuspectDocument, ...]
    elsewhere: Probability = 0.0
    radius: str = ""
    attributed: str = ""
    bisect: str = ""
    note: str = ""


class BisectionDocument(Document):
    """A bisection that was made, and the alerts that it was made for."""

    report: ReportDocument
    alerts: tuple[str, ...] = ()


class SiteDocument(Document):
    """All that a site shows.

    ``made``: when it was made. ``commit_url``: the address of a commit with ``{sha}`` in it; empty: no links.
    ``census``: what was judged and what was not, in words, with how many. ``told``: what a reader must know
    of all of it.
    """

    schema_: Literal["perfbisect.site/1"] = Field(default="perfbisect.site/1", alias="schema")
    title: str
    made: Moment
    cells: tuple[SiteCellDocument, ...]
    alerts: tuple[Alert, ...] = ()
    suspects: tuple[SuspectsDocument, ...] = ()
    bisections: tuple[BisectionDocument, ...] = ()
    commit_url: str = ""
    census: tuple[tuple[str, int], ...] = ()
    told: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _agrees(self) -> SiteDocument:
        series = {(cell.name, one.metric.name) for cell in self.cells for one in cell.series}
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


class ListedDocument(Document):
    """A change that was seen and is no alert: ``kind`` of reason, and ``why`` as a sentence."""

    cell: str
    metric: str
    first: str
    shape: Shape
    effect: float
    interval: tuple[float, float]
    p: float
    kind: RejectionKind
    why: str


class TogetherDocument(Document):
    """Series that together speak of a change, after the night ``after`` and by ``by``; none shows it alone.

    ``servers`` are for it, ``against`` are not; ``p``: how often so much comes about without a change, at
    most.
    """

    after: str
    by: str
    p: float
    series: tuple[str, ...]
    servers: tuple[str, ...]
    against: tuple[str, ...]


class ElsewhereDocument(Document):
    """A night from which on series are others: nothing is compared across it. ``series``: how many are."""

    night: str
    kind: str
    what: str
    series: int
    cells: tuple[str, ...]


class SeriesCensusDocument(Document):
    """A series, or a stretch of one between two boundaries. ``why``: why it was not judged. ``smallest``: the
    smallest step that so many such nights show in four of five cases, a ratio."""

    series: str
    nights: int
    p: float | None = None
    smallest: float | None = None
    changes: int = 0
    why: str = ""


class FamilyDocument(Document):
    """Series that are judged together: alerts of them are false at the rate ``fdr``, at most; ``cut`` is the
    largest p that was alarmed."""

    name: Literal["medians and single numbers", "means and percentiles"]
    judged: int
    alarmed: int
    cut: float


class CensusDocument(Document):
    """What was judged and what was not."""

    families: tuple[FamilyDocument, ...]
    series: tuple[SeriesCensusDocument, ...]
    not_judged: dict[str, int]
    builds_not_of_main: int


class GoneDocument(Document):
    """An alert that was told and is not found any more. ``new``: it was found the last time; ``seen``: when
    that was."""

    id: str
    cell: str
    metric: str
    state: State
    seen: str
    new: bool = False


class TrackDetectDocument(LongDocument):
    """``perfbisect track detect``. ``until``: the last night of the store; ``since``: the night from which on
    changes are told, empty for all."""

    shown: ClassVar[Mapping[str, int]] = {"alerts": 12, "listed": 5, "gone": 12, "boundaries": 12}
    schema_: Literal["perfbisect.track-detect/1"] = Field(default="perfbisect.track-detect/1", alias="schema")
    fdr: float
    since: str
    until: str
    alerts: tuple[Alert, ...]
    listed: tuple[ListedDocument, ...]
    together: tuple[TogetherDocument, ...]
    boundaries: tuple[ElsewhereDocument, ...]
    gone: tuple[GoneDocument, ...]
    census: CensusDocument

    def brief(self) -> TrackDetectDocument:
        """The alerts that are new, then those that are open and newest; of the census no single series."""
        alerts = sorted(self.alerts, key=lambda alert: alert.first, reverse=True)
        alerts.sort(key=lambda alert: (not (alert.new or alert.is_news), alert.state != "open"))
        brief = self.model_copy(update={"alerts": tuple(alerts)})
        brief = LongDocument.brief(brief)
        if not self.census.series:
            return brief
        left = {**brief.left_out, "census.series": len(self.census.series)}
        census = self.census.model_copy(update={"series": ()})
        return brief.model_copy(update={"census": census, "left_out": left})


class TrackStateDocument(Document):
    """``perfbisect track ack``, ``close`` and ``reopen``. Of an event ``alerts`` says how many are in it;
    ``cell``, ``metric`` and ``before`` are those of the first."""

    schema_: Literal["perfbisect.track-state/1"] = Field(default="perfbisect.track-state/1", alias="schema")
    id: str
    cell: str
    metric: str
    state: State
    before: State
    why: str
    alerts: int = 1


class TrackReportDocument(Document):
    """``perfbisect track report``: the nightly's table, and the events behind it. ``engine``: its version,
    empty where the last night does not say it. ``quiet``: series that were judged and show nothing."""

    schema_: Literal["perfbisect.track-report/1"] = Field(default="perfbisect.track-report/1", alias="schema")
    night: str
    build: str
    commit: str
    engine: str = ""
    rows: tuple[ReportRow, ...]
    quiet: int
    detect: TrackDetectDocument

    def brief(self) -> TrackReportDocument:
        return self.model_copy(update={"detect": self.detect.brief()})
