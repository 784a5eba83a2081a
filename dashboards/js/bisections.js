"use strict";
// The bisections that were made; each has a page of its own.
perfbisect.bisections = (() => {
  const { el } = perfbisect.dom;

  const render = (root) => {
    const done = [...perfbisect.series.all().site.bisections].sort((a, b) => (a.began < b.began ? 1 : -1));
    root.append(
      el("h1", { tabindex: "-1" }, "Bisections"),
      el("p", { class: "soft" }, "Each has a page of its own: what is believed of each commit, every launch, the A/B."),
      done.length ? perfbisect.panels.bisections(done) : el("p", { class: "nothing" }, "None was made yet."));
    return "Bisections";
  };

  return { render };
})();
