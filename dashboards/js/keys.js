"use strict";
// What the keys do; all of it can be reached with Tab and Enter too.
perfbisect.keys = (() => {
  const { el, table } = perfbisect.dom;
  const dialog = () => document.getElementById("help");

  const row = (by) => {
    const links = [...document.querySelectorAll("#view a.go")];
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, at + by));
    links[next].focus();
    links[next].scrollIntoView({ block: "nearest" });
  };

  const ACTIONS = [
    ["o", "the overview", () => { location.hash = "#/"; }],
    ["c", "compare", () => { location.hash = perfbisect.main.comparison(perfbisect.main.picked); }],
    ["b", "the bisections", () => { location.hash = "#/bisections"; }],
    ["/", "to the search", () => {
      const field = document.getElementById("filter-q");
      if (!field) return;
      field.closest("details").open = true;
      field.focus();
    }],
    ["j", "the next row", () => row(1)],
    ["k", "the row before", () => row(-1)],
    ["[", "the metric before, on a cell's page", () => perfbisect.cell.turn(-1)],
    ["]", "the next metric, on a cell's page", () => perfbisect.cell.turn(1)],
    ["f", "to the figure", () => {
      const figure = document.querySelector(".figure");
      if (figure) figure.focus();
    }],
    ["t", "colours: system, light, dark", () => perfbisect.main.theme()],
    ["?", "this list", () => help()],
  ];

  const help = () => {
    const more = [["Enter", "opens the row"], ["← → Home End", "in a figure: from point to point"], ["Esc", "closes this"]];
    dialog().replaceChildren(
      el("h2", {}, "Keys"),
      table(["key", "does"], [...ACTIONS, ...more].map(([key, text]) => el("tr", {}, el("td", {}, el("kbd", {}, key)), el("td", {}, text)))),
      el("form", { method: "dialog" }, el("button", { autofocus: true }, "Close")));
    dialog().showModal();
  };

  const listen = () => {
    document.addEventListener("keydown", (event) => {
      const inside = event.target instanceof Element && event.target.closest("input:not([type=checkbox]), select, textarea, dialog");
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (inside) {
        if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
        return;
      }
      const action = ACTIONS.find(([key]) => key === event.key);
      if (!action) return;
      event.preventDefault();
      action[2]();
    });
    document.getElementById("keys").addEventListener("click", help);
  };

  return { listen };
})();
