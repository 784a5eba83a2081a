"use strict";
// The large figures, as plots of perfbisect/report/plots.py; drawPlot is read with the first of them.
perfbisect.figure = (() => {
  const { words } = perfbisect;
  const SYMBOLS = ["circle", "square", "diamond", "triangle", "cross", "plus", "star", "hexagon"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "solid", "dash", "dot"];
  const MAIN = { true: "circle", false: "cross", null: "circle-open" };

  const told = (loaded, at) => {
    const { points } = loaded.data;
    const lines = [words.amount(loaded.series.values[at], loaded.measure.unit)];
    lines.push(`${words.minute(points.time[at])}, build ${points.build[at]}`);
    if (points.commit[at]) lines.push(`commit ${words.short(points.commit[at])}`);
    if (points.main[at] === false) lines.push("not of the main branch");
    return lines;
  };

  // Indices of the points that have a value.
  const there = (values) => values.map((_, at) => at).filter((at) => values[at] !== null);

  // Where a series may have moved: from the last point before the places to the last of them.
  const extent = (alert, times) => {
    const from = alert.places[0];
    const before = times.filter((time) => time < from);
    const start = before.length ? before[before.length - 1] : from;
    return [start, alert.shape === "step" ? alert.places[1] : alert.last];
  };

  const rules = (loaded, alerts, chosen) => {
    const { time } = loaded.data.points;
    const at = (index) => words.seconds(time[index]);
    return [
      ...alerts.map((alert, number) => ({
        at: words.seconds(alert.first), color: colour(alert), width: chosen === alert.id ? 3 : 1.5, strong: chosen === alert.id,
        dash: alert.shape === "step" ? "solid" : "dash", row: number % 2,
        above: `${number + 1} ${words.arrow(alert)} ${words.effect(loaded.measure, alert.effect)}`,
      })),
      ...loaded.series.discontinuities.map((boundary) => ({
        at: at(boundary.at), color: "soft", width: boundary.cut ? 2 : 1, dash: "dot", share: boundary.cut ? 1 : 0.3,
        below: boundary.what.slice(0, 60),
      })),
      ...loaded.series.small.map((small) => ({ at: at(small.at), color: "soft", width: 3, share: 0.06 })),
    ];
  };

  const colour = (alert) => (alert.kind === "wrong" || alert.kind === "better" ? words.side(alert) : "other");

  // Where changes may have begun, and the levels with their intervals and spreads.
  const boxes = (loaded, alerts, chosen) => {
    const { time } = loaded.data.points;
    const changes = alerts.map((alert) => {
      const [x0, x1] = extent(alert, time).map(words.seconds);
      return { x0, x1, color: colour(alert), alpha: chosen === alert.id ? 0.3 : 0.18 };
    });
    return [...changes, ...loaded.series.levels.flatMap((level) => {
      const [x0, x1] = spanOf(level, time);
      const wide = 2 * level.spread;
      const spread = level.spread === null ? []
        : [{ x0, x1, y0: level.value * (1 - wide), y1: level.value * (1 + wide), color: "spread", alpha: 0.16 }];
      return [...spread, { x0, x1, y0: level.low, y1: level.high, color: "level", alpha: 0.3 }];
    })];
  };

  const spanOf = (level, time) => [words.seconds(time[level.first]), words.seconds(time[level.last])];

  const levels = (loaded) => loaded.series.levels.map((level) => ({
    value: level.value, span: spanOf(level, loaded.data.points.time), color: "level", width: 2, dash: "solid",
  }));

  const trace = (loaded, known, values, more) => ({
    name: loaded.measure.name, legend: false, told: [], size: 6, line: "solid",
    x: known.map((at) => words.seconds(loaded.data.points.time[at])), y: values, ...more,
  });

  const ranged = (times, days) => {
    const room = 12 * 3600;
    const [first, last] = [words.seconds(times[0]), words.seconds(times[times.length - 1])];
    return [Math.max(first, days ? last - days * 24 * 3600 : first) - room, last + room];
  };

  const titled = (measure, scale) => ({ title: `${measure.name}, ${measure.unit}`, ticks: [], scale });

  // One series; "beside" names a covariate that is drawn below it, on the same time. "reach" hears of the position of
  // a point that is pointed at.
  const one = async (node, loaded, { alerts, scale, days, beside, chosen, reach }) => {
    const drawPlot = await perfbisect.plots();
    const { time, main } = loaded.data.points;
    const known = there(loaded.series.values);
    const panels = [{
      axis: titled(loaded.measure, scale), height: beside ? 370 : 400, levels: levels(loaded),
      boxes: boxes(loaded, alerts, chosen), rules: rules(loaded, alerts, chosen),
      traces: [trace(loaded, known, known.map((at) => loaded.series.values[at]), {
        color: "line", mark: "s0", width: 1, size: known.length > 200 ? 5 : 7,
        symbol: known.map((at) => MAIN[main[at]]), told: known.map((at) => told(loaded, at)),
      })],
    }];
    if (beside) {
      const values = loaded.data.covariates[beside];
      const own = there(values);
      // What is no number has a place of its own.
      const names = own.every((at) => typeof values[at] === "number") ? [] : [...new Set(own.map((at) => values[at]))];
      panels.push({
        axis: { title: beside, ticks: names.map((name, at) => [at, String(name).slice(0, 10)]) }, height: 150, levels: [],
        traces: [trace(loaded, own, own.map((at) => (names.length ? names.indexOf(values[at]) : values[at])), {
          name: beside, color: "soft", width: 1, symbol: "square", size: 4, stepped: true,
          told: own.map((at) => [`${beside} ${values[at]}`]),
        })],
      });
    }
    const plot = { x: { range: ranged(time, days), ticks: [], time: true }, panels };
    return drawPlot(node, plot, (panel, _, index) => panel === 0 && reach(index));
  };

  // Several series on one time: as they are, or each against its own median of the first ten nights shown.
  const several = async (node, all, { relative, days, scale }) => {
    const drawPlot = await perfbisect.plots();
    const range = ranged(all.flatMap((loaded) => loaded.data.points.time).sort(), days);
    const traces = all.map((loaded, number) => {
      const { values } = loaded.series;
      const known = there(values).filter((at) => words.seconds(loaded.data.points.time[at]) >= range[0]);
      const early = known.slice(0, 10).map((at) => values[at]).sort((a, b) => a - b);
      const base = early[Math.floor((early.length - 1) / 2)] || 1;
      return trace(loaded, known, known.map((at) => (relative ? (values[at] / base - 1) * 100 : values[at])), {
        color: `s${number}`, symbol: SYMBOLS[number], line: DASHES[number],
        told: known.map((at) => [loaded.cell.name, ...told(loaded, at)]),
      });
    });
    const axis = relative ? { title: "change against its first ten nights", ticks: [], suffix: " %" } : titled(all[0].measure, scale);
    const zero = relative ? [{ value: 0, color: "line", dash: "solid", width: 1 }] : [];
    return drawPlot(node, {
      x: { range, ticks: [], time: true }, panels: [{ axis, height: 460, levels: zero, traces }],
    });
  };

  return { one, several, SYMBOLS };
})();
