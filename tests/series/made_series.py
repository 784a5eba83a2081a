"""Series of reported points with known values, for tests of what is found in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfbisect.series.points import Build, Point, Workload, night_of
from perfbisect.series.series import CellSeries, build_series, nightly

FIRST = 20000
"""The first night, in days since 1970-01-01."""


def cell(
    values: Mapping[str, Sequence[float | None]],
    *,
    test: str = "omni",
    concurrency: int = 4,
    covariates: Sequence[Mapping[str, Any]] = (),
    **workload: Any,
) -> tuple[CellSeries, ...]:
    """The series of a cell: metric -> its value of each night; None: no value that night."""
    count = max(len(column) for column in values.values())
    points = []
    for place in range(count):
        found = {k: v for k, column in values.items() if (v := column[place]) is not None}
        night = night_of(FIRST + place)
        if found:
            points.append(
                Point(
                    build=Build("kanban", "p", str(100 + place)),
                    workload=Workload(test, "random", concurrency, prompts=40, model="Some/Omni", **workload),
                    began=f"{night}T19:00:00Z",
                    ended=f"{night}T19:10:00Z",
                    values=found,
                    covariates=covariates[place] if covariates else {},
                    night=night,
                    start=f"{test}-{place}",
                )
            )
    return tuple(nightly(one) for one in build_series(points, lambda _: ()))


def noise(seed: int, nights: int, level: float = 100.0, spread: float = 0.01) -> list[float]:
    """Lognormal nights around a level."""
    return [float(x) for x in level * np.exp(np.random.default_rng(seed).normal(0.0, spread, nights))]


def step(values: Sequence[float], at: int, factor: float, until: int | None = None) -> list[float]:
    """The same, multiplied from a night on."""
    end = len(values) if until is None else until
    return [v * factor if at <= i < end else v for i, v in enumerate(values)]
