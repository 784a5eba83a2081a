"use strict";
// Shows the page that the address names, and again whenever the address or the colours change.
perfbisect.main = (() => {
  const { el } = perfbisect.dom;
  const picked = new Set();
  let turn = 0;
  let where = null;

  const comparison = (keys) => perfbisect.address("compare", "", [...keys].slice(0, 8).map((key) => ["s", key]));

  const comparing = (keys) => {
    const link = document.getElementById("compare-picked");
    if (!link) return;
    link.hidden = keys.size < 1;
    link.setAttribute("href", comparison(keys));
    link.textContent = keys.size > 8 ? "Compare the first 8" : `Compare (${keys.size})`;
  };

  const failed = (root, error) => {
    console.error(error);
    root.replaceChildren(
      el("h1", { tabindex: "-1" }, "This cannot be shown"), el("p", {}, error.message),
      el("p", {}, el("a", { href: "#/" }, "To the overview")));
    return "";
  };

  // The element that had the focus, found again in the new page by its id.
  const focused = () => {
    const node = document.activeElement;
    if (!node || !node.id || node === document.body) return () => {};
    const at = node.selectionStart;
    return () => {
      const again = document.getElementById(node.id);
      if (!again || again === document.activeElement) return;
      again.focus({ preventScroll: true });
      if (at !== undefined && at !== null && again.setSelectionRange && again.type === "search") again.setSelectionRange(at, at);
    };
  };

  const render = async () => {
    turn += 1;
    const own = turn;
    const address = location.hash;
    const state = perfbisect.parse(address);
    const page = `${state.view}/${state.name}`;
    const moved = where !== null && page !== where;
    const view = document.getElementById("view");
    const root = el("div", { class: "page" });
    const again = moved ? () => {} : focused();
    const height = scrollY;
    for (const link of document.querySelectorAll("#pages a")) {
      if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    view.setAttribute("aria-busy", "true");
    const old = [...view.querySelectorAll(".figure")];
    // A figure is drawn at its width: the page is there before it, and the old one until then.
    const shown = () => {
      if (own !== turn || root.isConnected) return;
      for (const node of old) if (node.drawn) node.drawn.remove();
      view.replaceChildren(root);
      scrollTo(0, moved ? 0 : height);
      if (moved) {
        const head = root.querySelector("h1");
        if (head) head.focus({ preventScroll: true });
      } else again();
    };
    let title = "";
    try {
      const pages = {
        overview: perfbisect.overview, cell: perfbisect.cell, alert: perfbisect.alert, compare: perfbisect.compare,
        bisections: perfbisect.bisections,
      };
      if (!Object.hasOwn(pages, state.view)) throw new Error(`there is no page called ${state.view}`);
      title = await pages[state.view].render(root, state, shown);
    } catch (error) {
      title = failed(root, error);
    }
    if (own !== turn) return;
    shown();
    comparing(picked);
    where = page;
    const name = perfbisect.site().title;
    document.title = title ? `${title} – ${name}` : name;
    view.dataset.address = address;
    view.removeAttribute("aria-busy");
  };

  const theme = () => {
    const order = ["system", "light", "dark"];
    const root = document.documentElement;
    const next = order[(order.indexOf(root.dataset.theme || "system") + 1) % order.length];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      localStorage.setItem("perfbisect-theme", next);
    } catch {
      // It holds for this page then.
    }
    named();
    render();
  };

  const named = () => {
    const chosen = document.documentElement.dataset.theme || "system";
    const button = document.getElementById("theme");
    button.textContent = `Colours: ${chosen}`;
    button.setAttribute("aria-label", `Colours: ${chosen === "system" ? "those of the system" : chosen}`);
  };

  const start = () => {
    const site = perfbisect.site();
    if (!site) {
      document.getElementById("view").append(
        el("div", { class: "page" }, el("p", {}, "data/site.js cannot be read: it belongs beside this page.")));
      return;
    }
    document.getElementById("foot").append(el("div", { class: "page" },
      `Made by perfbisect on ${perfbisect.words.minute(site.made)}. Times are UTC. `,
      "This page loads nothing from anywhere but its own folder."));
    named();
    document.getElementById("theme").addEventListener("click", theme);
    perfbisect.keys.listen();
    addEventListener("hashchange", render);
    // Who points at a row will probably open it: the plotting script takes a moment to read.
    for (const kind of ["pointerover", "focusin"]) {
      document.addEventListener(kind, (event) => {
        if (event.target instanceof Element && event.target.closest("a.go, a.mark")) perfbisect.plots().catch(() => {});
      });
    }
    for (const media of [matchMedia("(prefers-color-scheme: dark)"), perfbisect.narrow]) media.addEventListener("change", render);
    render();
  };

  document.addEventListener("DOMContentLoaded", start);
  return { picked, comparing, comparison, theme };
})();
