"use strict";
// What belongs together: a cell in short and whole, a metric of it, the alerts of both.
perfbisect.series = (() => {
  const { words } = perfbisect;
  let index = null;

  // Everything by its name, made once: cells, metrics of each, alerts, events.
  const all = () => {
    if (index) return index;
    const site = perfbisect.site();
    const cells = new Map(site.cells.map((cell) => [cell.name, {
      ...cell, metrics: cell.metrics.map((measure) => ({ ...site.measures[measure], measure })), alerts: [],
    }]));
    const alerts = new Map();
    const events = site.events.map((event) => {
      const own = { ...event, alerts: [] };
      for (const alert of event.alerts) {
        const cell = cells.get(site.cells[alert.cell].name);
        const known = { ...alert, event: own, cell, measure: cell.metrics.find((one) => one.name === alert.metric) };
        alerts.set(alert.id, known);
        cell.alerts.push(known);
        own.alerts.push(known);
      }
      return own;
    });
    for (const cell of cells.values()) cell.alerts.sort((a, b) => (a.first < b.first ? -1 : a.first > b.first ? 1 : 0));
    index = { site, cells, alerts, events };
    known(site.series);
    return index;
  };

  // Series in short, of a file, at their metrics.
  const known = (rows) => {
    const { site, cells } = index;
    for (const { cell, ...row } of rows) {
      const { metrics } = cells.get(site.cells[cell].name);
      Object.assign(metrics.find((one) => one.measure === row.measure), row);
    }
  };

  // Reads what is shown of these metrics of cells where the first page does not have it.
  const need = async (ones) => {
    const files = new Set(ones.filter((one) => one.curve === undefined).map((one) => one.file));
    await Promise.all([...files].map(async (file) => known(perfbisect.unpacked(await perfbisect.load(file)).series)));
  };

  const metric = (cell, name) =>
    cell.metrics.find((one) => one.name === name) || cell.metrics.find((one) => one.name === cell.headline);

  // The page of a cell that shows a metric of it.
  const address = (cell, one) => perfbisect.address("cell", cell.name, one.name === cell.headline ? "" : { metric: one.name });

  // A cell whole; "series" is that of the metric.
  const load = async (cell, name) => {
    const data = await perfbisect.load(cell.file);
    const measure = metric(cell, name);
    return { cell, data, measure, series: data.series.find((one) => one.metric === measure.name) };
  };

  const alertsOf = (cell, name) => cell.alerts.filter((alert) => alert.metric === name);

  const marks = (cell, name) => alertsOf(cell, name).map((alert) => [
    words.seconds(alert.places[0]),
    words.seconds(alert.shape === "step" ? alert.places[1] : alert.last),
    alert.kind,
  ]);

  const curve = (cell, one) => {
    const found = alertsOf(cell, one.name);
    const label = `${one.name}: ${words.many(one.count, "point")}, ${found.length ? words.many(found.length, "alert") : "no alert"}`;
    return perfbisect.draw.curve(one.curve, all().site.span, marks(cell, one.name), label);
  };

  // The alerts of an event whole, and the ranking of suspects of each.
  const details = async (event) => {
    const data = await perfbisect.load(event.file);
    return new Map(data.alerts.map((alert) => [
      alert.id, { ...alert, suspects: alert.ranking === null ? null : data.rankings[alert.ranking] },
    ]));
  };

  const commit = (sha) => {
    const { commits } = all().site;
    const text = perfbisect.dom.el("code", {}, words.short(sha));
    return commits && sha ? perfbisect.dom.el("a", { href: commits.replace("{sha}", encodeURIComponent(sha)) }, text) : text;
  };

  return { all, need, metric, address, load, alertsOf, marks, curve, details, commit };
})();
