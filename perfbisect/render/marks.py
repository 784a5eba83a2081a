"""What the report's figures are made of: markers, levels, axes, text under the pointer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from perfbisect.render.documents import ChangeDocument, LaunchDocument, ReportDocument
from perfbisect.render.levels import levels, steps
from perfbisect.render.numbers import minutes, percent, with_unit
from perfbisect.render.safe import line

Figure = dict[str, Any]

PURPOSES: Final[Mapping[str, tuple[str, str]]] = {
    "end": ("an end of the range", "circle"),
    "search": ("search", "diamond"),
    "confirm": ("A/B", "square"),
    "revert": ("revert check", "triangle-up"),
}
"""What a launch was for -> what the legend says, and its symbol."""

BOTTOM: Final = "@bottom"
"""Stands for the height of what has no value."""

LEGEND: Final[Mapping[str, Any]] = {
    "orientation": "h",
    "x": 0,
    "y": 1.02,
    "yanchor": "bottom",
    "xanchor": "left",
}
"""Above the figure, in a row."""

_LINES = "%{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>"


def shown(text: str, limit: int = 120) -> str:
    """Text of others, such that neither Plotly nor the browser sees anything in it but text."""
    return escape(line(text, limit), quote=True)


def launches(report: ReportDocument, places: Sequence[float]) -> list[Figure]:
    """A marker a launch (hollow before the step), its runs as dashes, failures at the bottom."""
    both = list(zip(places, report.launches, strict=True))
    runs = [(place, value) for place, x in both if len(x.values) > 1 for value in x.values]
    out: list[Figure] = []
    if runs:
        out.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "single runs",
                "x": [place for place, _ in runs],
                "y": [value for _, value in runs],
                "marker": {"symbol": "line-ew-open", "size": 9, "color": "@quiet"},
                "hoverinfo": "skip",
            }
        )
    moves = steps(report)
    for purpose, (name, symbol) in PURPOSES.items():
        own = [(place, x) for place, x in both if x.purpose == purpose and x.value is not None]
        if own:
            out.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": [place for place, _ in own],
                    "y": [x.value for _, x in own],
                    "marker": {
                        "symbol": [symbol + _hollow(x, moves) for _, x in own],
                        "size": 10,
                        "color": f"@{purpose}",
                        "line": {"width": 1.8, "color": f"@{purpose}"},
                    },
                    "customdata": [told(report, x) for _, x in own],
                    "hovertemplate": _LINES,
                }
            )
    failed = [(place, x) for place, x in both if x.outcome in ("failed", "abandoned")]
    if failed:
        out.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "failed",
                "x": [place for place, _ in failed],
                "y": [BOTTOM] * len(failed),
                "marker": {"symbol": "x", "size": 9, "color": "@culprit"},
                "customdata": [told(report, x) for _, x in failed],
                "hovertemplate": _LINES,
            }
        )
    return out


def _hollow(launch: LaunchDocument, moves: Sequence[tuple[int, int]]) -> str:
    """Open symbols before the first step, filled ones from it on; every second level open."""
    passed = sum(launch.position >= last for _, last in moves)
    return "" if passed % 2 or not moves else "-open"


def told(report: ReportDocument, launch: LaunchDocument) -> list[str]:
    """The lines of a launch under the pointer: which and of what, its value, what else there is to know."""
    head = f"#{launch.number} {titled(launch.change)}"
    good = next((level.value for level in levels(report)), None)
    if launch.value is None:
        value = f"{launch.outcome}: {shown(launch.reason)}"
    else:
        value = with_unit(launch.value, report.metric.unit)
        value += f", {percent(launch.value / good - 1)} against the first level" if good else ""
    more = [f"{len(launch.values)} run{'' if len(launch.values) == 1 else 's'}"] if launch.values else []
    more += [f"took {minutes(launch.minutes)}"]
    more += [f"slot {shown(launch.slot)}"] if launch.slot else []
    more += ["cold caches"] if launch.cold else []
    more += [shown("; ".join(launch.warnings))] if launch.warnings else []
    return [head, value, ", ".join(more)]


def names(report: ReportDocument) -> dict[int, str]:
    """Position -> its changes under the pointer."""
    return {
        p.index: f"{p.index}: " + "<br>and ".join(titled(change) for change in p.changes[:3])
        for p in report.history
        if p.changes
    }


def titled(change: ChangeDocument) -> str:
    return f"{shown(change.short)} {shown(change.subject, 90)}".rstrip()


def short(report: ReportDocument, index: int) -> str:
    there = [p.changes[0] for p in report.history if p.index == index and p.changes]
    return shown(there[0].short[:12]) if there else str(index)


def level(left: float, right: float, value: float) -> Figure:
    return {
        "type": "line",
        "x0": left,
        "x1": right,
        "y0": value,
        "y1": value,
        "line": {"color": "@ink", "width": 1.5, "dash": "dot"},
        "layer": "below",
    }


def value_axis(report: ReportDocument) -> Figure:
    return {"title": {"text": f"{shown(report.metric.name)}, {shown(report.metric.unit)}"}}


def finished(
    data: list[Figure], layout: Figure, report: ReportDocument, values: Sequence[float] = ()
) -> Figure:
    """With an axis of values that leaves room below for what has no value."""
    known = list(values) or [v for x in report.launches for v in (*x.values, x.value) if v is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    room = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    nothing = any(BOTTOM in trace.get("y", ()) for trace in data)
    bottom = low - room * (2 if nothing else 1)
    layout["yaxis"]["range"] = [bottom, high + room]
    floor = bottom + room * 0.4
    told = [
        trace | {"y": [floor if y == BOTTOM else y for y in trace["y"]]} if "y" in trace else trace
        for trace in data
    ]
    return {"data": told, "layout": base(layout)}


def base(layout: Figure) -> Figure:
    """What all figures have in common."""
    common: Figure = {
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
        "legend": LEGEND,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@quiet", "activecolor": "@ink"},
        "hovermode": "closest",
        "dragmode": "zoom",
    }
    for name in [key for key in layout if key.startswith(("xaxis", "yaxis"))]:
        layout[name] = {
            "gridcolor": "@grid",
            "linecolor": "@quiet",
            "zerolinecolor": "@quiet",
            "zeroline": False,
            "automargin": True,
        } | layout[name]
    return common | layout
