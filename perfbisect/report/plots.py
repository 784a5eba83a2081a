"""Plots of launches as Plotly's JSON.

Colours are names (``@end``) that the page turns into those of its light or dark theme. Text of others comes
in by :func:`harmless` alone: Plotly reads a little HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Any

from perfbisect.common.numbers import minutes, with_unit
from perfbisect.common.text import line
from perfbisect.jobs.documents import LaunchDocument, MetricDocument

_HOVER = "%{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>"


@dataclass(frozen=True)
class LaunchGroup:
    """Launches of one side. ``color``: a name of the theme; ``level``: the side's level, a dotted line."""

    name: str
    color: str
    symbol: str
    launches: tuple[LaunchDocument, ...]
    level: float | None = None


@dataclass(frozen=True)
class Limit:
    """A horizontal line with its label."""

    label: str
    value: float


def harmless(text: str, limit: int = 120) -> str:
    """Text of others, in which neither Plotly nor the browser sees markup."""
    return escape(line(text, limit), quote=True)


def launches_plot(
    groups: Sequence[LaunchGroup], metric: MetricDocument, limits: Sequence[Limit] = ()
) -> dict[str, Any] | None:
    """Launches in the order of time with the levels of their sides; None where nothing was measured."""
    launches = sorted((x for group in groups for x in group.launches), key=lambda launch: launch.number)
    if not any(launch.value is not None for launch in launches):
        return None
    times = dict(zip((launch.number for launch in launches), _times(launches), strict=True))
    last = launches[-1]
    end = times[last.number] + last.minutes
    room = max(0.02 * end, 0.01)
    data: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    for group in groups:
        shown = [launch for launch in group.launches if launch.value is not None]
        data += [*_runs(group, shown, times), _markers(group, shown, times, metric.unit)] if shown else []
        if group.level is not None:
            shapes.append(_horizontal(-room, end + room, group.level, group.color, "dot"))
    for limit in limits:
        shapes.append(_horizontal(-room, end + room, limit.value, "@quiet", "dash"))
        data.append(_label(limit, end))
    layout = {
        "height": 400,
        "shapes": shapes,
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
        "xaxis": _axis("minutes since the first launch") | {"range": [-room, end + room]},
        "yaxis": _axis(f"{harmless(metric.name)}, {harmless(metric.unit)}"),
    }
    return {"data": data, "layout": layout}


def _times(launches: Sequence[LaunchDocument]) -> list[float]:
    """Minutes from the first launch to each: as recorded, else one after the other."""
    recorded = [launch.at for launch in launches if launch.at is not None]
    if len(recorded) == len(launches):
        return recorded
    return list(accumulate((launch.minutes for launch in launches[:-1]), initial=0.0))


def _runs(
    group: LaunchGroup, launches: Sequence[LaunchDocument], times: dict[int, float]
) -> list[dict[str, Any]]:
    """The runs of launches that have several, as dashes."""
    runs = [(times[x.number], value) for x in launches if len(x.values) > 1 for value in x.values]
    if not runs:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"{harmless(group.name)}, single runs",
            "showlegend": False,
            "x": [time for time, _ in runs],
            "y": [value for _, value in runs],
            "marker": {"symbol": "line-ew-open", "size": 9, "color": group.color},
            "hoverinfo": "skip",
        }
    ]


def _markers(
    group: LaunchGroup, launches: Sequence[LaunchDocument], times: dict[int, float], unit: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": harmless(group.name),
        "x": [times[launch.number] for launch in launches],
        "y": [launch.value for launch in launches],
        "marker": {"symbol": group.symbol, "size": 10, "color": group.color},
        "customdata": [
            [
                f"#{launch.number} {harmless(launch.change.short)} {harmless(launch.change.subject, 90)}",
                with_unit(launch.value, unit),
                f"{len(launch.values)} runs, took {minutes(launch.minutes)}",
            ]
            for launch in launches
        ],
        "hovertemplate": _HOVER,
    }


def _label(limit: Limit, end: float) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "text",
        "showlegend": False,
        "x": [end],
        "y": [limit.value],
        "text": [harmless(limit.label)],
        "textposition": "top left",
        "hoverinfo": "skip",
    }


def _horizontal(left: float, right: float, value: float, color: str, dash: str) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": left,
        "x1": right,
        "y0": value,
        "y1": value,
        "line": {"color": color, "width": 1.5, "dash": dash},
        "layer": "below",
    }


def _axis(title: str) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "gridcolor": "@grid",
        "linecolor": "@quiet",
        "zerolinecolor": "@quiet",
        "zeroline": False,
        "automargin": True,
    }
