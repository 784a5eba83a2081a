"use strict";
// What is wrong now, and every cell.
perfbisect.overview = (() => {
  const { words, draw, series, panels } = perfbisect;
  const { el, select, table } = perfbisect.dom;
  const FILTERS = [["family", "Family"], ["model", "Model"], ["load", "Concurrency"], ["machine", "Machine"]];
  const KEYS = [...FILTERS.map(([key]) => key), "q", "metric"];
  const MOST = 500;
  const LATE = 3;
  const SHOWN = 3;
  const NONE = "-";

  const natural = (a, b) => a.localeCompare(b, "en", { numeric: true });
  const values = (cells, key) => [...new Set(cells.map((cell) => cell[key]))].sort(natural);

  // Which cells the filters of the address leave.
  const chosen = (params) => {
    const cells = [...series.all().cells.values()];
    const words_ = (params.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
    return cells.filter((cell) =>
      FILTERS.every(([key]) => !params.get(key) || (cell[key] || NONE) === params.get(key)) &&
      words_.every((word) => `${cell.name} ${cell.model} ${cell.machine}`.toLowerCase().includes(word)));
  };

  // On a phone the filters are folded until they are asked for, and stay open while they are used.
  let unfolded = false;

  const folded = (params) => {
    const used = KEYS.filter((key) => params.get(key)).length;
    return el("details", { class: "fold", open: unfolded || !perfbisect.narrow.matches,
      ontoggle: (event) => { unfolded = event.target.open && perfbisect.narrow.matches; } },
    el("summary", { id: "fold" }, used ? `Filters (${used} set)` : "Filters"), filters(params));
  };

  const filters = (params) => {
    const cells = [...series.all().cells.values()];
    const metrics = [...new Set(cells.flatMap((cell) => cell.metrics.map((one) => one.name)))].sort(natural);
    const set = (key) => (value) => perfbisect.set({ [key]: value });
    return el("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      FILTERS.map(([key, label]) => select(`filter-${key}`, label,
        [["", "all"], ...values(cells, key).map((value) => [value || NONE, value || "not known"])], params.get(key) || "", set(key))),
      select("filter-metric", "Metric", [["", "of each cell"], ["*", "all"], ...metrics.map((name) => [name, name])],
        params.get("metric") || "", set("metric")),
      el("label", { class: "field", for: "filter-q" }, el("span", {}, "Cells with"),
        el("input", { id: "filter-q", type: "search", value: params.get("q") || "", autocomplete: "off", spellcheck: "false",
          oninput: (event) => perfbisect.set({ q: event.target.value }) })),
      KEYS.some((key) => params.get(key))
        ? el("button", { type: "button", onclick: () => perfbisect.set(Object.fromEntries(KEYS.map((key) => [key, ""]))) }, "Clear")
        : null);
  };

  const where = (event) => {
    const cells = [...new Set(event.alerts.map((alert) => alert.cell.name))];
    const more = event.alerts.length - 1;
    const over = event.alerts.filter((alert) => alert.kind === "over").length;
    return [
      el("a", { class: "go", href: perfbisect.address("alert", event.alerts[0].id) }, cells[0]),
      el("span", { class: "soft small block" }, event.alerts[0].metric,
        more ? `, and ${words.many(more, "more alert")} in ${words.many(cells.length, "cell")}` : "",
        over && over < event.alerts.length ? `; ${over} recovered` : ""),
    ];
  };

  // The series ends with the alert while other cells go on: nobody knows whether it is still so.
  const ended = ({ last, measure }) =>
    measure.time && last >= measure.time && words.day(moment(series.all().site.span[1])) > words.day(last);

  const row = (event, reach) => {
    const [lead] = event.alerts;
    const bisected = event.alerts.find((alert) => alert.measured);
    const first = event.alerts.find((alert) => alert.suspect);
    return el("tr", {},
      el("td", { class: "k" }, words.day(lead.first), lead.shape === "step" ? null
        : el("span", { class: "soft small block" }, `to ${words.day(lead.last)}`)),
      el("td", { class: "long" }, where(event)),
      el("td", { class: "k" }, panels.size(lead, reach)),
      el("td", { class: "n chance" }, words.chance(lead.p)),
      el("td", {}, panels.sort(lead),
        ended(lead) ? el("span", { class: "soft small block" }, `no result since ${words.day(lead.last)}`) : null),
      el("td", {}, series.curve(lead.cell, lead.measure)),
      el("td", { class: "long" }, bisected ? panels.measured(bisected.measured, SHOWN) : first
        ? [el("b", {}, words.probability(first.suspect[2])), " ", series.commit(first.suspect[0]), " ", el("bdi", {}, first.suspect[1])]
        : el("span", { class: "soft" }, "-")));
  };

  // The events with alerts of these cells.
  const eventsOf = (cells) => {
    const names = new Set(cells.map((cell) => cell.name));
    return series.all().events
      .map((event) => ({ ...event, alerts: event.alerts.filter((alert) => names.has(alert.cell.name)) }))
      .filter((event) => event.alerts.length);
  };

  const listed = (params) => params.get("list") || "wrong";

  const events = (params, cells, found) => {
    const list = listed(params);
    const own = found.filter((event) => event.kind === list);
    // What is silent needs no alert.
    const quiet = cells.filter((cell) => cell.silent && !cell.alerts.some((alert) => alert.kind === "silent"));
    const [, , meaning] = words.lists.find(([kind]) => kind === list) || words.lists[0];
    const reach = draw.reach(own.map((event) => [event.alerts[0], event.alerts[0].measure]));
    return el("section", { "aria-label": "Alerts" },
      el("nav", { class: "tabs", "aria-label": "Lists of alerts" }, words.lists.map(([kind, label]) => {
        const count = found.filter((event) => event.kind === kind).length + (kind === "silent" ? quiet.length : 0);
        return el("a", { href: perfbisect.changed({ list: kind === "wrong" ? "" : kind }), "aria-current": kind === list ? "true" : null },
          label, " ", el("span", { class: "count" }, count));
      })),
      el("p", { class: "soft small" }, meaning, own.length > 1
        ? " First what is largest for certain: the near end of the 95 % interval, in smallest effects worth telling."
        : ""),
      own.length
        ? table(["since", "where", "size", panels.n("by chance"), "what", "all nights", "commit"],
          own.map((event) => row(event, reach)), { class: "events" }) : null,
      list === "silent" && quiet.length ? el("ul", { class: "quiet" }, quiet.map((cell) => el("li", {},
        el("a", { class: "go", href: perfbisect.address("cell", cell.name) }, cell.name), " ", late(series.metric(cell, ""))))) : null,
      own.length || (list === "silent" && quiet.length) ? null
        : el("p", { class: "nothing" }, list === "wrong" ? "Nothing here is known to be wrong now." : "None."));
  };

  const cellRow = (cell, one, picked) => {
    const key = `${cell.name}|${one.name}`;
    const open = series.alertsOf(cell, one.name).filter((alert) => ["wrong", "better", "other", "silent"].includes(alert.kind));
    const level = one.level;
    return el("tr", {},
      el("td", {}, el("input", { type: "checkbox", "aria-label": `compare ${cell.name}, ${one.name}`, checked: picked.has(key),
        onchange: (event) => {
          if (event.target.checked) picked.add(key);
          else picked.delete(key);
          perfbisect.main.comparing(picked);
        } })),
      el("td", { class: "long" }, el("a", { class: "go", href: series.address(cell, one) }, cell.name),
        el("span", { class: "soft small block" }, [cell.family, cell.model, cell.load, cell.machine].filter(Boolean).join(" · "))),
      el("td", {}, one.name),
      el("td", { class: "n" }, words.amount(one.now, one.unit), el("span", { class: "soft small block" }, one.time ? words.day(one.time) : "")),
      el("td", { class: "n" }, level ? words.amount(level[0], one.unit) : "-",
        level ? el("span", { class: "soft small block" }, `${words.number(level[1])} to ${words.number(level[2])}`) : null),
      el("td", {}, series.curve(cell, one)),
      el("td", {}, open.map((alert) => el("a", { class: `mark ${alert.kind}`, href: perfbisect.address("alert", alert.id) },
        `${words.arrow(alert)} ${words.effect(one, alert.effect)} ${alert.kind === "other" ? alert.cause : words.side(alert)}`)),
        late(one), one.judged ? null : el("span", { class: "soft small block" }, "not judged")));
  };

  // The rows of these cells: a cell and a metric of it.
  const rowsOf = (params, found) => {
    const metric = params.get("metric") || "";
    const order = ["wrong", "better", "other"];
    const rank = (cell) => Math.min(order.length, ...cell.alerts.map((alert) => order.indexOf(alert.kind)).filter((at) => at >= 0));
    return [...found].sort((a, b) => rank(a) - rank(b) || natural(a.name, b.name)).flatMap((cell) => {
      const own = metric === "*" ? cell.metrics : metric ? cell.metrics.filter((one) => one.name === metric) : [series.metric(cell, "")];
      return own.map((one) => [cell, one]);
    });
  };

  const cells = (found, rows, shown) => {
    const picked = perfbisect.main.picked;
    return el("section", { "aria-labelledby": "cells" },
      el("h2", { id: "cells" }, `Cells (${found.length})`),
      el("p", {}, el("a", { class: "button", id: "compare-picked", hidden: picked.size < 1, href: perfbisect.main.comparison(picked) }, "Compare")),
      table(["", "cell", "metric", panels.n("newest"), panels.n("level, 95 %"), "all nights", "alerts"],
        shown.map(([cell, one]) => cellRow(cell, one, picked)), { class: "cells" }),
      shown.length < rows.length
        ? el("p", {}, el("a", { href: perfbisect.changed({ all: "1" }) }, `All ${rows.length} rows`)) : null);
  };

  const moment = (seconds) => new Date(seconds * 1000).toISOString();

  // A cell that the newest nights lack fails in silence: its numbers do not move.
  const late = (one) => {
    const { span } = series.all().site;
    return one.time && span[1] - words.seconds(one.time) > LATE * 24 * 3600
      ? el("span", { class: "soft small block" }, `no result since ${words.day(one.time)}`) : null;
  };

  const render = async (root, state) => {
    const { site } = series.all();
    const found = chosen(state.params);
    const moved = eventsOf(found);
    const rows = rowsOf(state.params, found);
    const shown = state.params.get("all") ? rows : rows.slice(0, MOST);
    const leads = moved.filter((event) => event.kind === listed(state.params)).map((event) => event.alerts[0].measure);
    await series.need([...leads, ...shown.map(([, one]) => one)]);
    const count = site.cells.reduce((sum, cell) => sum + cell.metrics.length, 0);
    root.append(
      el("h1", { tabindex: "-1" }, "What is wrong now"),
      el("p", { class: "soft" }, `${words.many(site.cells.length, "cell")}, ${words.many(count, "series", "series")}`,
        `; nights from ${words.day(moment(site.span[0]))} to ${words.day(moment(site.span[1]))}.`),
      folded(state.params),
      events(state.params, found, moved),
      cells(found, rows, shown),
      site.notes.length ? el("ul", { class: "small" }, site.notes.map((text) => el("li", {}, text))) : null,
      site.census.length ? el("section", {}, el("h2", {}, "What was judged"),
        table(["", panels.n("series")], site.census.map(([text, count]) =>
          el("tr", {}, el("td", {}, text), el("td", { class: "n" }, count))), { class: "narrow" })) : "");
    return "";
  };

  return { render, natural };
})();
