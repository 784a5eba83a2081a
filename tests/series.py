"""The series of a store, as tests look at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfbisect.core.reported_series import CellSeries
from perfbisect.jobs.track_series import gathered, points_of
from perfbisect.store.series import SeriesStore


def series_of(store: SeriesStore, cells: Sequence[str] = (), *, metric: str = "") -> Iterator[CellSeries]:
    """Every series of these cells (none named: of all), by lineage."""
    for name, own in points_of(store, cells):
        yield from gathered(name, own, metric=metric)
