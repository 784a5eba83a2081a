"""Plots as values: what is drawn and where; ``templates/plot.js`` draws them.

Colours are names (``end``) that the page has for its light and dark theme. Text of others is neutralised by
:func:`perfbisect.common.text.line`, and the page shows it as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from perfbisect.common.quantities import counted, minutes, with_unit
from perfbisect.common.text import line
from perfbisect.jobs.documents import MetricDocument
from perfbisect.jobs.replay import Launch
from perfbisect.model.change import Change

Dash = Literal["solid", "dot", "dash"]


@dataclass(frozen=True)
class Axis:
    """An axis; ``range`` is what it shows at first, by default all values.

    ``ticks``: labelled places, in place of numbers.
    """

    title: str = ""
    range: tuple[float, float] | None = None
    ticks: tuple[tuple[float, str], ...] = ()
    suffix: str = ""


@dataclass(frozen=True)
class Level:
    """A horizontal line over a ``span`` of the x axis, by default all of it."""

    value: float
    color: str
    span: tuple[float, float] | None = None
    dash: Dash = "dot"
    label: str = ""


@dataclass(frozen=True)
class PlotTrace:
    """Points of one kind, one mark each; a point without a value lies at the bottom.

    ``symbol``: one for all points or one each, of those in ``plot.js``; ``-open`` is hollow, ``bar`` a bar.
    ``told``: the lines that are shown at each point under the pointer. ``line``: the points are joined.
    """

    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float | None]
    symbol: str | Sequence[str] = "circle"
    size: int = 10
    told: Sequence[Sequence[str]] = ()
    line: Dash | None = None
    legend: bool = True


@dataclass(frozen=True)
class Panel:
    """Traces over one y axis; ``height`` in pixels."""

    axis: Axis
    traces: tuple[PlotTrace, ...]
    levels: tuple[Level, ...] = ()
    height: int = 380


@dataclass(frozen=True)
class Plot:
    """Panels below each other, over one x axis."""

    x: Axis
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class LaunchGroup:
    """Launches of one side. ``level``: that of the side, a dotted line."""

    name: str
    color: str
    symbol: str
    launches: tuple[Launch, ...]
    level: float | None = None


_HALF: Final = 0.4
"""Half of the width of a side's column, in distances of columns."""


def launches_plot(
    groups: Sequence[LaunchGroup],
    metric: MetricDocument,
    levels: Sequence[Level] = (),
    *,
    by_side: bool = False,
) -> Plot | None:
    """Launches in the order of time, or a column for each side; None where nothing was measured."""
    launches = sorted((x for group in groups for x in group.launches), key=lambda launch: launch.number)
    if not any(launch.value is not None for launch in launches):
        return None
    times = dict(zip((launch.number for launch in launches), launch_times(launches), strict=True))
    last = launches[-1]
    x = axis_of_minutes(times[last.number] + last.minutes)
    if by_side:
        ticks = tuple((float(at), line(group.name, 30)) for at, group in enumerate(groups))
        x = Axis(range=(-0.6, len(groups) - 0.4), ticks=ticks)
    traces: list[PlotTrace] = []
    drawn: list[Level] = []
    for side, group in enumerate(groups):
        shown = [launch for launch in group.launches if launch.value is not None]
        places = [times[launch.number] for launch in shown]
        if by_side:
            # Side by side in the order of time: a drift shows as a slope within the column.
            places = [side + _HALF * (2 * (i + 1) / (len(shown) + 1) - 1) for i in range(len(shown))]
        name = line(group.name, 120)
        traces += run_dashes(shown, places, f"{name}, single runs", group.color)
        told = [
            (
                f"#{launch.number} {change_label(launch.change)}",
                with_unit(launch.value, metric.unit),
                f"{counted(len(launch.values), 'run')}, took {minutes(launch.minutes)}",
            )
            for launch in shown
        ]
        if shown:
            values = [launch.value for launch in shown]
            traces.append(PlotTrace(name, group.color, places, values, group.symbol, told=told))
        if group.level is not None:
            span = (side - _HALF, side + _HALF) if by_side else None
            drawn.append(Level(group.level, group.color, span))
    height = 300 if by_side else 380
    return Plot(x, (Panel(value_axis(metric), tuple(traces), (*drawn, *levels), height),))


def change_label(change: Change) -> str:
    return f"{line(change.short, 120)} {line(change.subject, 90)}".rstrip()


def launch_times(launches: Sequence[Launch]) -> list[float]:
    """Minutes from the first launch to each: as recorded, else one after the other."""
    recorded = [launch.at for launch in launches if launch.at is not None]
    if len(recorded) == len(launches):
        return recorded
    return list(accumulate((launch.minutes for launch in launches[:-1]), initial=0.0))


def axis_of_minutes(end: float) -> Axis:
    room = max(0.02 * end, 0.01)
    return Axis("minutes since the first launch", (-room, end + room))


def run_dashes(
    launches: Sequence[Launch], places: Sequence[float], name: str, color: str, legend: bool = False
) -> list[PlotTrace]:
    """The runs of launches that have several, as dashes."""
    runs = [
        (place, value)
        for place, launch in zip(places, launches, strict=True)
        if len(launch.values) > 1
        for value in launch.values
    ]
    if not runs:
        return []
    x, y = zip(*runs, strict=True)
    return [PlotTrace(name, color, x, y, "dash", size=9, legend=legend)]


def value_axis(metric: MetricDocument) -> Axis:
    return Axis(f"{line(metric.name, 120)}, {line(metric.unit, 120)}")
