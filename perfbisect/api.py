"""perfbisect in Python: jobs and series as pandas DataFrames; detection and comparison of any numbers.

``import perfbisect`` has these names, too, and imports them on first use. What is not known is missing (NaN,
NaT, NA). A metric that perfbisect knows brings its direction, its smallest relevant effect, and whether it is
a share; ``perfbisect metrics`` lists them with their units.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from perfbisect.bisect.result import BisectResult
from perfbisect.commands.experiments import experiment_of
from perfbisect.commands.workspace import open_workspace
from perfbisect.engine.experiment import AnyExperiment
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import MeasuredDocument
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read, replaying
from perfbisect.jobs.replay import reported_value
from perfbisect.model.metric import Direction, find_metric
from perfbisect.report.html import report_html
from perfbisect.series.detection.fdr import FDR, detect_all
from perfbisect.series.detection.model import SeriesValues
from perfbisect.series.export import series_for_export, series_frame
from perfbisect.series.store import FILE, SeriesStore
from perfbisect.stats.ab_test import AbTest, AbVerdict, judge_samples
from perfbisect.system.files import write_atomic

SMALLEST_EFFECT = 0.03
"""The smallest relevant effect of numbers whose metric is not known: 3 %."""


@dataclass(frozen=True)
class Result:
    """A job, finished or not. ``document``: its result, which ``perfbisect report --format json`` prints."""

    document: MeasuredDocument
    experiment: AnyExperiment

    @property
    def outcome(self) -> str:
        """The verdict in a word; ``unfinished`` before."""
        return self.experiment.status(self.document).outcome

    @cached_property
    def launches(self) -> pd.DataFrame:
        """The launches, [launches, 15], by number in the order of their starts.

        ``position``: in the range of a bisection, 0 (A) or 1 (B) of a comparison. ``value`` and ``spread``
        (robust coefficient of variation over requests) are of the job's metric. ``started``: UTC; ``at``:
        minutes since the first launch; ``minutes``: how long it took, builds included.
        """
        of = self.document.launches
        columns = {
            "position": [launch.position for launch in of],
            "change": [launch.change.id for launch in of],
            "subject": [launch.change.subject for launch in of],
            "purpose": [launch.purpose for launch in of],
            "outcome": [launch.outcome for launch in of],
            "value": [launch.value for launch in of],
            "spread": [launch.spread for launch in of],
            "runs": [launch.runs for launch in of],
            "started": pd.to_datetime([launch.started_at for launch in of], utc=True, format="ISO8601"),
            "at": [launch.at for launch in of],
            "minutes": [launch.minutes for launch in of],
            "machine": [launch.machine for launch in of],
            "slot": [launch.slot for launch in of],
            "why": [launch.why for launch in of],
            "reason": [launch.reason for launch in of],
        }
        numbers = dict.fromkeys(("value", "spread", "at", "minutes"), "float64")
        index = pd.Index([launch.number for launch in of], name="launch", dtype="int64")
        return pd.DataFrame(columns, index=index).astype(numbers)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The value of each launch of each metric that it reports, [launches, metrics], by the same numbers.

        A column is a metric with its statistic (``ttft:p99``; the bare name: the median), in its unit.
        """
        rows = [
            {str(ref): reported_value(attempt, ref) for ref in map(find_metric, attempt.reported) if ref}
            if (attempt := launch.attempt)
            else {}
            for launch in self.document.launches
        ]
        return pd.DataFrame(rows, index=self.launches.index, dtype="float64")

    @cached_property
    def beliefs(self) -> pd.DataFrame:
        """The positions of a bisection, [positions, 4]; ``p``: the probability that one is the culprit.

        The good end is position 0. ``changes``: how many share the position, since their environments are
        equal; ``change`` is the first of them.

        Raises:
            UsageError: the job is no bisection.
        """
        document = self.document
        if not isinstance(document, BisectResult):
            raise UsageError(f"job {document.job} is no bisection: it has no beliefs about commits")
        count = len(document.history)
        p = document.beliefs.p if document.beliefs and document.beliefs.p else (np.nan,) * count
        first = [position.changes[0] for position in document.history]
        columns = {
            "change": [change.id for change in first],
            "subject": [change.subject for change in first],
            "changes": [len(position.changes) for position in document.history],
            "p": p,
        }
        return pd.DataFrame(columns, index=pd.RangeIndex(count, name="position"))

    def plot(self, file: str | Path) -> Path:
        """Write the figures with the report as one page of HTML, which opens from disk, and return its path.

        Raises:
            MachineError: the file cannot be written.
        """
        write_atomic(Path(file), self._page)
        return Path(file)

    @cached_property
    def _page(self) -> str:
        return report_html(self.experiment.report(self.document))

    def _repr_html_(self) -> str:
        """What a notebook shows: the page in a frame, in which only its own scripts run."""
        style = "width: 100%; height: 40em; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self._page)}"></iframe>'


def load(job: str | Path, *, state: str | Path | None = None) -> Result:
    """Read a job: its id or the beginning of one, or its folder.

    ``state``: the state folder, by default that of the command line.

    Raises:
        UsageError: there is no such job, or its journal cannot be read.
    """
    found = Job(Path(job))
    if not found.journal.is_file():
        found = open_workspace(state=None if state is None else Path(state)).jobs.find(str(job))
    events = read(found.journal).events
    kind = experiment_of(events)
    with replaying(found.journal):
        return Result(kind.result(found, events), kind)


def load_series(
    store: str | Path | None = None, cells: Sequence[str] = (), *, metric: str = "", since: str = ""
) -> pd.DataFrame:
    """The nightly series of a store, [points x metrics, 23], by cell and time: the table of ``track export``.

    ``store``: a state folder or its ``series.sqlite``, by default that of the command line. ``cells``: none
    named: all. ``since``: the first night (``2026-04-12``). ``value`` is in ``unit``; ``better`` is ``lower``
    or ``higher``. The other columns are those of :data:`perfbisect.series.export.COLUMNS`.

    Raises:
        UsageError: there is no store, or no such point.
    """
    path = open_workspace().state if store is None else Path(store)
    path = path if path.is_file() else path / "track" / FILE
    if not path.is_file():
        raise UsageError("there is no store of series", where=path, next_step="perfbisect track ingest PATH")
    with SeriesStore(path) as opened:
        return series_frame(series_for_export(opened, cells, metric=metric, since=since), metric)


def detect(
    frame: pd.DataFrame,
    *,
    by: Sequence[str] | None = None,
    night: str = "night",
    value: str = "value",
    machine: str = "host",
    better: Direction | None = None,
    min_effect: float | None = None,
    fdr: float = FDR,
) -> pd.DataFrame:
    """The changes of many series of nights, [changes, keys + 9], by night.

    ``frame`` has a row for each value: a column ``night`` (dates, times, or ISO 8601), a column ``value``
    (positive numbers, or shares), and those that name a series: ``by``, or ``series`` and ``metric`` where it
    has them. Several values of a night count as their median. Levels of machines are no changes, where it has
    a column ``machine``. ``better``: the better direction, by default that of the metric, else ``lower``.
    ``min_effect``: the smallest relevant effect, a ratio (of shares a difference), by default that of the
    metric, else :data:`SMALLEST_EFFECT`. ``fdr``: the share of false ones among the series with changes.

    Of a change, ``night`` is the first of the new level; it is between ``earliest`` and ``latest`` with a
    probability of 0.95. ``until``: the first night after a drift or transient. ``effect``: new over old level
    less 1 (of shares the difference); ``low``, ``high``: its 95 % interval. ``p``: how often a series without
    a change shows one so clear. A series that cannot be judged, such as one of fewer than seven nights, is
    left out with a warning.

    Raises:
        UsageError: a column is missing or has other values, or an option is out of its range.
    """
    # An index of nights becomes a column.
    given = frame.reset_index()
    keys = [name for name in ("series", "metric") if name in given] if by is None else list(by)
    if lacking := [name for name in (*keys, night, value) if name not in given]:
        has = ", ".join(map(str, frame.columns))
        raise UsageError(f"the frame has no column {', '.join(lacking)}; it has {has}", field=lacking[0])
    if not 0 < fdr < 1:
        raise UsageError(f"fdr is a share between 0 and 1, not {fdr:g}", field="fdr")
    try:
        days = pd.to_datetime(given[night], utc=True, format="ISO8601").dt.floor("D")
        values = pd.to_numeric(given[value]).astype("float64")
    except (TypeError, ValueError) as error:
        raise UsageError(f"{night} is a date and {value} a number in each row: {error}") from error
    hosts = given.get(machine, "")
    rows = given[keys].assign(_day=days, _value=values, _host=hosts).dropna(subset=["_day", "_value"])
    groups: Iterable[tuple[tuple[Hashable, ...], pd.DataFrame]] = [((), rows)]
    if keys:
        groups = rows.groupby(keys, sort=False, dropna=False)
    names: list[tuple[Hashable, ...]] = []
    series: list[SeriesValues] = []
    for name, group in groups:
        nights = group.groupby("_day").agg({"_value": "median", "_host": "last"})
        test = _test_of(str(dict(zip(keys, name, strict=True)).get("metric", "")), better, min_effect)
        series.append(
            SeriesValues(
                key=str(len(names)),
                values=tuple(nights["_value"]),
                nights=tuple(day.toordinal() for day in nights.index),
                sign=test.sign,
                min_effect=test.min_effect,
                absolute=test.absolute,
                machines=tuple(nights["_host"].fillna("").astype(str)),
            )
        )
        names.append(name)
    if refused := Counter(item.refusal.kind for item in series if item.refusal):
        told = ", ".join(f"{count} of {kind}" for kind, count in refused.items())
        warnings.warn(f"{sum(refused.values())} of {len(series)} series are not judged: {told}", stacklevel=2)
    found = []
    for change in detect_all(series, fdr).alerts:
        place = int(change.key)
        dates = [pd.Timestamp.fromordinal(day) for day in series[place].nights]
        until = pd.NaT if change.until is None else dates[change.until]
        when = (dates[change.index], dates[change.places[0]], dates[change.places[-1]], until)
        found.append((*names[place], *when, change.shape, change.effect, change.low, change.high, change.p))
    columns = [*keys, "night", "earliest", "latest", "until", "shape", "effect", "low", "high", "p"]
    return pd.DataFrame(found, columns=columns).sort_values("night", ignore_index=True)


def compare(
    a: Iterable[float],
    b: Iterable[float],
    *,
    metric: str = "",
    better: Direction | None = None,
    min_effect: float | None = None,
) -> AbVerdict:
    """Judge launches of B against launches of A, such as two selections of a column of ``Result.metrics``.

    One value a launch; missing ones are left out. ``metric``: what the values are, by default the name of
    both columns. ``better`` and ``min_effect``: as of :func:`detect`. ``word`` of the verdict is
    ``regression``, ``improvement``, ``same`` (within ``min_effect``) or ``inconclusive``; ``effect`` is
    B / A - 1 (of shares B - A), ``low`` to ``high`` its 95 % interval; ``a`` and ``b`` are the levels, in the
    unit of the values. They are judged once: adding launches until they differ finds a difference in the end,
    for which ``perfbisect compare`` accounts.

    Raises:
        UsageError: fewer than two values a side, or one that is not positive.
    """
    left, right = (pd.Series(list(side), dtype="float64").dropna() for side in (a, b))
    named = {str(getattr(side, "name", None) or "") for side in (a, b)}
    test = _test_of(metric or (named.pop() if len(named) == 1 else ""), better, min_effect)
    try:
        return judge_samples(test, tuple(left), tuple(right))
    except ValueError as error:
        raise UsageError(f"the launches cannot be compared: {error}") from error


def _test_of(metric: str, better: Direction | None, min_effect: float | None) -> AbTest:
    """The test of a metric. :raises UsageError: ``better`` is no direction, or ``min_effect`` no share."""
    ref = find_metric(metric)
    if better not in (None, "lower", "higher"):
        raise UsageError(f"better is lower or higher, not {better!r}", field="better")
    direction = better or (ref.metric.direction if ref else "lower")
    smallest = ref.metric.smallest_effect if ref else SMALLEST_EFFECT
    try:
        return AbTest(
            sign=1 if direction == "lower" else -1,
            min_effect=smallest if min_effect is None else min_effect,
            absolute=ref is not None and ref.metric.absolute,
        )
    except ValueError as error:
        raise UsageError(str(error), field="min_effect") from error
