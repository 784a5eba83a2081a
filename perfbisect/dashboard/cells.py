"""The cells of a site from the series in the store, with what a detection found in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfbisect.common.durations import moment, stamp
from perfbisect.dashboard.site import (
    LevelDocument,
    MarkDocument,
    PointDocument,
    Scalar,
    SeriesDocument,
    SeriesMetricDocument,
    SiteCellDocument,
    SmallDocument,
)
from perfbisect.jobs.documents import metric_document
from perfbisect.model.metric import parse_metric
from perfbisect.series.detection.levels import levels
from perfbisect.series.points import Point, Workload, machine_of
from perfbisect.series.series import HEADLINES, CellSeries

Key = tuple[str, str, int]


@dataclass(frozen=True)
class SeriesFindings:
    """What a detection says of one series; every index counts the points of that series.

    ``cuts``: the first points of new levels; the series' own boundaries need not be among them. ``small``:
    changes that are not alarmed. ``note``: why it was not judged, or how small a step it would have shown.
    """

    cuts: tuple[int, ...] = ()
    small: tuple[SmallDocument, ...] = ()
    judged: bool = True
    note: str = ""


def cell_document(
    series: Sequence[CellSeries],
    seen: Mapping[str, SeriesFindings],
    subjects: Mapping[str, str] | None = None,
) -> SiteCellDocument:
    """One cell with all its series (of :func:`gather`, or each made :func:`nightly`).

    ``seen``: metric -> what was found in it; a metric that is not there was not judged. ``subjects``: commit
    -> its subject.

    :raises ValueError: no series, or those of several cells.
    """
    cells = {item.cell for item in series}
    if len(cells) != 1:
        raise ValueError(f"the series of one cell: {sorted(cells)}")
    points = sorted({_key(point): point for item in series for point in item.points}.items())
    places = {key: place for place, (key, _) in enumerate(points)}
    last = points[-1][1]
    return SiteCellDocument(
        name=series[0].cell,
        family=family_of(last),
        model=last.workload.model,
        load=load_of(last.workload),
        machine=next((kind for _, point in reversed(points) if (kind := machine_of(point))), ""),
        headline=_headline(series),
        digest=last.workload.digest,
        rows=_rows(last.workload),
        points=tuple(_point(point, subjects or {}) for _, point in points),
        series=tuple(
            _series(item, places, seen.get(item.metric, SeriesFindings(judged=False))) for item in series
        ),
    )


def family_of(point: Point) -> str:
    """How a kind of model is served, from what the result says of it."""
    if point.workload.backend.endswith("-speech"):
        return "tts"
    if point.workload.backend.endswith("-omni"):
        return "omni"
    return "diffusion" if any(name.startswith("latency") for name in point.values) else "text"


def load_of(workload: Workload) -> str:
    """``c64``, ``r2.0``, or ``rinf`` where all requests are sent at once."""
    return f"r{workload.rate}" if workload.concurrency is None else f"c{workload.concurrency}"


def _key(point: Point) -> Key:
    return stamp(moment(point.began)), point.raw, point.record


def _headline(series: Sequence[CellSeries]) -> str:
    there = {item.metric for item in series if item.part == "typical"}
    return next((name for name in HEADLINES if name in there), series[0].metric)


def _rows(workload: Workload) -> tuple[tuple[str, str], ...]:
    rate = "" if workload.rate == math.inf else f"{workload.rate} requests a second"
    rows = {
        "test": workload.test,
        "model": workload.model,
        "dataset": " ".join(filter(None, (workload.dataset, workload.lengths))),
        "prompts": str(workload.prompts or ""),
        "load": rate or (f"{workload.concurrency} at once" if workload.concurrency else ""),
        "backend": workload.backend,
        "answers": "text alone" if workload.only_text else "",
        "digest": workload.digest,
    }
    return tuple((label, text) for label, text in rows.items() if text)


def _point(point: Point, subjects: Mapping[str, str]) -> PointDocument:
    return PointDocument(
        build=point.build.name,
        time=stamp(moment(point.began)),
        commit=point.build.commit,
        subject=subjects.get(point.build.commit, ""),
        url=point.build.url,
        of_main=point.build.of_main,
        covariates={
            name: _scalar(value)
            for name, value in point.covariates.items()
            if not isinstance(value, Mapping) and value is not None
        },
    )


def _scalar(value: object) -> Scalar:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool) else str(value)


def _series(series: CellSeries, places: Mapping[Key, int], seen: SeriesFindings) -> SeriesDocument:
    at = [places[_key(point)] for point in series.points]
    values: list[float | None] = [None] * len(places)
    for place, value in zip(at, series.values, strict=True):
        values[place] = value
    cuts = {*seen.cuts, *(boundary.index for boundary in series.boundaries)}
    marks = [(boundary, True) for boundary in series.boundaries] + [(hint, False) for hint in series.hints]
    return SeriesDocument(
        metric=SeriesMetricDocument(
            **metric_document(parse_metric(series.metric)).model_dump(), absolute=series.row.absolute
        ),
        values=tuple(values),
        levels=tuple(
            LevelDocument(
                first=at[x.first], last=at[x.last], value=x.value, low=x.low, high=x.high, spread=x.spread
            )
            for x in levels(series.values, cuts)
        ),
        small=tuple(item.model_copy(update={"at": at[item.at]}) for item in seen.small),
        discontinuities=tuple(MarkDocument(at=at[x.index], what=x.what, cut=cut) for x, cut in marks),
        judged=seen.judged,
        note=seen.note,
    )
