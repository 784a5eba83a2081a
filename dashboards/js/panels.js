"use strict";
// Alerts, suspects and bisections as they stand on several pages.
perfbisect.panels = (() => {
  const { words, draw, series } = perfbisect;
  const { el, table, command } = perfbisect.dom;
  const MOST = 10;

  const n = (text) => el("th", { scope: "col", class: "n" }, text);

  const size = (alert, reach) => [
    el("span", { class: `effect ${words.side(alert)}` }, `${words.arrow(alert)} ${words.effect(alert.measure, alert.effect)}`),
    el("span", { class: "soft small" }, ` ${words.side(alert)}`), el("br"),
    draw.interval(alert, alert.measure, reach),
    el("span", { class: "soft small block" }, `95 %: ${words.between(alert.measure, alert.interval)}`),
  ];

  const sort = (alert) => [draw.pill(alert.shape), " ", draw.pill(alert.cause, alert.cause)];

  const facts = (alert) => [
    sort(alert), " ",
    alert.state === "open" ? null : draw.pill(alert.state), alert.kind === "over" ? draw.pill("recovered") : null,
  ];

  // The commit that a bisection named, or the few of which one made the step; "most" are listed.
  const measured = ({ probability, commits }, most) => {
    const name = ([sha, subject]) => [series.commit(sha), " ", el("bdi", {}, subject)];
    if (commits.length === 1) return [el("b", {}, words.probability(probability)), " ", name(commits[0])];
    const left = commits.length - most;
    return [
      el("b", {}, words.probability(probability)), ` one of ${words.many(commits.length, "commit")}`,
      el("ul", { class: "tight" }, commits.slice(0, most).map((of) => el("li", {}, `${words.probability(of[2])} `, name(of))),
        left > 0 ? el("li", {}, `and ${left} more`) : null)];
  };

  const suspects = (ranking) => {
    if (!ranking) return el("p", { class: "soft" }, "No suspects were ranked: ", el("code", {}, "perfbisect track suspects"), " does it.");
    const row = (suspect) => el("tr", {},
      el("td", { class: "n" }, el("b", {}, words.probability(suspect.p))),
      el("td", { class: "long" }, series.commit(suspect.sha), " ", el("bdi", {}, suspect.subject),
        el("span", { class: "soft small block" }, suspect.date.slice(0, 10))),
      el("td", { class: "long" }, el("ul", { class: "tight" }, suspect.evidence.map((factor) =>
        el("li", {}, el("span", { class: "factor" }, `× ${words.number(factor.weight, 2)}`), ` ${factor.name}: ${factor.words}`)))));
    const ranked = (found) => table([n("P"), "commit", "why: each factor multiplies its odds"], found.map(row), { class: "suspects" });
    const rest = ranking.suspects.slice(MOST);
    return [
      ranking.attributed && ranking.suspects.length ? el("p", {}, el("b", {}, "Attributed by revert"), " to ",
        series.commit(ranking.suspects[0].sha), ": ", ranking.attributed) : null,
      ranking.blast_radius ? el("p", {}, "What the cells that were hit have and the others have not: ", ranking.blast_radius) : null,
      ranking.note ? el("p", { class: "soft" }, ranking.note) : null,
      ranking.suspects.length ? ranked(ranking.suspects.slice(0, MOST)) : null,
      rest.length ? el("details", {}, el("summary", {}, words.many(rest.length, "further commit")), ranked(rest)) : null,
      ranking.suspects.length ? el("p", { class: "soft small" }, `None of them: ${words.probability(ranking.p_outside_window)}.`) : null,
      ranking.bisect ? [el("p", { class: "small soft" }, "Settles it by measuring:"), command(ranking.bisect)] : null,
    ];
  };

  const places = (whole) => {
    if (whole.places.length < 2) return null;
    const known = whole.places.some((place) => place.p !== null);
    return table(["it may have begun at the build", "of", known ? n("P") : ""], whole.places.map((place) => el("tr", {},
      el("td", {}, place.build), el("td", { class: "k" }, words.minute(place.time)),
      el("td", { class: "n" }, known ? words.probability(place.p) : ""))), { class: "narrow" });
  };

  const bisections = (found) => table(
    ["began", "job", "cell", "metric", "ended as", n("effect"), n("P"), "culprit", n("launches")],
    found.map((one) => el("tr", {},
      el("td", { class: "k" }, one.began ? words.day(one.began) : "-"),
      el("td", {}, el("a", { href: one.page }, one.job)),
      el("td", {}, series.all().cells.has(one.cell) ? el("a", { href: perfbisect.address("cell", one.cell) }, one.cell) : one.cell),
      el("td", {}, one.metric),
      el("td", {}, draw.pill(one.outcome)),
      el("td", { class: "n" }, one.effect ? [words.effect({}, one.effect[0]),
        el("span", { class: "soft small block" }, words.between({}, one.effect.slice(1)))] : "-"),
      el("td", { class: "n" }, one.outcome === "found" || one.outcome === "narrowed" ? words.probability(one.probability) : "-"),
      el("td", { class: "long" }, one.culprit ? [series.commit(one.culprit[0]), " ", el("bdi", {}, one.culprit[1])]
        : one.candidates.length ? el("ul", { class: "tight" }, one.candidates.slice(0, MOST).map((of) =>
          el("li", {}, series.commit(of[0]), ` ${words.probability(of[2])} `, el("bdi", {}, of[1]))))
          : `${one.range[0]} to ${one.range[1]}`),
      el("td", { class: "n" }, one.launches, el("span", { class: "soft small block" }, words.minutes(one.minutes))))),
    { class: "bisections" });

  // An alert whole: what it is, the evidence, where it began, who could be behind it, what was measured of it.
  const alert = (known, whole, number) => {
    const done = series.all().site.bisections.filter((one) => one.alerts.includes(known.id));
    const others = known.event.alerts.length - 1;
    return el("section", { class: "alert", id: `alert-${known.id}` },
      el("h2", {}, number ? `${number}. ` : "", `${words.arrow(known)} ${words.effect(known.measure, known.effect)} `,
        el("span", { class: words.side(known) }, words.side(known))),
      el("p", {}, facts(known)),
      el("p", {}, `95 % interval ${words.between(known.measure, known.interval)}; `,
        `smallest worth telling ${words.effect(known.measure, known.measure.smallest_effect)}. `,
        known.p === null ? "" : `Without a change a series shows one so clear this often: ${words.chance(known.p)}. `,
        `Cause: ${words.causes[known.cause]}. `,
        known.shape === "step" ? `Since ${words.minute(known.first)}.` : `From ${words.minute(known.first)} to ${words.minute(known.last)}.`),
      whole.why ? el("p", {}, `${known.state}: `, el("bdi", {}, whole.why)) : null,
      whole.evidence.length ? el("ul", {}, whole.evidence.map((text) => el("li", {}, text))) : null,
      places(whole),
      el("p", { class: "small soft" }, "Alert ", el("a", { href: perfbisect.address("alert", known.id) }, known.id),
        others ? `, with ${words.many(others, "other alert")} of the same cause` : ""),
      known.measured ? [el("h3", {}, "Measured"), el("div", { class: "measured" }, measured(known.measured, MOST),
        el("p", { class: "small soft" }, `By bisection ${known.measured.job}.`))] : null,
      el("h3", {}, "Suspects"),
      whole.suspects && whole.ranked !== known.id ? el("p", { class: "small soft" }, "Ranked for alert ",
        el("a", { href: perfbisect.address("alert", whole.ranked) }, whole.ranked), ", of the same cause.") : null,
      suspects(whole.suspects),
      done.length ? [el("h3", {}, "Bisections"), bisections(done)] : null);
  };

  return { size, sort, facts, measured, suspects, alert, bisections, n };
})();
