"""Plots of launches as Plotly's JSON, and the parts that all plots share.

Colours are names (``@end``) that the page turns into those of its light or dark theme. Text of others comes
in by :func:`harmless` alone: Plotly reads a little HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Any

from perfbisect.common.quantities import counted, minutes, with_unit
from perfbisect.common.text import line
from perfbisect.jobs.documents import MetricDocument
from perfbisect.jobs.replay import Launch
from perfbisect.model.change import Change

Plot = dict[str, Any]


@dataclass(frozen=True)
class LaunchGroup:
    """Launches of one side. ``color``: a name of the theme; ``level``: the side's level, a dotted line."""

    name: str
    color: str
    symbol: str
    launches: tuple[Launch, ...]
    level: float | None = None


@dataclass(frozen=True)
class Limit:
    """A horizontal line with its label."""

    label: str
    value: float


def launches_plot(
    groups: Sequence[LaunchGroup], metric: MetricDocument, limits: Sequence[Limit] = ()
) -> Plot | None:
    """Launches in the order of time with the levels of their sides; None where nothing was measured."""
    launches = sorted((x for group in groups for x in group.launches), key=lambda launch: launch.number)
    if not any(launch.value is not None for launch in launches):
        return None
    times = dict(zip((launch.number for launch in launches), launch_times(launches), strict=True))
    last = launches[-1]
    end = times[last.number] + last.minutes
    room = max(0.02 * end, 0.01)
    data: list[Plot] = []
    shapes: list[Plot] = []
    for group in groups:
        shown = [launch for launch in group.launches if launch.value is not None]
        places = [times[launch.number] for launch in shown]
        if shown:
            data += run_dashes(shown, places, f"{harmless(group.name)}, single runs", group.color)
            rows = [
                [
                    f"#{launch.number} {change_label(launch.change)}",
                    with_unit(launch.value, metric.unit),
                    f"{counted(len(launch.values), 'run')}, took {minutes(launch.minutes)}",
                ]
                for launch in shown
            ]
            marker = {"symbol": group.symbol, "size": 10, "color": group.color}
            values, name = [launch.value for launch in shown], harmless(group.name)
            data.append(scatter(places, values, name=name, marker=marker, **hover(rows)))
        if group.level is not None:
            shapes.append(horizontal_line(-room, end + room, group.level, group.color))
    for limit in limits:
        shapes.append(horizontal_line(-room, end + room, limit.value, "@quiet", "dash"))
        label = {"text": [harmless(limit.label)], "textposition": "top left", "hoverinfo": "skip"}
        data.append(scatter([end], [limit.value], "text", showlegend=False, **label))
    x = axis("minutes since the first launch", range=[-room, end + room])
    return {"data": data, "layout": layout(400, shapes=shapes, xaxis=x, yaxis=value_axis(metric))}


def harmless(text: str, limit: int = 120) -> str:
    """Text of others, in which neither Plotly nor the browser sees markup."""
    return escape(line(text, limit), quote=True)


def change_label(change: Change) -> str:
    return f"{harmless(change.short)} {harmless(change.subject, 90)}".rstrip()


def launch_times(launches: Sequence[Launch]) -> list[float]:
    """Minutes from the first launch to each: as recorded, else one after the other."""
    recorded = [launch.at for launch in launches if launch.at is not None]
    if len(recorded) == len(launches):
        return recorded
    return list(accumulate((launch.minutes for launch in launches[:-1]), initial=0.0))


def scatter(x: Iterable[object], y: Iterable[object], mode: str = "markers", **more: Any) -> Plot:
    return {"type": "scatter", "mode": mode, "x": list(x), "y": list(y), **more}


def hover(rows: Sequence[Sequence[str]], template: str = "") -> Plot:
    """The text under the pointer: the texts of a point's row, by default one per line."""
    lines = [f"%{{customdata[{index}]}}" for index in range(len(rows[0]) if rows else 0)]
    return {
        "customdata": [list(row) for row in rows],
        "hovertemplate": f"{template or '<br>'.join(lines)}<extra></extra>",
    }


def run_dashes(
    launches: Sequence[Launch], places: Sequence[float], name: str, color: str, legend: bool = False
) -> list[Plot]:
    """The runs of launches that have several, as dashes."""
    runs = [
        (place, value)
        for place, launch in zip(places, launches, strict=True)
        if len(launch.values) > 1
        for value in launch.values
    ]
    if not runs:
        return []
    marker = {"symbol": "line-ew-open", "size": 9, "color": color}
    x, y = zip(*runs, strict=True)
    return [scatter(x, y, name=name, showlegend=legend, marker=marker, hoverinfo="skip")]


def horizontal_line(left: float, right: float, value: float, color: str, dash: str = "dot") -> Plot:
    return {
        "type": "line",
        "x0": left,
        "x1": right,
        "y0": value,
        "y1": value,
        "line": {"color": color, "width": 1.5, "dash": dash},
        "layer": "below",
    }


def axis(title: str = "", **more: Any) -> Plot:
    """An axis in the theme's colours."""
    titled = {"title": {"text": title}} if title else {}
    colors = {"gridcolor": "@grid", "linecolor": "@quiet", "zerolinecolor": "@quiet"}
    return {**titled, **colors, "zeroline": False, "automargin": True, **more}


def value_axis(metric: MetricDocument, **more: Any) -> Plot:
    return axis(f"{harmless(metric.name)}, {harmless(metric.unit)}", **more)


def layout(height: int, **more: Any) -> Plot:
    """The layout of a plot in the theme's colours."""
    return {
        "height": height,
        "margin": {"l": 64, "r": 12, "t": 12, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "@ink", "size": 13, "family": "system-ui, sans-serif"},
        "hoverlabel": {
            "align": "left",
            "bgcolor": "@paper",
            "bordercolor": "@quiet",
            "font": {"color": "@ink"},
        },
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@quiet", "activecolor": "@ink"},
        "hovermode": "closest",
        "dragmode": "zoom",
        **more,
    }
