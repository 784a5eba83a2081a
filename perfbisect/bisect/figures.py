"""Plots of a bisection; :mod:`perfbisect.report.plots` says how colours and foreign text are written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from perfbisect.bisect.result import BisectResult
from perfbisect.common.quantities import counted, minutes, percent, probability, with_unit
from perfbisect.jobs.replay import Launch
from perfbisect.model.metric import parse_metric
from perfbisect.report.plots import (
    Plot,
    axis,
    change_label,
    harmless,
    horizontal_line,
    hover,
    launch_times,
    layout,
    run_dashes,
    scatter,
    value_axis,
)
from perfbisect.stats.ab_test import side_levels
from perfbisect.stats.two_sample import Scale

_PURPOSES: Final[Mapping[str, tuple[str, str]]] = {
    "end": ("an end of the range", "circle"),
    "search": ("search", "diamond"),
    "confirm": ("A/B", "square"),
    "replicate": ("A/B on another machine", "star-diamond"),
    "revert": ("revert check", "triangle-up"),
}
"""Purpose of a launch -> its name in the legend, and its symbol."""

_BOTTOM: Final = "@bottom"
"""Stands for the height of what has no value."""

_MAX_TICKS = 20


def plots(result: BisectResult) -> dict[str, Plot]:
    """Plots by the name of their element in the page; those without data are left out."""
    drawn = {
        "by-commit": _commit_plot(result),
        "by-time": _time_plot(result),
        "pairs": _ab_plot(result),
    }
    return {name: plot for name, plot in drawn.items() if plot is not None}


@dataclass(frozen=True)
class LevelSpan:
    """Positions ``first`` to ``last`` with one level: the median of their launches."""

    first: int
    last: int
    value: float


def step_spans(result: BisectResult) -> tuple[tuple[int, int], ...]:
    """The first and last position of each set of culprits, in the history's order."""
    named = [step.culprits for step in result.steps]
    if not named and result.outcome in ("found", "narrowed"):
        named = [tuple(position.index for position in result.culprits)]
    return tuple(sorted((culprits[0], culprits[-1]) for culprits in named if culprits))


def level_spans(result: BisectResult) -> tuple[LevelSpan, ...]:
    """A level between each two steps; without a step those of the two ends alone."""
    last = result.positions - 1
    steps = step_spans(result)
    starts = [0, *(stop for _, stop in steps)] if steps else [0, last]
    stops = [*(start - 1 for start, _ in steps), last] if steps else [0, last]
    spans = []
    for start, stop in zip(starts, stops, strict=True):
        values = [x.value for x in result.launches if start <= x.position <= stop and x.value is not None]
        if values:
            spans.append(LevelSpan(start, stop, median(values)))
    return tuple(spans)


def ab_pairs(result: BisectResult) -> tuple[tuple[Launch, Launch], ...]:
    """The confirming A/B's launches, parent's and culprit's, as they followed each other on one slot."""
    if result.confirmed is None:
        return ()
    sides = (result.confirmed.parent, result.confirmed.culprit)
    waiting: dict[str, Launch] = {}
    pairs = []
    for launch in result.launches:
        if launch.purpose != "confirm" or launch.value is None or launch.position not in sides:
            continue
        before = waiting.get(launch.slot)
        # Two launches of one side in a row are no pair: the one between them failed or was discarded.
        if before is None or before.position == launch.position:
            waiting[launch.slot] = launch
            continue
        del waiting[launch.slot]
        pairs.append((before, launch) if before.position == sides[0] else (launch, before))
    return tuple(pairs)


def _commit_plot(result: BisectResult) -> Plot | None:
    """The posterior over the positions and, on the same axis, every launch with its runs and the levels."""
    if not result.launches:
        return None
    beliefs = result.beliefs.p if result.beliefs else ()
    culprits = {i for first, last in step_spans(result) for i in range(first, last + 1)}
    if result.outcome == "narrowed":
        culprits = {position.index for position in result.culprits}
    labels = [
        f"{position.index}: " + "<br>and ".join(map(change_label, position.changes[:3]))
        for position in result.history
    ]
    data: list[Plot] = []
    if beliefs:
        colors = ["@culprit" if i in culprits else "@bar" for i in range(len(beliefs))]
        rows = [[label, probability(p)] for label, p in zip(labels, beliefs, strict=False)]
        text = hover(rows, "%{customdata[0]}<br>P(culprit) %{customdata[1]}")
        bars = {"type": "bar", "x": list(range(len(beliefs))), "y": list(beliefs), "yaxis": "y2"}
        data.append(bars | {"marker": {"color": colors}, "showlegend": False} | text)
    data += _launch_traces(result, [float(launch.position) for launch in result.launches])
    reasons = {skip.change.id: skip.reason for skip in result.skips}
    skipped = [p.index for p in result.history if p.changes[0].id in reasons]
    if skipped:
        rows = [[labels[i], harmless(reasons[result.history[i].changes[0].id])] for i in skipped]
        marker = {"symbol": "line-ns-open", "size": 11, "color": "@quiet", "line": {"width": 2}}
        text = hover(rows, "%{customdata[0]}<br>skipped: %{customdata[1]}")
        data.append(scatter(skipped, [_BOTTOM] * len(skipped), name="skipped", marker=marker, **text))
    last = result.positions - 1
    # The reverted end stands beyond the range.
    end = last + any(launch.position > last for launch in result.launches)
    room = max(0.7, last * 0.015)
    # The culprit's label is among those that are shown.
    step = max(1, math.ceil((last + 1) / _MAX_TICKS))
    ticks = list(range(min(culprits, default=0) % step, last + 1, step))
    names = [harmless(result.history[i].changes[0].short[:12]) for i in ticks]
    x = axis(
        range=[-room, end + room],
        tickvals=ticks + [end] * (end > last),
        ticktext=names + ["reverted"] * (end > last),
        tickangle=-45,
        tickfont={"family": "ui-monospace, monospace", "size": 11},
        anchor="y",
    )
    posterior = axis("P(culprit)", domain=[0.7, 1], range=[0, 1.02], tickvals=[0, 0.5, 1])
    spans = level_spans(result)
    drawn = layout(
        560 if beliefs else 400,
        bargap=0.15,
        shapes=[horizontal_line(s.first - 0.4, s.last + 0.4, s.value, "@ink") for s in spans],
        xaxis=x,
        yaxis=value_axis(result.metric, domain=[0, 0.62 if beliefs else 1]),
        **({"yaxis2": posterior} if beliefs else {}),
    )
    return _with_room(data, drawn, _values(result))


def _time_plot(result: BisectResult) -> Plot | None:
    """Every launch in the order of the clock, so that a drift of the machine would show."""
    if not result.launches:
        return None
    at = launch_times(result.launches)
    end = max(t + x.minutes for t, x in zip(at, result.launches, strict=True))
    room = max(end * 0.02, 0.01)
    apart = _residuals(result, at)
    residuals = axis("from its level", domain=[0, 0.32], ticksuffix=" %", zeroline=True)
    anchor = "y2" if apart else "y"
    drawn = layout(
        520 if apart else 380,
        shapes=[horizontal_line(-room, end + room, x.value, "@ink") for x in level_spans(result)],
        xaxis=axis("minutes from the first launch", range=[-room, end + room], anchor=anchor),
        yaxis=value_axis(result.metric, domain=[0.42 if apart else 0, 1]),
        **({"yaxis2": residuals} if apart else {}),
    )
    return _with_room([*_launch_traces(result, at), *apart], drawn, _values(result))


def _residuals(result: BisectResult, at: Sequence[float]) -> list[Plot]:
    """How far each launch is from its level, a line for each slot."""
    levels = level_spans(result) if step_spans(result) else ()
    slots: dict[str, list[tuple[float, float]]] = {}
    for moment, launch in zip(at, result.launches, strict=True):
        for level in levels:
            if launch.value is not None and level.first <= launch.position <= level.last:
                share = (launch.value / level.value - 1) * 100
                slots.setdefault(launch.slot, []).append((moment, share))
    traces = []
    for number, (slot, points) in enumerate(sorted(slots.items())):
        style = number % 3
        x, y = zip(*points, strict=True)
        traces.append(
            scatter(
                x,
                y,
                "lines+markers",
                name=f"slot {harmless(slot)}" if slot else "from its level",
                showlegend=len(slots) > 1,
                line={"color": f"@slot{style}", "width": 1.5, "dash": ("solid", "dot", "dash")[style]},
                marker={"size": 5, "symbol": ("circle", "square", "diamond")[style]},
                hovertemplate="%{y:+.1f} % from its level<extra></extra>",
                yaxis="y2",
            )
        )
    return traces


def _ab_plot(result: BisectResult) -> Plot | None:
    """The A/B: each pair of launches joined, and the level of each side."""
    pairs = ab_pairs(result)
    if not pairs or result.confirmed is None:
        return None
    data = []
    for number, pair in enumerate(pairs, 1):
        rows = [[f"pair {number}, launch #{x.number}", with_unit(x.value, result.metric.unit)] for x in pair]
        marker = {"symbol": ["square-open", "square"], "size": 10, "color": "@confirm"}
        line = {"color": "@confirm", "width": 1.5}
        values = [launch.value for launch in pair]
        data.append(
            scatter(
                (0, 1), values, "lines+markers", name="pair", showlegend=False, line=line, marker=marker,
                **hover(rows),
            )
        )  # fmt: skip
    left, right = (result.change(x) for x in (result.confirmed.parent, result.confirmed.culprit))
    suspect = "culprit" if result.outcome == "found" else "suspect"
    names = [f"parent<br>{harmless(left.short)}", f"{suspect}<br>{harmless(right.short)}"]
    # The levels are as far apart as the effect of the A/B.
    scale = Scale(absolute=parse_metric(result.metric.name).metric.absolute)
    a, b = ([scale.level((x.value,)) for x in side if x.value] for side in zip(*pairs, strict=True))
    levels = map(scale.value, side_levels(a, b, scale.difference(result.confirmed.effect)))
    drawn = layout(
        340,
        shapes=[horizontal_line(side - 0.2, side + 0.2, level, "@ink") for side, level in enumerate(levels)],
        xaxis=axis(range=[-0.5, 1.5], tickvals=[0, 1], ticktext=names),
        yaxis=value_axis(result.metric),
    )
    return _with_room(data, drawn, [x.value for pair in pairs for x in pair if x.value is not None])


_WITHOUT_VALUE = {"failed": ("failed", "x", "@culprit"), "abandoned": ("stopped", "circle-x-open", "@quiet")}
"""Outcome of a launch -> its name in the legend, its symbol and colour. A stopped launch is no failure."""


def _launch_traces(result: BisectResult, places: Sequence[float]) -> list[Plot]:
    """A marker a launch (hollow before the step), its runs as dashes, failures at the bottom."""
    placed = list(zip(places, result.launches, strict=True))
    traces = run_dashes(result.launches, places, "single runs", "@quiet", legend=True)
    steps = step_spans(result)
    for purpose, (name, symbol) in _PURPOSES.items():
        own = [(place, x) for place, x in placed if x.purpose == purpose and x.value is not None]
        if own:
            color = f"@{purpose}"
            # Open before the first step, filled from it on; every second level is open.
            passed = [sum(x.position >= stop for _, stop in steps) for _, x in own]
            symbols = [symbol if count % 2 or not steps else f"{symbol}-open" for count in passed]
            marker = {"symbol": symbols, "size": 10, "color": color, "line": {"width": 1.8, "color": color}}
            values = [x.value for _, x in own]
            text = hover([_hover_lines(result, x) for _, x in own])
            traces.append(scatter([place for place, _ in own], values, name=name, marker=marker, **text))
    for outcome, (name, symbol, color) in _WITHOUT_VALUE.items():
        own = [(place, x) for place, x in placed if x.outcome == outcome]
        if own:
            marker = {"symbol": symbol, "size": 9, "color": color}
            text = hover([_hover_lines(result, x) for _, x in own])
            x = [place for place, _ in own]
            traces.append(scatter(x, [_BOTTOM] * len(own), name=name, marker=marker, **text))
    return traces


def _hover_lines(result: BisectResult, launch: Launch) -> list[str]:
    """A launch under the pointer: its number and change, its value, what else there is to know."""
    levels = level_spans(result)
    if launch.value is None:
        value = f"{launch.outcome}: {harmless(launch.reason)}"
    else:
        value = with_unit(launch.value, result.metric.unit)
        if levels:
            value += f", {percent(launch.value / levels[0].value - 1)} against the first level"
    count = len(launch.values)
    more = [counted(count, "run")] if count else []
    more += [f"took {minutes(launch.minutes)}"]
    more += [f"slot {harmless(launch.slot)}"] if launch.slot else []
    more += ["cold caches"] if launch.cold else []
    more += [harmless("; ".join(launch.warnings))] if launch.warnings else []
    return [f"#{launch.number} {change_label(launch.change)}", value, ", ".join(more)]


def _values(result: BisectResult) -> list[float]:
    return [value for x in result.launches for value in (*x.values, x.value) if value is not None]


def _with_room(data: list[Plot], drawn: Plot, values: Sequence[float]) -> Plot:
    """The plot with room below for what has no value."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    bottom = low - room * (2 if any(_BOTTOM in trace.get("y", ()) for trace in data) else 1)
    floor = bottom + room * 0.4
    for trace in data:
        trace["y"] = [floor if y == _BOTTOM else y for y in trace["y"]]
    drawn["yaxis"]["range"] = [bottom, high + room]
    return {"data": data, "layout": drawn}
