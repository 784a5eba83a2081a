"use strict";
// An alert with all others of its cause.
perfbisect.alert = (() => {
  const { words, draw, series, panels } = perfbisect;
  const { el, table } = perfbisect.dom;

  const others = (event, own) => {
    const reach = draw.reach(event.alerts.map((alert) => [alert, alert.measure]));
    const rows = event.alerts.map((alert) => el("tr", { class: alert.id === own.id ? "this" : null },
      el("td", { class: "long" }, el("a", { class: "go", href: perfbisect.address("alert", alert.id) }, alert.cell.name)),
      el("td", {}, alert.metric),
      el("td", { class: "k" }, words.day(alert.first)),
      el("td", { class: "k" }, panels.size(alert, reach)),
      el("td", {}, panels.facts(alert)),
      el("td", {}, series.curve(alert.cell, alert.measure))));
    return el("section", {},
      el("h2", {}, `Of the same cause (${event.alerts.length})`),
      el("p", {}, el("a", { class: "button", href: perfbisect.address("compare", "",
        event.alerts.slice(0, 8).map((alert) => ["s", `${alert.cell.name}|${alert.metric}`])) }, "Compare the first of them")),
      table(["cell", "metric", "since", "size", "what", "all nights"], rows, { class: "events" }));
  };

  const render = async (root, state, shown) => {
    const alert = series.all().alerts.get(state.name);
    if (!alert) throw new Error(`no alert is called ${state.name}: it may be of an older site`);
    const [loaded, wholes] = await Promise.all([series.load(alert.cell, alert.metric), series.details(alert.event),
      series.need(alert.event.alerts.map((one) => one.measure))]);
    const drawn = perfbisect.cell.block(loaded, state.params, alert);
    const number = series.alertsOf(alert.cell, alert.metric).indexOf(alert) + 1;
    root.append(
      el("h1", { tabindex: "-1" }, `${alert.measure.display}: ${words.effect(alert.measure, alert.effect)}`),
      el("p", {}, el("a", { href: series.address(alert.cell, alert.measure) }, alert.cell.name),
        el("span", { class: "soft" }, ` · ${[alert.cell.model, alert.cell.load, alert.cell.machine].filter(Boolean).join(" · ")}`)),
      ...drawn.nodes.filter(Boolean),
      panels.alert(alert, wholes.get(alert.id), number),
      alert.event.alerts.length > 1 ? others(alert.event, alert) : "");
    shown();
    await drawn.draw();
    return `${words.effect(alert.measure, alert.effect)}, ${alert.cell.name}`;
  };

  return { render };
})();
