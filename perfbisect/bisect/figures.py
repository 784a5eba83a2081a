"""Plots of a bisection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from perfbisect.bisect.result import BisectResult
from perfbisect.common.quantities import counted, minutes, percent, probability, with_unit
from perfbisect.common.text import line
from perfbisect.jobs.replay import Launch
from perfbisect.model.metric import parse_metric
from perfbisect.report.plots import (
    Axis,
    Dash,
    Level,
    Panel,
    Plot,
    PlotTrace,
    axis_of_minutes,
    change_label,
    launch_times,
    run_dashes,
    value_axis,
)
from perfbisect.stats.ab_test import side_levels
from perfbisect.stats.two_sample import Scale

_PURPOSES: Final[Mapping[str, tuple[str, str]]] = {
    "end": ("an end of the range", "circle"),
    "search": ("search", "diamond"),
    "confirm": ("A/B", "square"),
    "replicate": ("A/B on another machine", "spark"),
    "revert": ("revert check", "triangle"),
}
"""Purpose of a launch -> its name in the legend, and its symbol."""

_MAX_TICKS = 20

_EVIDENCE: Final = (
    ("unclear", "stopped", "quiet"),
    ("fails", "cross", "culprit"),
    ("serves", "circle", "confirm"),
)
"""What a launch says of its change: the rows from the bottom, with symbol and colour."""


def plots(result: BisectResult) -> dict[str, Plot]:
    """Plots by the name of their element in the page; those without data are left out."""
    drawn = {
        "by-commit": _commit_plot(result),
        "by-time": _time_plot(result),
        "pairs": _ab_plot(result),
    }
    return {name: plot for name, plot in drawn.items() if plot is not None}


def step_spans(result: BisectResult) -> tuple[tuple[int, int], ...]:
    """The first and last position of each set of culprits, in the history's order."""
    named = [step.culprits for step in result.steps]
    if not named and result.outcome in ("found", "narrowed"):
        named = [tuple(position.index for position in result.culprits)]
    return tuple(sorted((culprits[0], culprits[-1]) for culprits in named if culprits))


def levels_of(result: BisectResult) -> tuple[Level, ...]:
    """The median of the launches between each two steps; without a step those of the two ends alone."""
    last = result.positions - 1
    steps = step_spans(result)
    starts = [0, *(stop for _, stop in steps)] if steps else [0, last]
    stops = [*(start - 1 for start, _ in steps), last] if steps else [0, last]
    spans = []
    for start, stop in zip(starts, stops, strict=True):
        values = [x.value for x in result.launches if start <= x.position <= stop and x.value is not None]
        if values:
            spans.append(Level(median(values), "ink", (start - 0.4, stop + 0.4)))
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


def evidence_plot(launches: Sequence[Launch], positions: int) -> Plot | None:
    """Every ended launch at its change, in the row of what it says: for a search without a metric."""
    ended = [x for x in launches if x.outcome != "running"]
    if not ended:
        return None
    said = [2 if x.outcome == "measured" else 1 if x.fault == "change" else 0 for x in ended]
    traces = []
    for row, (name, symbol, color) in enumerate(_EVIDENCE):
        own = [x for x, of in zip(ended, said, strict=True) if of == row]
        told = [(f"#{x.number} {change_label(x.change)}", line(x.reason, 120) or name) for x in own]
        places = [x.position for x in own]
        traces.append(PlotTrace(name, color, places, [row] * len(own), symbol, told=told, legend=False))
    rows = Axis(range=(-0.6, 2.6), ticks=tuple((row, name) for row, (name, *_) in enumerate(_EVIDENCE)))
    tested = sorted({(x.position, line(x.change.short, 12)) for x in ended})
    x = Axis(range=(-0.7, positions - 0.3), ticks=tuple(tested))
    return Plot(x, (Panel(rows, tuple(traces), (), 220),))


def _commit_plot(result: BisectResult) -> Plot | None:
    """The posterior over the positions and, on the same axis, every launch with its runs and the levels."""
    if not result.launches:
        return None
    beliefs = result.beliefs.p if result.beliefs else ()
    culprits = {i for first, last in step_spans(result) for i in range(first, last + 1)}
    if result.outcome == "narrowed":
        culprits = {position.index for position in result.culprits}
    labels = [
        [f"{position.index}: {change_label(position.changes[0])}"]
        + [f"and {change_label(change)}" for change in position.changes[1:3]]
        for position in result.history
    ]
    bars = []
    for color, is_culprit in (("bar", False), ("culprit", True)):
        own = [i for i in range(len(beliefs)) if (i in culprits) is is_culprit]
        told = [(*labels[i], f"P(culprit) {probability(beliefs[i])}") for i in own]
        bars.append(PlotTrace(color, color, own, [beliefs[i] for i in own], "bar", told=told, legend=False))
    traces = _launch_traces(result, [float(launch.position) for launch in result.launches])
    reasons = {skip.change.id: line(skip.reason, 120) for skip in result.skips}
    skipped = [p.index for p in result.history if p.changes[0].id in reasons]
    if skipped:
        told = [(*labels[i], f"skipped: {reasons[result.history[i].changes[0].id]}") for i in skipped]
        traces.append(PlotTrace("skipped", "quiet", skipped, [None] * len(skipped), "tick", told=told))
    last = result.positions - 1
    # The reverted end stands beyond the range.
    end = last + any(launch.position > last for launch in result.launches)
    room = max(0.7, last * 0.015)
    # The culprit's label is among those that are shown.
    step = max(1, math.ceil((last + 1) / _MAX_TICKS))
    shown = range(min(culprits, default=0) % step, last + 1, step)
    ticks = [(float(i), line(result.history[i].changes[0].short, 12)) for i in shown]
    if end > last:
        ticks.append((end, "reverted"))
    measured = Panel(value_axis(result.metric), tuple(traces), levels_of(result), 340)
    posterior = Panel(
        Axis("P(culprit)", (0.0, 1.02), ((0, "0"), (0.5, "0.5"), (1, "1"))), tuple(bars), (), 130
    )
    x = Axis(range=(-room, end + room), ticks=tuple(ticks))
    return Plot(x, (posterior, measured) if beliefs else (measured,))


def _time_plot(result: BisectResult) -> Plot | None:
    """Every launch in the order of the clock, so that a drift of the machine would show."""
    if not result.launches:
        return None
    at = launch_times(result.launches)
    x = axis_of_minutes(max(t + launch.minutes for t, launch in zip(at, result.launches, strict=True)))
    levels = tuple(Level(level.value, "ink") for level in levels_of(result))
    panels = [Panel(value_axis(result.metric), tuple(_launch_traces(result, at)), levels, 340)]
    if apart := _residuals(result, at):
        panels.append(
            Panel(Axis("from its level", suffix=" %"), apart, (Level(0.0, "quiet", dash="solid"),), 180)
        )
    return Plot(x, tuple(panels))


def _residuals(result: BisectResult, at: Sequence[float]) -> tuple[PlotTrace, ...]:
    """How far each launch is from its level, a line for each slot."""
    levels = levels_of(result) if step_spans(result) else ()
    slots: dict[str, list[tuple[float, float]]] = {}
    for moment, launch in zip(at, result.launches, strict=True):
        for level in levels:
            first, last = level.span or (0, 0)
            if launch.value is not None and first <= launch.position <= last:
                share = (launch.value / level.value - 1) * 100
                slots.setdefault(launch.slot, []).append((moment, share))
    looks: tuple[tuple[str, Dash], ...] = (("circle", "solid"), ("square", "dot"), ("diamond", "dash"))
    traces = []
    for number, (slot, points) in enumerate(sorted(slots.items())):
        symbol, dash = looks[number % 3]
        x, y = zip(*points, strict=True)
        name = f"slot {line(slot, 120)}" if slot else "from its level"
        told = [(f"{share:+.1f} % from its level",) for share in y]
        color, has_name = f"slot{number % 3}", len(slots) > 1
        traces.append(PlotTrace(name, color, x, y, symbol, size=5, told=told, line=dash, legend=has_name))
    return tuple(traces)


def _ab_plot(result: BisectResult) -> Plot | None:
    """The A/B: each pair of launches joined, and the level of each side."""
    pairs = ab_pairs(result)
    if not pairs or result.confirmed is None:
        return None
    traces = []
    for number, pair in enumerate(pairs, 1):
        told = [(f"pair {number}, launch #{x.number}", with_unit(x.value, result.metric.unit)) for x in pair]
        values, symbols = [launch.value for launch in pair], ("square-open", "square")
        traces.append(
            PlotTrace("pair", "confirm", (0, 1), values, symbols, told=told, line="solid", legend=False)
        )
    left, right = (result.change(x) for x in (result.confirmed.parent, result.confirmed.culprit))
    suspect = "culprit" if result.outcome == "found" else "suspect"
    names = ((0, f"parent\n{line(left.short, 120)}"), (1, f"{suspect}\n{line(right.short, 120)}"))
    # The levels are as far apart as the effect of the A/B.
    scale = Scale(absolute=parse_metric(result.metric.name).metric.absolute)
    a, b = ([scale.level((x.value,)) for x in side if x.value] for side in zip(*pairs, strict=True))
    sides = map(scale.value, side_levels(a, b, scale.difference(result.confirmed.effect)))
    levels = tuple(Level(value, "ink", (side - 0.2, side + 0.2)) for side, value in enumerate(sides))
    panel = Panel(value_axis(result.metric), tuple(traces), levels, 340)
    return Plot(Axis(range=(-0.5, 1.5), ticks=names), (panel,))


_WITHOUT_VALUE = {"failed": ("failed", "cross", "culprit"), "abandoned": ("stopped", "stopped", "quiet")}
"""Outcome of a launch -> its name in the legend, its symbol and colour. A stopped launch is no failure."""


def _launch_traces(result: BisectResult, places: Sequence[float]) -> list[PlotTrace]:
    """A mark a launch (hollow before the step), its runs as dashes, failures at the bottom."""
    placed = list(zip(places, result.launches, strict=True))
    traces = run_dashes(result.launches, places, "single runs", "quiet", legend=True)
    steps = step_spans(result)
    for purpose, (name, symbol) in _PURPOSES.items():
        own = [(place, x) for place, x in placed if x.purpose == purpose and x.value is not None]
        if own:
            # Open before the first step, filled from it on; every second level is open.
            passed = [sum(x.position >= stop for _, stop in steps) for _, x in own]
            symbols = [symbol if count % 2 or not steps else f"{symbol}-open" for count in passed]
            told = [_hover_lines(result, x) for _, x in own]
            x, y = zip(*((place, launch.value) for place, launch in own), strict=True)
            traces.append(PlotTrace(name, purpose, x, y, symbols, told=told))
    for outcome, (name, symbol, color) in _WITHOUT_VALUE.items():
        own = [(place, x) for place, x in placed if x.outcome == outcome]
        if own:
            told = [_hover_lines(result, x) for _, x in own]
            x = tuple(place for place, _ in own)
            traces.append(PlotTrace(name, color, x, [None] * len(own), symbol, size=9, told=told))
    return traces


def _hover_lines(result: BisectResult, launch: Launch) -> list[str]:
    """A launch under the pointer: its number and change, its value, what else there is to know."""
    levels = levels_of(result)
    if launch.value is None:
        value = f"{launch.outcome}: {line(launch.reason, 120)}"
    else:
        value = with_unit(launch.value, result.metric.unit)
        if levels:
            value += f", {percent(launch.value / levels[0].value - 1)} against the first level"
    count = len(launch.values)
    more = [counted(count, "run")] if count else []
    more += [f"took {minutes(launch.minutes)}"]
    more += [f"slot {line(launch.slot, 120)}"] if launch.slot else []
    more += ["cold caches"] if launch.cold else []
    more += [line("; ".join(launch.warnings), 120)] if launch.warnings else []
    return [f"#{launch.number} {change_label(launch.change)}", value, ", ".join(more)]
