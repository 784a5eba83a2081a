"""The report's figures, as Plotly's JSON describes them; drawn by its script in the browser.

Colours are names (``@end``) that the page turns into those of its light or dark theme. Text of others comes
in by ``shown`` alone: Plotly reads a little HTML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from perfbisect.render.documents import ReportDocument
from perfbisect.render.levels import levels, pair_levels, pairs, steps, times
from perfbisect.render.marks import (
    BOTTOM,
    LEGEND,
    Figure,
    base,
    finished,
    launches,
    level,
    names,
    short,
    shown,
    value_axis,
)
from perfbisect.render.numbers import minutes, percent, probability, with_unit
from perfbisect.render.rows import effect_rows

_TICKS = 20


def figures(report: ReportDocument) -> dict[str, Figure]:
    """The element's name in the page -> its figure; one that has nothing to show is left out."""
    made = {
        "by-commit": by_commit(report),
        "by-time": by_time(report),
        "pairs": trial(report),
        "effects": effects(report),
        "phases": phases(report),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def by_commit(report: ReportDocument) -> Figure | None:
    """The posterior over the positions and, on the same axis, every launch with its runs and the levels."""
    if not report.launches:
        return None
    beliefs = report.beliefs.by_position if report.beliefs else ()
    culprits = {i for first, last in steps(report) for i in range(first, last + 1)}
    data: list[Figure] = []
    subjects = names(report)
    if beliefs:
        data.append(
            {
                "type": "bar",
                "x": list(range(len(beliefs))),
                "y": list(beliefs),
                "marker": {"color": ["@culprit" if i in culprits else "@bar" for i in range(len(beliefs))]},
                "customdata": [[subjects.get(i, ""), probability(p)] for i, p in enumerate(beliefs)],
                "hovertemplate": "%{customdata[0]}<br>P(culprit) %{customdata[1]}<extra></extra>",
                "showlegend": False,
                "yaxis": "y2",
            }
        )
    places = [float(launch.position) for launch in report.launches]
    data += launches(report, places)
    skipped = {skip.change.id: skip.reason for skip in report.skips}
    where = [(p.index, p.changes[0]) for p in report.history if p.changes and p.changes[0].id in skipped]
    if where:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "skipped",
                "x": [index for index, _ in where],
                "y": [BOTTOM] * len(where),
                "marker": {"symbol": "line-ns-open", "size": 11, "color": "@quiet", "line": {"width": 2}},
                "customdata": [[subjects.get(i, ""), shown(skipped[change.id])] for i, change in where],
                "hovertemplate": "%{customdata[0]}<br>skipped: %{customdata[1]}<extra></extra>",
            }
        )
    shapes = [level(x.first - 0.4, x.last + 0.4, x.value) for x in levels(report)]
    last = report.positions - 1
    step = max(1, math.ceil((last + 1) / _TICKS))
    room = max(0.7, last * 0.015)
    # The culprit's label is among those that are shown.
    ticks = list(range(min(culprits, default=0) % step, last + 1, step))
    # The reverted end stands beyond the range.
    beyond = last + any(launch.position > last for launch in report.launches)
    layout: Figure = {
        "height": 560 if beliefs else 400,
        "bargap": 0.15,
        "shapes": shapes,
        "xaxis": {
            "range": [-room, beyond + room],
            "tickvals": ticks + [beyond] * (beyond > last),
            "ticktext": [short(report, i) for i in ticks] + ["reverted"] * (beyond > last),
            "tickangle": -45,
            "tickfont": {"family": "ui-monospace, monospace", "size": 11},
            "anchor": "y",
        },
        "yaxis": value_axis(report) | {"domain": [0, 0.62 if beliefs else 1]},
    }
    if beliefs:
        layout["yaxis2"] = {
            "domain": [0.7, 1],
            "title": {"text": "P(culprit)"},
            "range": [0, 1.02],
            "tickvals": [0, 0.5, 1],
        }
    return finished(data, layout, report)


def by_time(report: ReportDocument) -> Figure | None:
    """Every launch in the order of the clock, so that a drift of the machine would show."""
    if not report.launches:
        return None
    at = times(report.launches)
    data = launches(report, at)
    end = max(t + x.minutes for t, x in zip(at, report.launches, strict=True))
    room = max(end * 0.02, 0.01)
    apart = _residuals(report, at)
    layout: Figure = {
        "height": 520 if apart else 380,
        "shapes": [level(-room, end + room, x.value) for x in levels(report)],
        "xaxis": {
            "title": {"text": "minutes from the first launch"},
            "range": [-room, end + room],
            "anchor": "y2" if apart else "y",
        },
        "yaxis": value_axis(report) | {"domain": [0.42 if apart else 0, 1]},
    }
    if apart:
        layout["yaxis2"] = {
            "domain": [0, 0.32],
            "title": {"text": "from its level"},
            "ticksuffix": " %",
            "zeroline": True,
        }
    return finished([*data, *apart], layout, report)


def _residuals(report: ReportDocument, at: Sequence[float]) -> list[Figure]:
    """How far each launch is from the level that it is on, a line for each slot."""
    known = levels(report) if steps(report) else ()
    slots: dict[str, list[tuple[float, float]]] = {}
    for moment, launch in zip(at, report.launches, strict=True):
        for own in known:
            if launch.value is not None and own.first <= launch.position <= own.last:
                slots.setdefault(launch.slot, []).append((moment, (launch.value / own.value - 1) * 100))
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"slot {shown(slot)}" if slot else "from its level",
            "showlegend": len(slots) > 1,
            "x": [moment for moment, _ in points],
            "y": [share for _, share in points],
            "line": {
                "color": f"@slot{number % 3}",
                "width": 1.5,
                "dash": ("solid", "dot", "dash")[number % 3],
            },
            "marker": {"size": 5, "symbol": ("circle", "square", "diamond")[number % 3]},
            "hovertemplate": "%{y:+.1f} % from its level<extra></extra>",
            "yaxis": "y2",
        }
        for number, (slot, points) in enumerate(sorted(slots.items()))
    ]


def trial(report: ReportDocument) -> Figure | None:
    """The A/B: each pair of launches joined, and the level of each side."""
    found = pairs(report)
    if not found or report.confirmed is None:
        return None
    unit, sides = report.metric.unit, (report.confirmed.left, report.confirmed.right)
    data: list[Figure] = []
    for number, pair in enumerate(found, 1):
        values = [launch.value or 0.0 for launch in pair]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "pair",
                "showlegend": False,
                "x": [0, 1],
                "y": values,
                "line": {"color": "@confirm", "width": 1.5},
                "marker": {"symbol": ["square-open", "square"], "size": 10, "color": "@confirm"},
                "customdata": [
                    [f"pair {number}, launch #{x.number}", with_unit(x.value, unit)] for x in pair
                ],
                "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
            }
        )
    sides_at = pair_levels(found, report.confirmed.effect)
    shapes = [level(side - 0.2, side + 0.2, value) for side, value in enumerate(sides_at)]
    layout: Figure = {
        "height": 340,
        "shapes": shapes,
        "xaxis": {
            "range": [-0.5, 1.5],
            "tickvals": [0, 1],
            "ticktext": [f"parent<br>{shown(sides[0].short)}", f"culprit<br>{shown(sides[1].short)}"],
        },
        "yaxis": value_axis(report),
    }
    return finished(data, layout, report, values=[x.value for pair in found for x in pair if x.value])


def effects(report: ReportDocument) -> Figure | None:
    """Every comparison with its interval, beside the smallest effect that was worth telling."""
    rows = effect_rows(report)
    if not rows:
        return None
    shares = [effect.effect * 100 for _, effect in rows]
    labels = [shown(name) for name, _ in rows]
    small = report.metric.smallest_effect * 100
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "markers",
            "showlegend": False,
            "x": shares,
            "y": list(range(len(rows))),
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [(e.high - e.effect) * 100 for _, e in rows],
                "arrayminus": [(e.effect - e.low) * 100 for _, e in rows],
                "color": "@ink",
                "thickness": 1.5,
                "width": 6,
            },
            "marker": {"symbol": "diamond", "size": 11, "color": "@culprit"},
            "customdata": [
                [f"{percent(e.effect)} ({percent(e.low)} to {percent(e.high)})", str(e.launches)]
                for _, e in rows
            ],
            "hovertemplate": "%{customdata[0]}<br>launches a side: %{customdata[1]}<extra></extra>",
        }
    ]
    layout: Figure = {
        "height": 130 + 56 * len(rows),
        "shapes": [
            {
                "type": "rect",
                "xref": "x",
                "yref": "paper",
                "x0": -small,
                "x1": small,
                "y0": 0,
                "y1": 1,
                "fillcolor": "@band",
                "line": {"width": 0},
                "layer": "below",
            }
        ],
        "xaxis": {"title": {"text": "effect, with its 95 % interval"}, "ticksuffix": " %", "zeroline": True},
        "yaxis": {
            "tickvals": list(range(len(rows))),
            "ticktext": labels,
            "range": [len(rows) - 0.5, -0.5],
            "showgrid": False,
            "automargin": True,
        },
    }
    return {"data": data, "layout": base(layout)}


def phases(report: ReportDocument) -> Figure | None:
    """The minutes of each launch by phase."""
    spent = list(report.minutes.by_phase)
    if not spent or not report.launches:
        return None
    order = [name for name in PHASES if name in spent] + [name for name in spent if name not in PHASES]
    numbers = [launch.number for launch in report.launches]
    data: list[Figure] = [
        {
            "type": "bar",
            "name": shown(PHASES.get(name, name)),
            "x": numbers,
            "y": [launch.seconds.get(name, 0.0) / 60 for launch in report.launches],
            "marker": {"color": f"@phase{list(PHASES).index(name) if name in PHASES else 4}"},
            "customdata": [
                [minutes(x.seconds.get(name, 0.0) / 60), shown(x.change.short), x.purpose]
                for x in report.launches
            ],
            "hovertemplate": "launch %{x}: %{customdata[1]}, %{customdata[2]}<br>%{fullData.name} "
            "%{customdata[0]}<extra></extra>",
        }
        for name in order
    ]
    layout: Figure = {
        "height": 320,
        "barmode": "stack",
        "legend": {**LEGEND, "traceorder": "normal"},
        "bargap": 0.2,
        "xaxis": {"title": {"text": "launch"}, "tickformat": "d"},
        "yaxis": {"title": {"text": "minutes"}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": base(layout)}


PHASES: Final[Mapping[str, str]] = {
    "build": "build",
    "fetch": "fetch",
    "launch": "start",
    "first_request": "first request",
    "warm": "discarded run",
    "bench": "measured runs",
    "stop": "stop",
}
"""Phases of an attempt in their order, as they are shown."""
