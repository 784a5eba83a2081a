"use strict";
// Draws the plots of perfbisect/report/plots.py. Axes, grid, zoom and cursor are uPlot's; marks are drawn here, since
// uPlot has one symbol. All text is drawn on a canvas or set as textContent: no markup acts.
const drawPlot = (() => {
  const FONT = "12px system-ui, sans-serif";
  const NEAR = 24;

  // Corners on a circle; "inner": the share of the radius of corners between them.
  const corners = (count, inner = 0, turn = -Math.PI / 2) => {
    const all = inner ? 2 * count : count;
    return Array.from({ length: all }, (_, at) => {
      const angle = turn + (2 * Math.PI * at) / all;
      const radius = inner && at % 2 ? inner : 1;
      return [radius * Math.cos(angle), radius * Math.sin(angle)];
    });
  };
  const CROSS = [[[-0.8, -0.8], [0.8, 0.8]], [[-0.8, 0.8], [0.8, -0.8]]];
  // Polygons within a circle of radius 1, and strokes.
  const SHAPES = {
    circle: { polygon: corners(32) },
    square: { polygon: corners(4, 0, Math.PI / 4).map(([x, y]) => [1.25 * x, 1.25 * y]) },
    diamond: { polygon: corners(4).map(([x, y]) => [1.2 * x, 1.2 * y]) },
    triangle: { polygon: corners(3).map(([x, y]) => [1.25 * x, 1.25 * y]) },
    star: { polygon: corners(5, 0.45).map(([x, y]) => [1.3 * x, 1.3 * y]) },
    spark: { polygon: corners(4, 0.5).map(([x, y]) => [1.3 * x, 1.3 * y]) },
    hexagon: { polygon: corners(6).map(([x, y]) => [1.1 * x, 1.1 * y]) },
    plus: { strokes: [[[-1, 0], [1, 0]], [[0, -1], [0, 1]]] },
    cross: { strokes: CROSS },
    dash: { strokes: [[[-1, 0], [1, 0]]] },
    tick: { strokes: [[[0, -1], [0, 1]]] },
    stopped: { polygon: corners(32), strokes: CROSS },
  };
  const DASHES = { solid: [], dot: [2, 4], dash: [7, 5], dashdot: [7, 4, 2, 4], longdash: [13, 6] };

  const symbol = (ctx, name, x, y, radius) => {
    const isOpen = name.endsWith("-open");
    const { polygon = [], strokes = [] } = SHAPES[isOpen ? name.slice(0, -5) : name];
    ctx.beginPath();
    for (const line of [polygon, ...strokes]) {
      line.forEach(([dx, dy], at) => ctx[at ? "lineTo" : "moveTo"](x + dx * radius, y + dy * radius));
      if (line === polygon) ctx.closePath();
    }
    if (!isOpen && !strokes.length) ctx.fill();
    ctx.stroke();
  };

  // The page's colour of a name, as the browser sees it.
  const palette = () => {
    const known = new Map();
    return (name) => {
      if (!known.has(name)) {
        const probe = document.createElement("span");
        probe.style.color = `var(--c-${name}, var(--${name}))`;
        document.body.append(probe);
        known.set(name, getComputedStyle(probe).color);
        probe.remove();
      }
      return known.get(name);
    };
  };

  // The range of values that are in view at first, with room at both ends and for marks without a value.
  const range = (panel, [from, to]) => {
    const { axis, traces, levels } = panel;
    if (axis.range) return axis.range;
    const seen = traces.flatMap(({ x, y }) => y.filter((value, at) => value !== null && x[at] >= from && x[at] <= to));
    const values = [...seen, ...levels.map(({ value }) => value)];
    if (!values.length) return [0, 1];
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (axis.scale === "log" && low > 0) {
      const room = 10 ** Math.max(Math.log10(high / low) * 0.08, 0.02);
      return [low / room, high * room];
    }
    if (axis.scale === "zero") low = Math.min(0, low);
    const room = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
    const below = traces.some(({ y }) => y.includes(null)) ? 2 : 1;
    return [axis.scale === "zero" && low === 0 ? 0 : low - below * room, high + room];
  };

  // Places of a logarithmic axis that spans less than a power of ten.
  const evenly = (low, high) => {
    const raw = (high - low) / 6;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((of) => of * power >= raw);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, at) => (first + at) * step);
  };

  const shown = (value) => value.toLocaleString("en", { maximumSignificantDigits: 6 });

  const texts = ({ suffix = "" }) => (_, places) => places.map((value) => (value === null ? null : shown(value) + suffix));

  // Named places. Labels that would overlap in a narrow window are left out, every second, every third, ...
  const named = ({ ticks }) => {
    const tilted = ticks.length > 2;
    return {
      splits: (u, _axis, low, high) => {
        const seen = ticks.map(([place]) => place).filter((place) => place >= low && place <= high);
        const every = Math.max(1, Math.ceil((seen.length * (tilted ? 24 : 40) * uPlot.pxRatio) / Math.max(u.bbox.width, 1)));
        return seen.filter((_, at) => at % every === 0);
      },
      values: (u, places) => places.map((place) => ticks.find(([at]) => at === place)[1]),
      ...(tilted ? { rotate: 45, size: 92 } : { size: 46 }),
    };
  };

  // Days, in UTC; hours where places are closer. The year stands below the first and where it changes.
  const moments = (_u, places, _axis, _space, step) => {
    let year = "";
    return places.map((place) => {
      const moment = new Date(place * 1000).toISOString();
      const before = year;
      year = moment.slice(0, 4);
      return `${moment.slice(5, 10)}${step < 86400 ? ` ${moment.slice(11, 16)}` : ""}${year === before ? "" : `\n${year}`}`;
    });
  };

  const xAxis = (x, line, isLast) => ({
    ...line, scale: "x", size: x.time ? 46 : 34,
    ...(x.ticks.length ? named(x) : x.time ? { values: moments, space: 70 } : { values: texts(x) }),
    ...(isLast ? (x.title ? { label: x.title, labelSize: 20, labelFont: FONT } : {})
      : { size: 8, values: (_, places) => places.map(() => "") }),
  });

  const yAxis = (axis, line) => ({
    ...line, scale: "y", size: 64, label: axis.title || " ", labelSize: 20, labelFont: FONT,
    values: axis.ticks.length ? () => axis.ticks.map(([, text]) => text) : texts(axis),
    ...(axis.ticks.length ? { splits: () => axis.ticks.map(([place]) => place), filter: (_, places) => places } : {}),
    ...(axis.scale === "log" ? {
      splits: (_u, _i, low, high, ...more) => (high / low < 20 ? evenly(low, high)
        : [...Array(Math.ceil(Math.log10(high / low)) + 1)].flatMap((_, at) =>
          [1, 2, 5].map((of) => of * 10 ** (Math.floor(Math.log10(low)) + at))).filter((v) => v >= low && v <= high)),
      filter: (_, places) => places,
    } : {}),
  });

  // What is drawn of a panel, into uPlot's canvas; its lengths are pixels of the device.
  const paint = (u, panel, colour, hidden) => {
    const { ctx, bbox } = u;
    const ratio = uPlot.pxRatio;
    const [right, bottom] = [bbox.left + bbox.width, bbox.top + bbox.height];
    const x = (value) => u.valToPos(value, "x", true);
    const y = (value) => (value === null ? bottom - 10 * ratio : u.valToPos(value, "y", true));
    const stroke = (color, width, dash = "solid") => {
      ctx.strokeStyle = ctx.fillStyle = colour(color);
      ctx.lineWidth = width * ratio;
      ctx.setLineDash(DASHES[dash].map((length) => length * ratio));
    };
    const line = (x0, y0, x1, y1) => {
      ctx.beginPath();
      ctx.moveTo(x0, y0);
      ctx.lineTo(x1, y1);
      ctx.stroke();
    };
    const text = (said, at, top, { align = "left", turn = 0, size = 12, bold = false } = {}) => {
      ctx.save();
      ctx.translate(at, top);
      ctx.rotate(turn);
      ctx.font = `${bold ? "bold " : ""}${size * ratio}px system-ui, sans-serif`;
      ctx.textAlign = align;
      ctx.textBaseline = "bottom";
      ctx.fillText(said, 0, 0);
      ctx.restore();
    };
    const traces = panel.traces.filter((trace) => !hidden.has(trace.name));
    // Twice: uPlot remembers what it set last, and what is clipped ends before the marks.
    ctx.save();
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const { x0, x1, y0, y1, color, alpha } of panel.boxes || []) {
      ctx.globalAlpha = alpha;
      ctx.fillStyle = colour(color);
      const [top, end] = y1 === undefined ? [bbox.top, bottom] : [y(y1), y(y0)];
      ctx.fillRect(x(x0), top, x(x1) - x(x0), end - top);
    }
    ctx.globalAlpha = 1;
    for (const { value, color, span, dash, width = 1.5, label = "" } of panel.levels) {
      stroke(color, width, dash);
      const [from, to] = span ? span.map(x) : [bbox.left, right];
      line(from, y(value), to, y(value));
      if (label) text(label, right - 4 * ratio, y(value) - 2 * ratio, { align: "right" });
    }
    for (const { at, color, width, dash = "solid", share = 1, below = "" } of panel.rules || []) {
      stroke(color, width, dash);
      line(x(at), bottom, x(at), bottom - share * bbox.height);
      if (below) text(below, x(at) - 2 * ratio, bottom - 4 * ratio, { turn: -Math.PI / 2, size: 11 });
    }
    for (const trace of traces) {
      const places = trace.x.map((value, at) => [x(value), y(trace.y[at])]);
      stroke(trace.color, 1.5, trace.line || "solid");
      if (trace.symbol === "bar") {
        const half = Math.max(1, 0.42 * Math.abs(x(1) - x(0)));
        for (const [at, top] of places) ctx.fillRect(at - half, top, 2 * half, y(0) - top);
      } else if (trace.line) {
        ctx.lineWidth = (trace.width || 1.5) * ratio;
        ctx.beginPath();
        places.forEach(([at, top], index) => {
          if (index && trace.stepped) ctx.lineTo(at, places[index - 1][1]);
          ctx[index ? "lineTo" : "moveTo"](at, top);
        });
        ctx.stroke();
      }
    }
    ctx.restore();
    let count = 0;
    for (const trace of traces) {
      if (trace.symbol === "bar") continue;
      stroke(trace.mark || trace.color, 1.7);
      trace.x.forEach((value, index) => {
        const [at, top] = [x(value), y(trace.y[index])];
        if (at < bbox.left - ratio || at > right + ratio || top < bbox.top - ratio || top > bottom + ratio) return;
        const name = Array.isArray(trace.symbol) ? trace.symbol[index] : trace.symbol;
        symbol(ctx, name, at, top, (trace.size / 2) * ratio);
        count += 1;
      });
    }
    for (const { at, color, above, row = 0, strong = false } of panel.rules || []) {
      const place = x(at);
      if (!above || place < bbox.left || place > right) continue;
      stroke(color, 1);
      text(above, place, bbox.top - (3 + 15 * row) * ratio, { align: "center", bold: strong });
    }
    ctx.restore();
    return count;
  };

  const button = (trace, colour, toggle) => {
    const made = document.createElement("button");
    const mark = document.createElement("canvas");
    const ratio = uPlot.pxRatio;
    mark.width = mark.height = 16 * ratio;
    const ctx = mark.getContext("2d");
    ctx.strokeStyle = ctx.fillStyle = colour(trace.color);
    ctx.lineWidth = 1.7 * ratio;
    const name = Array.isArray(trace.symbol) ? trace.symbol[trace.symbol.length - 1] : trace.symbol;
    symbol(ctx, name, 8 * ratio, 8 * ratio, 5 * ratio);
    made.type = "button";
    made.setAttribute("aria-pressed", "true");
    made.append(mark, trace.name);
    made.addEventListener("click", () => made.setAttribute("aria-pressed", String(toggle(trace.name))));
    return made;
  };

  // Draws a plot in place of what "node" has; "reach" hears of panel, trace and index of a point that is pointed at.
  const draw = (node, plot, reach = () => {}) => {
    if (node.drawn) node.drawn.remove();
    const colour = palette();
    const hidden = new Set();
    const { x } = plot;
    const line = {
      stroke: () => colour("ink"), font: FONT, grid: { stroke: () => colour("grid"), width: 1 },
      ticks: { stroke: () => colour("grid"), width: 1, size: 5 }, border: { show: true, stroke: () => colour("quiet"), width: 1 },
    };
    const made = [];
    const counts = [];
    const tip = document.createElement("div");
    const ring = document.createElement("div");
    tip.className = "told";
    ring.className = "ring";

    const hide = () => {
      tip.hidden = ring.hidden = true;
    };

    const tell = (panel, trace, index) => {
      const u = made[panel];
      const { x: places, y: values, told } = plot.panels[panel].traces[trace];
      const outer = u.over.getBoundingClientRect();
      const own = node.getBoundingClientRect();
      const left = outer.left - own.left + u.valToPos(places[index], "x");
      const height = values[index] === null ? u.over.clientHeight - 10 : u.valToPos(values[index], "y");
      const top = outer.top - own.top + height;
      tip.replaceChildren(...told[index].map((text) => {
        const row = document.createElement("div");
        row.textContent = text;
        return row;
      }));
      tip.hidden = ring.hidden = false;
      Object.assign(ring.style, { left: `${left}px`, top: `${top}px` });
      const beside = left + 14 + tip.offsetWidth <= own.width ? left + 14 : Math.max(0, left - 14 - tip.offsetWidth);
      Object.assign(tip.style, { left: `${beside}px`, top: `${Math.max(0, top - tip.offsetHeight / 2)}px` });
    };

    // The nearest point to the pointer; a bar is pointed at anywhere above or below it.
    const pointed = (panel) => (event) => {
      const u = made[panel];
      const box = u.over.getBoundingClientRect();
      const [left, top] = [event.clientX - box.left, event.clientY - box.top];
      let best = null;
      let least = NEAR;
      plot.panels[panel].traces.forEach((trace, number) => {
        if (!trace.told.length || hidden.has(trace.name)) return;
        trace.x.forEach((value, index) => {
          const across = Math.abs(u.valToPos(value, "x") - left);
          if (across > least) return;
          const height = trace.y[index] === null ? box.height - 10 : u.valToPos(trace.y[index], "y");
          const distance = trace.symbol === "bar" ? across : Math.hypot(across, height - top);
          if (distance < least) [best, least] = [[number, index], distance];
        });
      });
      if (!best) return hide();
      tell(panel, ...best);
      return reach(panel, ...best);
    };

    const zoomed = (u, key) => {
      hide();
      if (key !== "x") return;
      const { min, max } = u.scales.x;
      for (const other of made) {
        if (other !== u && (other.scales.x.min !== min || other.scales.x.max !== max)) other.setScale("x", { min, max });
      }
    };

    node.replaceChildren();
    plot.panels.forEach((panel, at) => {
      const home = range(panel, x.range);
      const isLast = at === plot.panels.length - 1;
      const u = new uPlot({
        width: node.clientWidth,
        height: panel.height,
        padding: [(panel.rules || []).some(({ above }) => above) ? 36 : 10, 14, 0, 0],
        legend: { show: false },
        cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: true, uni: 30 } },
        tzDate: (moment) => uPlot.tzDate(new Date(moment * 1000), "Etc/UTC"),
        scales: {
          x: { time: Boolean(x.time), range: (_, low, high) => [low, high] },
          y: { distr: panel.axis.scale === "log" && home[0] > 0 ? 3 : 1, range: () => home },
        },
        axes: [xAxis(x, line, isLast), yAxis(panel.axis, line)],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: {
          draw: [(self) => {
            counts[at] = paint(self, panel, colour, hidden);
          }],
          setScale: [zoomed],
        },
      }, [x.range, [null, null]], node);
      u.over.addEventListener("mousemove", pointed(at));
      u.over.addEventListener("mouseleave", hide);
      made.push(u);
    });
    node.append(ring, tip);
    hide();

    const legend = document.createElement("div");
    const toggle = (name) => {
      if (!hidden.delete(name)) hidden.add(name);
      for (const u of made) u.redraw();
      return !hidden.has(name);
    };
    const listed = plot.panels.flatMap(({ traces }) => traces).filter((trace) => trace.legend);
    if (listed.length > 1) {
      legend.className = "legend-marks";
      legend.append(...listed.map((trace) => button(trace, colour, toggle)));
      node.before(legend);
    }

    const resized = new ResizeObserver(() => {
      if (node.clientWidth) for (const u of made) u.setSize({ width: node.clientWidth, height: u.height });
    });
    resized.observe(node);
    node.drawn = {
      plot,
      count: () => counts.reduce((sum, count) => sum + count, 0),
      tell,
      told: () => (tip.hidden ? "" : tip.textContent),
      remove: () => {
        resized.disconnect();
        for (const u of made) u.destroy();
        legend.remove();
        tip.remove();
        ring.remove();
        delete node.drawn;
      },
    };
    return node.drawn;
  };

  return draw;
})();
