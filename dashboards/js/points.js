"use strict";
// A point of a figure in words: reached by pointer, by click and by the arrow keys.
perfbisect.points = (() => {
  const { words } = perfbisect;
  const { el, table, say } = perfbisect.dom;

  const shown = (value) => {
    if (typeof value === "number") return value.toLocaleString("en", { maximumSignificantDigits: 6 });
    return value === null || value === undefined ? "-" : String(value);
  };

  const panel = (loaded, at) => {
    const { points, covariates } = loaded.data;
    const { values } = loaded.series;
    let before = at - 1;
    while (before >= 0 && values[before] === null) before -= 1;
    const change = before >= 0 && values[before] ? values[at] / values[before] - 1 : null;
    const build = points.url[at] ? el("a", { href: points.url[at] }, points.build[at]) : points.build[at];
    const commit = points.commit[at] ? perfbisect.series.commit(points.commit[at]) : "not known";
    const main = { true: "of the main branch", false: "not of the main branch", null: "branch not known" }[points.main[at]];
    const names = Object.keys(covariates).filter((name) => covariates[name][at] !== null);
    const moved = (name) => before >= 0 && covariates[name][before] !== covariates[name][at];
    return el("div", { class: "reading" },
      el("p", {},
        el("b", {}, words.amount(values[at], loaded.measure.unit)),
        change === null ? "" : ` ${words.effect({ absolute: false }, change)} against the point before`,
        el("br"), words.minute(points.time[at]), ", build ", build, `, ${main}`,
        el("br"), "commit ", commit),
      names.length ? table(["covariate", "here", "at the point before"], names.map((name) =>
        el("tr", { class: moved(name) ? "moved" : null },
          el("td", {}, name, moved(name) ? " (other)" : ""),
          el("td", { class: "n" }, shown(covariates[name][at])),
          el("td", { class: "n" }, before < 0 ? "-" : shown(covariates[name][before]))))) : null);
  };

  // Left and right walk through the points, Home and End go to the first and the last. It begins at the moment
  // "first", or at the newest. What is returned chooses a point by its position.
  const follow = (figure, target, loaded, first) => {
    const { values } = loaded.series;
    const there = values.map((_, at) => at).filter((at) => values[at] !== null);
    const wanted = there.findIndex((at) => loaded.data.points.time[at] === first);
    let current = wanted < 0 ? there.length - 1 : wanted;
    const choose = (position, aloud) => {
      current = Math.max(0, Math.min(there.length - 1, position));
      const at = there[current];
      target.replaceChildren(panel(loaded, at));
      if (aloud) {
        say(`${words.minute(loaded.data.points.time[at])}: ${words.amount(values[at], loaded.measure.unit)}, build ${loaded.data.points.build[at]}`);
        figure.drawn.tell(0, 0, current);
      }
    };
    figure.setAttribute("tabindex", "0");
    figure.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const next = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: there.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      choose(next, true);
    });
    if (there.length) choose(current, false);
    return choose;
  };

  // All points as a table, newest first: for reading, searching and copying.
  const every = (loaded) => {
    const { points } = loaded.data;
    const rows = loaded.series.values.map((value, at) => el("tr", {},
      el("td", { class: "k" }, words.minute(points.time[at])),
      el("td", {}, points.build[at]),
      el("td", { class: "n" }, words.amount(value, loaded.measure.unit)),
      el("td", { class: "long" }, points.commit[at] ? perfbisect.series.commit(points.commit[at]) : "")));
    return table(["time", "build", el("th", { scope: "col", class: "n" }, loaded.measure.name), "commit"], rows.reverse());
  };

  return { follow, every };
})();
