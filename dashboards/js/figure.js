"use strict";
// The large figures. Plotly reads a little HTML in texts: those of others are escaped for it.
perfbisect.figure = (() => {
  const { words } = perfbisect;
  const buttons = [["zoom2d", "pan2d", "resetScale2d", "toImage"]];
  const config = { responsive: true, displaylogo: false, modeBarButtons: buttons };
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross", "star", "hexagon"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "solid", "dash", "dot"];

  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // The theme's colours as the browser sees them.
  const colours = () => {
    const probe = document.createElement("span");
    document.body.append(probe);
    const read = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    const names = ["text", "soft", "paper", "raised", "grid", "line", "worse", "better", "other", "spread", "level"];
    const found = Object.fromEntries(names.map((name) => [name, read(name)]));
    found.series = SYMBOLS.map((_, at) => read(`s${at}`));
    probe.remove();
    return found;
  };

  const axis = (theme, more) => ({
    gridcolor: theme.grid, linecolor: theme.line, zerolinecolor: theme.line, zeroline: false, automargin: true, ...more,
  });

  const layout = (theme, more) => ({
    margin: { l: 64, r: 16, t: 40, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: theme.text, size: 13, family: "system-ui, sans-serif" },
    hoverlabel: { align: "left", bgcolor: theme.raised, bordercolor: theme.line, font: { color: theme.text } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.soft, activecolor: theme.text },
    hovermode: "closest",
    dragmode: "zoom",
    showlegend: false,
    ...more,
  });

  const hover = (loaded, at) => {
    const { points } = loaded.data;
    const lines = [`<b>${words.amount(loaded.series.values[at], loaded.measure.unit)}</b>`];
    lines.push(`${words.minute(points.time[at])}, build ${escaped(points.build[at])}`);
    if (points.commit[at]) lines.push(escaped(`commit ${words.short(points.commit[at])}`));
    if (points.main[at] === false) lines.push("not of the main branch");
    return lines.join("<br>");
  };

  const rect = (x0, x1, y0, y1, more) => ({ type: "rect", x0, x1, y0, y1, line: { width: 0 }, layer: "below", ...more });

  // Where a series may have moved: from the last point before the places to the last of them.
  const extent = (alert, times) => {
    const from = alert.places[0];
    const before = times.filter((time) => time < from);
    const start = before.length ? before[before.length - 1] : from;
    return [start, alert.shape === "step" ? alert.places[1] : alert.last];
  };

  const bands = (loaded, alerts, theme, chosen) => {
    const { time } = loaded.data.points;
    const shapes = [];
    const annotations = [];
    alerts.forEach((alert, at) => {
      const colour = alert.kind === "wrong" || alert.kind === "better" ? theme[words.side(alert)] : theme.other;
      const [start, end] = extent(alert, time);
      const strong = chosen === alert.id;
      shapes.push(rect(start, end, 0, 1, {
        yref: "paper", fillcolor: colour, opacity: strong ? 0.3 : 0.18,
      }));
      shapes.push({
        type: "line", x0: alert.first, x1: alert.first, y0: 0, y1: 1, yref: "paper", layer: "below",
        line: { color: colour, width: strong ? 3 : 1.5, dash: alert.shape === "step" ? "solid" : "dash" },
      });
      annotations.push({
        x: alert.first, y: 1, yref: "paper", yanchor: "bottom", xanchor: "center", showarrow: false, yshift: (at % 2) * 15,
        text: `${at + 1} ${words.arrow(alert)} ${words.effect(loaded.measure, alert.effect)}`,
        font: { color: colour, size: 12, weight: strong ? 700 : 400 },
      });
    });
    for (const boundary of loaded.series.discontinuities) {
      const x = time[boundary.at];
      shapes.push({
        type: "line", x0: x, x1: x, y0: 0, y1: boundary.cut ? 1 : 0.3, yref: "paper",
        line: { color: theme.soft, width: boundary.cut ? 2 : 1, dash: "dot" },
      });
      annotations.push({
        x, y: 0, yref: "paper", yanchor: "bottom", xanchor: "left", textangle: -90, showarrow: false,
        text: escaped(boundary.what.slice(0, 60)), font: { color: theme.soft, size: 11 },
      });
    }
    for (const small of loaded.series.small) {
      shapes.push({
        type: "line", x0: time[small.at], x1: time[small.at], y0: 0, y1: 0.06, yref: "paper",
        line: { color: theme.soft, width: 3 },
      });
    }
    return { shapes, annotations };
  };

  const levels = (loaded, theme) => loaded.series.levels.flatMap((level) => {
    const { time } = loaded.data.points;
    const [x0, x1] = [time[level.first], time[level.last]];
    const out = [];
    if (level.spread !== null) {
      const wide = 2 * level.spread;
      out.push(rect(x0, x1, level.value * (1 - wide), level.value * (1 + wide), { fillcolor: theme.spread, opacity: 0.16 }));
    }
    out.push(rect(x0, x1, level.low, level.high, { fillcolor: theme.level, opacity: 0.3 }));
    out.push({ type: "line", x0, x1, y0: level.value, y1: level.value, line: { color: theme.level, width: 2 } });
    return out;
  });

  const points = (loaded, theme) => {
    const { time, main } = loaded.data.points;
    const there = loaded.series.values.map((_, at) => at).filter((at) => loaded.series.values[at] !== null);
    return {
      type: "scatter", mode: "lines+markers", x: there.map((at) => time[at]),
      y: there.map((at) => loaded.series.values[at]), customdata: there,
      text: there.map((at) => hover(loaded, at)), hovertemplate: "%{text}<extra></extra>",
      line: { color: theme.line, width: 1 },
      marker: { color: theme.series[0], size: there.length > 200 ? 5 : 7,
        symbol: there.map((at) => (main[at] === false ? "x-thin-open" : main[at] === null ? "circle-open" : "circle")),
        line: { width: 1.5, color: theme.series[0] } },
    };
  };

  const ranged = (times, days) => {
    const last = times[times.length - 1];
    const room = 12 * 3600 * 1000;
    const end = new Date(Date.parse(last) + room).toISOString();
    const first = days ? Date.parse(last) - days * 24 * 3600 * 1000 : Date.parse(times[0]);
    return [new Date(Math.max(first, Date.parse(times[0])) - room).toISOString(), end];
  };

  // The values in view and those of their levels, with a little room: outside values do not flatten them.
  const heights = (values, scale) => {
    const known = values.filter((value) => value !== null);
    if (!known.length) return {};
    let [low, high] = [Math.min(...known), Math.max(...known)];
    if (scale === "log" && low > 0) {
      const room = Math.max((Math.log10(high) - Math.log10(low)) * 0.08, 0.02);
      return { type: "log", range: [Math.log10(low) - room, Math.log10(high) + room] };
    }
    if (scale === "zero") low = Math.min(0, low);
    const room = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
    return { range: [low === 0 ? 0 : low - room, high + room] };
  };

  // One series; "beside" names a covariate that is drawn below it, on the same time.
  const one = async (node, loaded, { alerts, scale, days, beside, chosen }) => {
    const Plotly = await perfbisect.plotly();
    const theme = colours();
    const { time } = loaded.data.points;
    const range = ranged(time, days);
    const seen = loaded.series.values.filter((_, at) => time[at] >= range[0]);
    const found = bands(loaded, alerts, theme, chosen);
    const data = [points(loaded, theme)];
    const more = {};
    if (beside) {
      const values = loaded.data.covariates[beside];
      const there = values.map((_, at) => at).filter((at) => values[at] !== null);
      data.push({
        type: "scatter", mode: "lines+markers", x: there.map((at) => time[at]), y: there.map((at) => values[at]), yaxis: "y2",
        customdata: there, text: there.map((at) => escaped(`${beside} ${values[at]}`)), hovertemplate: "%{text}<extra></extra>",
        line: { color: theme.soft, width: 1, shape: "hv" }, marker: { size: 4, symbol: "square", color: theme.soft },
      });
      more.yaxis2 = axis(theme, { domain: [0, 0.24], title: { text: escaped(beside) } });
    }
    await Plotly.react(node, data, layout(theme, {
      height: beside ? 520 : 400,
      shapes: [...levels(loaded, theme), ...found.shapes],
      annotations: found.annotations,
      xaxis: axis(theme, { type: "date", range, anchor: beside ? "y2" : "y" }),
      yaxis: axis(theme, {
        domain: [beside ? 0.32 : 0, 1],
        title: { text: escaped(`${loaded.measure.name}, ${loaded.measure.unit}`) },
        ...heights(seen, scale),
      }),
      ...more,
    }), config);
    return Plotly;
  };

  // Several series on one time: as they are, or each against its own median of the first ten nights shown.
  const several = async (node, all, { relative, days, scale }) => {
    const Plotly = await perfbisect.plotly();
    const theme = colours();
    const times = all.flatMap((loaded) => loaded.data.points.time).sort();
    const range = ranged(times, days);
    const drawn = all.map((loaded) => {
      const { time } = loaded.data.points;
      const there = loaded.series.values.map((_, at) => at).filter((at) => loaded.series.values[at] !== null && time[at] >= range[0]);
      const early = there.slice(0, 10).map((at) => loaded.series.values[at]).sort((a, b) => a - b);
      const base = relative ? early[Math.floor((early.length - 1) / 2)] || 1 : 1;
      return { loaded, there, y: there.map((at) => (relative ? (loaded.series.values[at] / base - 1) * 100 : loaded.series.values[at])) };
    });
    const data = drawn.map(({ loaded, there, y }, at) => ({
      type: "scatter", mode: "lines+markers", x: there.map((i) => loaded.data.points.time[i]), y,
      text: there.map((i) => `${escaped(loaded.cell.name)}<br>${hover(loaded, i)}`), hovertemplate: "%{text}<extra></extra>",
      line: { color: theme.series[at], width: 1.5, dash: DASHES[at] },
      marker: { color: theme.series[at], symbol: SYMBOLS[at], size: 6 },
    }));
    const { measure } = all[0];
    await Plotly.react(node, data, layout(theme, {
      height: 460,
      xaxis: axis(theme, { type: "date", range }),
      yaxis: axis(theme, relative
        ? { title: { text: "change against its first ten nights" }, ticksuffix: " %", zeroline: true }
        : { title: { text: escaped(`${measure.name}, ${measure.unit}`) }, ...heights(drawn.flatMap(({ y }) => y), scale) }),
    }), config);
    return Plotly;
  };

  return { one, several, escaped, SYMBOLS };
})();
