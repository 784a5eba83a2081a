"use strict";
// Several cells or metrics on one time.
perfbisect.compare = (() => {
  const { words, series, panels, figure } = perfbisect;
  const { el, svg, select, table } = perfbisect.dom;
  const MOST = 8;

  // "CELL|METRIC", as often as there are series; what there is not is left out.
  const chosen = (params) => {
    const { cells } = series.all();
    const wanted = [...new Set(params.getAll("s"))].map((key) => {
      const at = key.lastIndexOf("|");
      const cell = cells.get(key.slice(0, at));
      const one = cell && cell.metrics.find((metric) => metric.name === key.slice(at + 1));
      return one ? { key, cell, one } : null;
    });
    return wanted.filter(Boolean);
  };

  const go = (keys, params) => {
    const kept = [...params].filter(([key]) => !["s", "cell", "metric"].includes(key));
    location.hash = perfbisect.address("compare", "", [...keys.map((key) => ["s", key]), ...kept]);
  };

  const mark = (at) => svg("svg", { class: `symbol s${at}`, viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" },
    {
      circle: () => svg("circle", { cx: 7, cy: 7, r: 5 }),
      square: () => svg("rect", { x: 2.5, y: 2.5, width: 9, height: 9 }),
      diamond: () => svg("path", { d: "M7 1L13 7L7 13L1 7Z" }),
      triangle: () => svg("path", { d: "M7 1.5L13 12.5H1Z" }),
      cross: () => svg("path", { d: "M2 4L4 2L7 5L10 2L12 4L9 7L12 10L10 12L7 9L4 12L2 10L5 7Z" }),
      plus: () => svg("path", { d: "M5 1H9V5H13V9H9V13H5V9H1V5H5Z" }),
      star: () => svg("path", { d: "M7 0.5L8.7 5H13.5L9.7 8L11.2 12.8L7 10L2.8 12.8L4.3 8L0.5 5H5.3Z" }),
      hexagon: () => svg("path", { d: "M7 1L12.5 4V10L7 13L1.5 10V4Z" }),
    }[figure.SYMBOLS[at]]());

  const adding = (params, own) => {
    const cells = [...series.all().cells.values()].sort((a, b) => perfbisect.overview.natural(a.name, b.name));
    const cell = series.all().cells.get(params.get("cell")) || (own.length ? own[own.length - 1].cell : cells[0]);
    if (!cell) return null;
    const metric = series.metric(cell, params.get("metric") || (own.length ? own[own.length - 1].one.name : ""));
    const key = `${cell.name}|${metric.name}`;
    const there = own.some((one) => one.key === key);
    return el("form", { class: "filters", onsubmit: (event) => {
      event.preventDefault();
      go([...own.map((one) => one.key), key], params);
    } },
    select("add-cell", "Cell", cells.map((one) => [one.name, one.name]), cell.name, (value) => perfbisect.set({ cell: value })),
    select("add-metric", "Metric", cell.metrics.map((one) => [one.name, one.name]), metric.name,
      (value) => perfbisect.set({ cell: cell.name, metric: value })),
    el("button", { id: "add", disabled: there || own.length >= MOST },
      own.length >= MOST ? `No more than ${MOST}` : there ? "There already" : "Add"));
  };

  const render = async (root, state, shown) => {
    const own = chosen(state.params).slice(0, MOST);
    const units = new Set(own.map(({ one }) => one.unit));
    const relative = state.params.get("as") !== "value" || units.size > 1;
    const node = el("div", { class: "figure", role: "img", "aria-label": "The chosen series on one time" });
    root.append(
      el("h1", { tabindex: "-1" }, "Compare"),
      adding(state.params, own) || "");
    if (!own.length) {
      root.append(el("p", { class: "nothing" }, "Choose a cell and a metric here, or tick rows of the overview."));
      return "Compare";
    }
    const all = await Promise.all(own.map(({ cell, one }) => series.load(cell, one.name)));
    await series.need(own.map(({ one }) => one));
    root.append(
      el("div", { class: "filters" },
        select("compare-as", "As", [["", "change against its first ten nights"], ["value", units.size > 1 ? "value (units differ)" : "value"]],
          relative ? "" : "value", (value) => perfbisect.set({ as: value })),
        select("compare-scale", "Scale", [["", "values in view"], ["zero", "from zero"], ["log", "logarithmic"]],
          state.params.get("scale") || "", (value) => perfbisect.set({ scale: value })),
        select("compare-days", "Nights", [["", "all"], ["30", "last 30 days"], ["90", "last 90 days"], ["180", "last 180 days"]],
          state.params.get("days") || "", (value) => perfbisect.set({ days: value }))),
      node,
      table(["", "cell", "metric", panels.n("newest"), panels.n("level"), "all nights", "alerts", ""],
        own.map(({ key, cell, one }, at) => el("tr", {},
          el("td", {}, mark(at)),
          el("td", { class: "long" }, el("a", { class: "go", href: series.address(cell, one) }, cell.name)),
          el("td", {}, one.name),
          el("td", { class: "n" }, words.amount(one.now, one.unit)),
          el("td", { class: "n" }, one.level ? words.amount(one.level[0], one.unit) : "-"),
          el("td", {}, series.curve(cell, one)),
          el("td", {}, series.alertsOf(cell, one.name).map((alert) => el("a",
            { class: `mark ${alert.kind}`, href: perfbisect.address("alert", alert.id) },
            `${words.arrow(alert)} ${words.effect(one, alert.effect)} ${words.day(alert.first)}`))),
          el("td", {}, el("button", { type: "button", "aria-label": `Remove ${cell.name}, ${one.name}`,
            onclick: () => go(own.filter((other) => other.key !== key).map((other) => other.key), state.params) }, "Remove"))))));
    shown();
    await figure.several(node, all, { relative, days: Number(state.params.get("days")) || 0, scale: state.params.get("scale") || "" });
    return "Compare";
  };

  return { render };
})();
