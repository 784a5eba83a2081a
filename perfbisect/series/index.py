"""The series of all cells beside each other: which moved with a change, and by how much."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from statistics import median

from perfbisect.model.attempt import is_same_class
from perfbisect.model.commit_details import MeasuredCell
from perfbisect.model.metric import STAGE
from perfbisect.series.detection.model import GAUSSIAN, WEEK
from perfbisect.series.findings import SeriesChange
from perfbisect.series.series import HEADLINES, CellSeries

NOISE_NIGHTS = 20  # nights before a change that show the noise of a cell
_FEWEST_NIGHTS = 3  # below which they show none
_MIN_NOISE = 0.005  # least noise of a cell, of logs, also of nights that agree to the last digit
_LOW_RATE = 0.1  # requests a second up to which a cell is of low concurrency


class SeriesIndex:
    """The series of all cells by cell and metric.

    ``traits``: the name of a cell -> what it runs; ``features``: its name, model and device -> what these
    imply.
    """

    def __init__(
        self,
        series: Sequence[CellSeries],
        traits: Callable[[str], frozenset[str]],
        features: Callable[[str, str, str], frozenset[str]] = lambda *_: frozenset(),
    ) -> None:
        self._traits, self._features = cache(traits), cache(features)
        self._by_cell: dict[str, dict[str, CellSeries]] = {}
        self._moves: dict[tuple[str, _Window], list[tuple[CellSeries, float, float]]] = {}
        for item in series:
            self._by_cell.setdefault(item.cell, {})[item.metric] = item

    def get(self, cell: str, metric: str) -> CellSeries | None:
        """A metric of a cell; None where it does not report it."""
        return self._by_cell.get(cell, {}).get(metric)

    def on_other_machines(self, like: CellSeries) -> tuple[CellSeries, ...]:
        """The same metric of the same cell on the other machines of its kind in a fleet."""
        own = like.points[-1]
        same = (metrics[like.metric] for metrics in self._by_cell.values() if like.metric in metrics)
        return tuple(
            series
            for series in same
            if own.machine
            and series.points[-1].cell == own.cell
            and series.points[-1].machine not in ("", own.machine)
            and is_same_class(series.points[-1].hardware, own.hardware)
        )

    def changed_prompts(
        self, like: CellSeries, nights: Collection[int]
    ) -> Iterator[tuple[int, str, str, float]]:
        """Where the prompts of a cell of the same model and data set changed on one of these nights.

        One specification makes them for several cells, and not every server counts the tokens of a picture.
        Yields the night, the cell, what changed, and the log of by how much.
        """
        own = like.points[-1].workload
        for metrics in self._by_cell.values() if own.model and own.dataset else ():
            series = next(iter(metrics.values()))
            load = series.points[-1].workload
            for hint in series.hints if (load.model, load.dataset) == (own.model, own.dataset) else ():
                before, after = (
                    series.points[at].covariates.get("input_tokens") for at in (hint.index - 1, hint.index)
                )
                if hint.kind == "workload" and series.nights[hint.index] in nights and before and after:
                    yield series.nights[hint.index], series.cell, hint.what, abs(math.log(after / before))

    def measured_cells(self, change: SeriesChange) -> tuple[MeasuredCell, ...]:
        """Every cell measured on both sides of a change, by the same metric, else by its headline."""
        cells = []
        for series, size, noise in self._moved(change.series.metric, _window(change)):
            load, metrics = series.points[-1].workload, self._by_cell[series.cell]
            low = load.concurrency == 1 or (load.concurrency is None and load.rate <= _LOW_RATE)
            newest = (item.points[-1].workload.model for item in metrics.values())
            model = next(filter(None, newest), "")
            cells.append(
                MeasuredCell(
                    cell=series.cell,
                    hit=abs(size) > 3 * noise and size * change.shift > 0,
                    start=series.group,
                    traits=self._traits(series.cell),
                    model=model,
                    features=self._features(series.cell, model, series.points[-1].hardware),
                    shift=size,
                    control=low or series.metric.startswith(STAGE),
                    machine=series.points[-1].machine,
                )
            )
        return tuple(cells)

    def _moved(self, metric: str, window: _Window) -> list[tuple[CellSeries, float, float]]:
        """The series of every cell that was measured around a window, with its shift and noise.

        Changes of one night often have the same window, and each asks for all cells.
        """
        if (metric, window) not in self._moves:
            moves = self._moves[metric, window] = []
            for metrics in self._by_cell.values():
                names = (name for name in (metric, *HEADLINES) if name in metrics)
                series = metrics.get(next(names, ""))
                if series is not None and (moved := _shift_in(series, window)) is not None:
                    moves.append((series, *moved))
        return self._moves[metric, window]


_Window = tuple[int, int, int, int]
"""The first and the last night before a change, and the first and the last that show it."""


def _window(change: SeriesChange) -> _Window:
    nights, before, after = change.series.nights, change.before, change.after
    return nights[before[0]], nights[before[-1]], nights[after[0]], nights[after[-1]]


def shift(series: CellSeries | None, change: SeriesChange) -> tuple[float, float] | None:
    """By how much a series moved between the nights before a change and those that show it, and its noise.

    A log, above 0 worse. None where it was not measured on both sides, or is another series since.
    """
    return None if series is None else _shift_in(series, _window(change))


def _shift_in(series: CellSeries, window: _Window) -> tuple[float, float] | None:
    nights, (left, edge, first, last) = series.nights, window
    after = range(bisect_left(nights, first), bisect_right(nights, last))
    before = range(bisect_left(nights, left), bisect_right(nights, edge))[-NOISE_NIGHTS:]
    if not after or len(before) < _FEWEST_NIGHTS:
        return None
    if any(before[0] < boundary.index <= after[-1] for boundary in series.boundaries):
        return None
    if any(series.values[i] <= 0 for i in (*before, *after)):
        return None
    logs = [math.log(series.values[i]) for i in before]
    level = median(logs[-WEEK:])
    return series.sign * (median(math.log(series.values[i]) for i in after) - level), noise_of(logs)


def noise_of(logs: Sequence[float]) -> float:
    """The robust standard deviation of nights, of logs."""
    return max(_MIN_NOISE, GAUSSIAN * median(abs(x - median(logs)) for x in logs)) if logs else _MIN_NOISE
