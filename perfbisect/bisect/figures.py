"""Plots of a bisection as Plotly's JSON.

Colours are names (``@end``) that the page turns into those of its light or dark theme. Text of others comes
in by :func:`harmless` alone: Plotly reads a little HTML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from statistics import median
from typing import Any, Final

from perfbisect.bisect.documents import EffectDocument, ReportDocument
from perfbisect.common.numbers import minutes, percent, probability, with_unit
from perfbisect.common.text import line
from perfbisect.jobs.documents import ChangeDocument, LaunchDocument
from perfbisect.stats.ab_test import side_levels


@dataclass(frozen=True)
class LevelSpan:
    """Positions ``first`` to ``last`` measure alike: the median of their launches."""

    first: int
    last: int
    value: float


def step_spans(report: ReportDocument) -> tuple[tuple[int, int], ...]:
    """Where the metric moves: the first and last position of each set of culprits, in the history's order."""
    named = [step.culprits for step in report.steps]
    if not named and report.outcome == "found":
        named = [report.culprits]
    return tuple(sorted((culprits[0].index, culprits[-1].index) for culprits in named if culprits))


def level_spans(report: ReportDocument) -> tuple[LevelSpan, ...]:
    """A level between each two steps; without a step those of the two ends alone."""
    last = report.positions - 1
    moves = step_spans(report)
    if moves:
        starts = [0, *(stop for _, stop in moves)]
        stops = [*(start - 1 for start, _ in moves), last]
    else:
        starts, stops = [0, last], [0, last]
    out = []
    for start, stop in zip(starts, stops, strict=True):
        values = [x.value for x in report.launches if start <= x.position <= stop and x.value is not None]
        if values:
            out.append(LevelSpan(start, stop, median(values)))
    return tuple(out)


def ab_levels(found: Sequence[tuple[LaunchDocument, LaunchDocument]], effect: float) -> tuple[float, float]:
    """The levels of parent and culprit, as far apart as the effect of their A/B."""
    left, right = ([math.log(x.value) for x in side if x.value] for side in zip(*found, strict=True))
    a, b = side_levels(left, right, math.log1p(effect))
    return math.exp(a), math.exp(b)


def ab_pairs(report: ReportDocument) -> tuple[tuple[LaunchDocument, LaunchDocument], ...]:
    """The confirming A/B's launches, parent's and culprit's, as they followed each other on one slot."""
    if report.confirmed is None:
        return ()
    sides = (report.confirmed.left.id, report.confirmed.right.id)
    waiting: dict[str, LaunchDocument] = {}
    out = []
    for launch in report.launches:
        if launch.purpose != "confirm" or launch.value is None or launch.change.id not in sides:
            continue
        before = waiting.get(launch.slot)
        if before is None or before.change.id == launch.change.id:
            waiting[launch.slot] = launch
            continue
        del waiting[launch.slot]
        out.append((before, launch) if before.change.id == sides[0] else (launch, before))
    return tuple(out)


def launch_times(launches: Sequence[LaunchDocument]) -> tuple[float, ...]:
    """Minutes from the first launch to each: as told, else by the clock, else one after the other."""
    told = [launch.at for launch in launches]
    known = [at for at in told if at is not None]
    if len(known) == len(told):
        return tuple(known)
    try:
        clock = [datetime.fromisoformat(launch.started_at).timestamp() / 60 for launch in launches]
    except ValueError:
        clock = []
    if clock and len(set(clock)) == len(clock):
        return tuple(moment - clock[0] for moment in clock)
    out, spent = [], 0.0
    for launch in launches:
        out.append(spent)
        spent += launch.minutes
    return tuple(out)


Plot = dict[str, Any]

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


def harmless(text: str, limit: int = 120) -> str:
    """Text of others, such that neither Plotly nor the browser sees anything in it but text."""
    return escape(line(text, limit), quote=True)


def launch_traces(report: ReportDocument, places: Sequence[float]) -> list[Plot]:
    """A marker a launch (hollow before the step), its runs as dashes, failures at the bottom."""
    both = list(zip(places, report.launches, strict=True))
    runs = [(place, value) for place, x in both if len(x.values) > 1 for value in x.values]
    out: list[Plot] = []
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
    moves = step_spans(report)
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
                    "customdata": [hover_lines(report, x) for _, x in own],
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
                "customdata": [hover_lines(report, x) for _, x in failed],
                "hovertemplate": _LINES,
            }
        )
    return out


def _hollow(launch: LaunchDocument, moves: Sequence[tuple[int, int]]) -> str:
    """Open symbols before the first step, filled ones from it on; every second level open."""
    passed = sum(launch.position >= last for _, last in moves)
    return "" if passed % 2 or not moves else "-open"


def hover_lines(report: ReportDocument, launch: LaunchDocument) -> list[str]:
    """The lines of a launch under the pointer: which and of what, its value, what else there is to know."""
    head = f"#{launch.number} {change_label(launch.change)}"
    good = next((level.value for level in level_spans(report)), None)
    if launch.value is None:
        value = f"{launch.outcome}: {harmless(launch.reason)}"
    else:
        value = with_unit(launch.value, report.metric.unit)
        value += f", {percent(launch.value / good - 1)} against the first level" if good else ""
    more = [f"{len(launch.values)} run{'' if len(launch.values) == 1 else 's'}"] if launch.values else []
    more += [f"took {minutes(launch.minutes)}"]
    more += [f"slot {harmless(launch.slot)}"] if launch.slot else []
    more += ["cold caches"] if launch.cold else []
    more += [harmless("; ".join(launch.warnings))] if launch.warnings else []
    return [head, value, ", ".join(more)]


def position_labels(report: ReportDocument) -> dict[int, str]:
    """Position -> its changes under the pointer."""
    return {
        p.index: f"{p.index}: " + "<br>and ".join(change_label(change) for change in p.changes[:3])
        for p in report.history
        if p.changes
    }


def change_label(change: ChangeDocument) -> str:
    return f"{harmless(change.short)} {harmless(change.subject, 90)}".rstrip()


def tick_label(report: ReportDocument, index: int) -> str:
    there = [p.changes[0] for p in report.history if p.index == index and p.changes]
    return harmless(there[0].short[:12]) if there else str(index)


def level_line(left: float, right: float, value: float) -> Plot:
    return {
        "type": "line",
        "x0": left,
        "x1": right,
        "y0": value,
        "y1": value,
        "line": {"color": "@ink", "width": 1.5, "dash": "dot"},
        "layer": "below",
    }


def value_axis(report: ReportDocument) -> Plot:
    return {"title": {"text": f"{harmless(report.metric.name)}, {harmless(report.metric.unit)}"}}


def with_value_axis(
    data: list[Plot], layout: Plot, report: ReportDocument, values: Sequence[float] = ()
) -> Plot:
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
    return {"data": told, "layout": with_common_layout(layout)}


def with_common_layout(layout: Plot) -> Plot:
    """What all figures have in common."""
    common: Plot = {
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


_TICKS = 20


def plots(report: ReportDocument) -> dict[str, Plot]:
    """Plots by the name of their element in the page; those without data are left out."""
    drawn = {
        "by-commit": commit_plot(report),
        "by-time": time_plot(report),
        "pairs": ab_plot(report),
        "effects": effects_plot(report),
        "phases": phases_plot(report),
    }
    return {name: plot for name, plot in drawn.items() if plot is not None}


def effect_rows(report: ReportDocument) -> list[tuple[str, EffectDocument]]:
    """Each comparison of a report with its name, the confirming A/B first."""
    rows = [
        ("culprit against parent", report.confirmed),
        ("bad against good", report.whole),
        ("bad without the culprit against bad", report.revert),
    ]
    measured = [(name, effect) for name, effect in rows if effect is not None]
    return measured + [(f"step at {step.confirmed.right.short}", step.confirmed) for step in report.steps]


def commit_plot(report: ReportDocument) -> Plot | None:
    """The posterior over the positions and, on the same axis, every launch with its runs and the levels."""
    if not report.launches:
        return None
    beliefs = report.beliefs.by_position if report.beliefs else ()
    culprits = {i for first, last in step_spans(report) for i in range(first, last + 1)}
    data: list[Plot] = []
    subjects = position_labels(report)
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
    data += launch_traces(report, places)
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
                "customdata": [[subjects.get(i, ""), harmless(skipped[change.id])] for i, change in where],
                "hovertemplate": "%{customdata[0]}<br>skipped: %{customdata[1]}<extra></extra>",
            }
        )
    shapes = [level_line(x.first - 0.4, x.last + 0.4, x.value) for x in level_spans(report)]
    last = report.positions - 1
    step = max(1, math.ceil((last + 1) / _TICKS))
    room = max(0.7, last * 0.015)
    # The culprit's label is among those that are shown.
    ticks = list(range(min(culprits, default=0) % step, last + 1, step))
    # The reverted end stands beyond the range.
    beyond = last + any(launch.position > last for launch in report.launches)
    layout: Plot = {
        "height": 560 if beliefs else 400,
        "bargap": 0.15,
        "shapes": shapes,
        "xaxis": {
            "range": [-room, beyond + room],
            "tickvals": ticks + [beyond] * (beyond > last),
            "ticktext": [tick_label(report, i) for i in ticks] + ["reverted"] * (beyond > last),
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
    return with_value_axis(data, layout, report)


def time_plot(report: ReportDocument) -> Plot | None:
    """Every launch in the order of the clock, so that a drift of the machine would show."""
    if not report.launches:
        return None
    at = launch_times(report.launches)
    data = launch_traces(report, at)
    end = max(t + x.minutes for t, x in zip(at, report.launches, strict=True))
    room = max(end * 0.02, 0.01)
    apart = _residuals(report, at)
    layout: Plot = {
        "height": 520 if apart else 380,
        "shapes": [level_line(-room, end + room, x.value) for x in level_spans(report)],
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
    return with_value_axis([*data, *apart], layout, report)


def _residuals(report: ReportDocument, at: Sequence[float]) -> list[Plot]:
    """How far each launch is from the level that it is on, a line for each slot."""
    known = level_spans(report) if step_spans(report) else ()
    slots: dict[str, list[tuple[float, float]]] = {}
    for moment, launch in zip(at, report.launches, strict=True):
        for own in known:
            if launch.value is not None and own.first <= launch.position <= own.last:
                slots.setdefault(launch.slot, []).append((moment, (launch.value / own.value - 1) * 100))
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"slot {harmless(slot)}" if slot else "from its level",
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


def ab_plot(report: ReportDocument) -> Plot | None:
    """The A/B: each pair of launches joined, and the level of each side."""
    found = ab_pairs(report)
    if not found or report.confirmed is None:
        return None
    unit, sides = report.metric.unit, (report.confirmed.left, report.confirmed.right)
    data: list[Plot] = []
    for turn, pair in enumerate(found, 1):
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
                "customdata": [[f"pair {turn}, launch #{x.number}", with_unit(x.value, unit)] for x in pair],
                "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
            }
        )
    sides_at = ab_levels(found, report.confirmed.effect)
    shapes = [level_line(side - 0.2, side + 0.2, value) for side, value in enumerate(sides_at)]
    layout: Plot = {
        "height": 340,
        "shapes": shapes,
        "xaxis": {
            "range": [-0.5, 1.5],
            "tickvals": [0, 1],
            "ticktext": [f"parent<br>{harmless(sides[0].short)}", f"culprit<br>{harmless(sides[1].short)}"],
        },
        "yaxis": value_axis(report),
    }
    return with_value_axis(data, layout, report, values=[x.value for pair in found for x in pair if x.value])


def effects_plot(report: ReportDocument) -> Plot | None:
    """Every comparison with its interval, beside the smallest effect that was worth telling."""
    rows = effect_rows(report)
    if not rows:
        return None
    shares = [effect.effect * 100 for _, effect in rows]
    labels = [harmless(name) for name, _ in rows]
    small = report.metric.smallest_effect * 100
    data: list[Plot] = [
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
    layout: Plot = {
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
    return {"data": data, "layout": with_common_layout(layout)}


def phases_plot(report: ReportDocument) -> Plot | None:
    """The minutes of each launch by phase."""
    spent = list(report.minutes.by_phase)
    if not spent or not report.launches:
        return None
    order = [name for name in PHASES if name in spent] + [name for name in spent if name not in PHASES]
    numbers = [launch.number for launch in report.launches]
    data: list[Plot] = [
        {
            "type": "bar",
            "name": harmless(PHASES.get(name, name)),
            "x": numbers,
            "y": [launch.seconds.get(name, 0.0) / 60 for launch in report.launches],
            "marker": {"color": f"@phase{list(PHASES).index(name) if name in PHASES else 4}"},
            "customdata": [
                [minutes(x.seconds.get(name, 0.0) / 60), harmless(x.change.short), x.purpose]
                for x in report.launches
            ],
            "hovertemplate": "launch %{x}: %{customdata[1]}, %{customdata[2]}<br>%{fullData.name} "
            "%{customdata[0]}<extra></extra>",
        }
        for name in order
    ]
    layout: Plot = {
        "height": 320,
        "barmode": "stack",
        "legend": {**LEGEND, "traceorder": "normal"},
        "bargap": 0.2,
        "xaxis": {"title": {"text": "launch"}, "tickformat": "d"},
        "yaxis": {"title": {"text": "minutes"}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": with_common_layout(layout)}


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
