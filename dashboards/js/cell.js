"use strict";
// A cell: one metric of it over all nights, what was found in it, the suspects, the bisections.
perfbisect.cell = (() => {
  const { words, series, panels, figure, points } = perfbisect;
  const { el, select, table } = perfbisect.dom;

  const LEGEND = [
    ["●", "a point of the main branch"], ["○", "branch not known"], ["×", "not of the main branch"],
    ["─", "level, with its 95 % interval; the pale band holds 95 % of its nights"],
    ["▮", "where a change may have begun (95 %); the line: where it most probably did"],
    ["┊", "another workload or instrument from here on: nothing is compared across it; a short one is a hint"],
    ["▂", "seen, not alarmed"],
  ];

  const options = (params, loaded) => el("div", { class: "filters" },
    select("option-scale", "Scale", [["", "values in view"], ["zero", "from zero"], ["log", "logarithmic"]],
      params.get("scale") || "", (value) => perfbisect.set({ scale: value })),
    select("option-days", "Nights", [["", "all"], ["30", "last 30 days"], ["90", "last 90 days"], ["180", "last 180 days"]],
      params.get("days") || "", (value) => perfbisect.set({ days: value })),
    loaded && Object.keys(loaded.data.covariates).length
      ? select("option-beside", "Beside it", [["", "nothing"], ...Object.keys(loaded.data.covariates)
        .filter((name) => loaded.data.covariates[name].some((value) => value !== null)).map((name) => [name, name])],
      params.get("beside") || "", (value) => perfbisect.set({ beside: value })) : null);

  // The figure of one series with all that belongs to it; drawn once it is in the page.
  const block = (loaded, params, alert) => {
    const node = el("div", { class: "figure", role: "img", "aria-label":
      `${loaded.measure.display} of ${loaded.cell.name}; arrow keys go from point to point` });
    const panel = el("div", {});
    const days = Number(params.get("days")) || 0;
    const beside = params.get("beside") in loaded.data.covariates ? params.get("beside") : "";
    const draw = async () => {
      const choose = points.follow(node, panel, loaded, alert ? alert.first : "");
      await figure.one(node, loaded, {
        alerts: series.alertsOf(loaded.cell, loaded.measure.name), scale: params.get("scale") || "", days, beside,
        chosen: alert ? alert.id : "", reach: (position) => choose(position, false),
      });
    };
    const whole = el("details", {}, el("summary", {}, "Every point as a table"));
    whole.addEventListener("toggle", () => {
      if (whole.open && whole.children.length === 1) whole.append(points.every(loaded));
    });
    const nodes = [
      options(params, loaded), node,
      el("ul", { class: "legend" }, LEGEND.map(([mark, text]) => el("li", {}, el("span", { "aria-hidden": "true" }, mark), ` ${text}`))),
      loaded.series.note ? el("p", { class: "soft" }, loaded.series.judged ? "" : "Not judged: ", loaded.series.note) : null,
      panel, whole,
    ];
    return { nodes, draw };
  };

  const small = (loaded) => (loaded.series.small.length
    ? el("section", {}, el("h2", {}, "Seen, and not alarmed"), table(["since", panels.n("effect"), panels.n("95 %"), "why"],
      loaded.series.small.map((one) => el("tr", {},
        el("td", { class: "k" }, words.day(loaded.data.points.time[one.at])),
        el("td", { class: "n" }, words.effect(loaded.measure, one.effect)),
        el("td", { class: "n" }, words.between(loaded.measure, one.interval)),
        el("td", { class: "long" }, one.why))), { class: "narrow" }))
    : null);

  // Medians, single numbers and whatever moved come first; means and tails of the rest are a click away.
  const tabs = (cell, measure, params) => {
    const tab = (one) => {
      const count = series.alertsOf(cell, one.name).length;
      const kept = new URLSearchParams(params);
      kept.delete("metric");
      if (one.name !== cell.headline) kept.set("metric", one.name);
      return el("a", { href: perfbisect.address("cell", cell.name, kept), "aria-current": one === measure ? "true" : null, title: one.display },
        one.name, count ? [" ", el("span", { class: "count" }, count)] : null);
    };
    const early = (one) => one === measure || !one.name.includes(":") || series.alertsOf(cell, one.name).length;
    const late = cell.metrics.filter((one) => !early(one));
    return el("nav", { class: "tabs", "aria-label": "Metrics" }, cell.metrics.filter(early).map(tab),
      late.length ? el("details", { class: "more" }, el("summary", {}, `${late.length} more`), late.map(tab)) : null);
  };

  const render = async (root, state, shown) => {
    const cell = series.all().cells.get(state.name);
    if (!cell) throw new Error(`no cell is called ${state.name}`);
    const loaded = await series.load(cell, state.params.get("metric"));
    const found = series.alertsOf(cell, loaded.measure.name);
    const wholes = await Promise.all(found.map(async (alert) => (await series.details(alert.event)).get(alert.id)));
    const drawn = block(loaded, state.params, null);
    const done = series.all().site.bisections.filter((one) => one.cell === cell.name);
    root.append(
      el("h1", { tabindex: "-1" }, cell.name),
      el("p", { class: "soft" }, [cell.family, cell.model, cell.load, cell.machine].filter(Boolean).join(" · ")),
      tabs(cell, loaded.measure, state.params),
      el("p", {}, `${loaded.measure.display}, ${loaded.measure.unit}, ${loaded.measure.direction} is better. `,
        el("a", { href: perfbisect.address("compare", "", [["s", `${cell.name}|${loaded.measure.name}`]]) }, "Compare with others")),
      ...drawn.nodes.filter(Boolean),
      ...found.map((alert, at) => panels.alert(alert, wholes[at], at + 1)),
      found.length ? "" : el("p", { class: "nothing" }, "No alert in this series."),
      small(loaded) || "",
      done.length ? el("section", {}, el("h2", {}, "Bisections of this cell"), panels.bisections(done)) : "",
      loaded.data.rows.length ? el("section", {}, el("h2", {}, "What is measured"), table(["", ""],
        loaded.data.rows.map(([label, value]) => el("tr", {},
          el("td", { class: "k soft" }, label), el("td", { class: "long" }, el("code", {}, value)))))) : "");
    shown();
    await drawn.draw();
    return cell.name;
  };

  // The metric before or after the one that is shown.
  const turn = (by) => {
    const state = perfbisect.now();
    const cell = state.view === "cell" && series.all().cells.get(state.name);
    if (!cell) return;
    const at = cell.metrics.indexOf(series.metric(cell, state.params.get("metric")));
    const next = cell.metrics[(at + by + cell.metrics.length) % cell.metrics.length];
    perfbisect.set({ metric: next.name === cell.headline ? "" : next.name });
  };

  return { render, block, turn };
})();
