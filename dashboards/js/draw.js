"use strict";
// Small drawings without the plotting script: curves, intervals, symbols.
perfbisect.draw = (() => {
  const { el, svg } = perfbisect.dom;
  const WIDTH = 180;
  const HEIGHT = 32;
  const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

  // A series over the site's whole span, with the places of its alerts: "marks" are [from, to, kind] in seconds.
  const curve = (text, span, marks, label) => {
    const heights = [...text].map((letter) => (letter === "." ? null : LETTERS.indexOf(letter)));
    const room = 3;
    const width = (span[1] - span[0]) || 1;
    const across = (seconds) => Math.min(1, Math.max(0, (seconds - span[0]) / width)) * WIDTH;
    const x = (at) => ((at + 0.5) / heights.length) * WIDTH;
    const y = (value) => HEIGHT - room - (value / (LETTERS.length - 1)) * (HEIGHT - 2 * room);
    const bands = marks.map(([from, to, kind]) =>
      svg("rect", {
        class: `band ${kind}`, x: across(from) - 1.5, y: 0, height: HEIGHT,
        width: Math.max(3, across(to) - across(from) + 3),
      }));
    const lines = [];
    const dots = [];
    let path = "";
    let count = 0;
    const end = () => {
      if (count > 1) lines.push(svg("path", { class: "line", d: path }));
      path = "";
      count = 0;
    };
    let gap = 0;
    heights.forEach((value, at) => {
      if (value === null) {
        // Series with a result every other week are lines too: only long gaps end one.
        gap += 1;
        if (gap > 8) end();
        return;
      }
      gap = 0;
      path += `${count ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      count += 1;
      if (at === heights.length - 1 || heights.slice(at + 1).every((item) => item === null)) {
        dots.push(svg("circle", { class: "dot", cx: x(at).toFixed(1), cy: y(value).toFixed(1), r: 2.2 }));
      }
    });
    end();
    return svg("svg", {
      class: "curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": label,
    }, bands, lines, dots);
  };

  // An effect with its interval on a common scale, in logarithms: zero in the middle, grey is not worth telling.
  const interval = (alert, metric, reach) => {
    const width = 120;
    const height = 16;
    const size = (value) => (metric.absolute ? value : Math.log1p(Math.max(value, -0.99)));
    const x = (value) => width / 2 + Math.max(-1, Math.min(1, size(value) / reach)) * (width / 2 - 4);
    const small = metric.smallest_effect;
    const [low, high] = alert.interval;
    const side = alert.worse ? "worse" : "better";
    return svg("svg", { class: "interval", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
      svg("rect", { class: "small", x: x(-small), y: 0, width: Math.max(1, x(small) - x(-small)), height }),
      svg("line", { class: "zero", x1: width / 2, x2: width / 2, y1: 0, y2: height }),
      svg("line", { class: `reach ${side}`, x1: x(low), x2: x(high), y1: height / 2, y2: height / 2 }),
      [low, high].map((end) => (x(high) - x(low) > 9
        ? svg("line", { class: `reach ${side}`, x1: x(end), x2: x(end), y1: 4, y2: height - 4 }) : null)),
      svg("rect", { class: `middle ${side}`, x: x(alert.effect) - 3.5, y: height / 2 - 3.5, width: 7, height: 7,
        transform: `rotate(45 ${x(alert.effect)} ${height / 2})` }));
  };

  // The common scale of several intervals: the widest of them, at least 10 %, at most tenfold.
  const reach = (pairs) => Math.min(Math.log(10), Math.max(0.1, ...pairs.map(([alert, metric]) =>
    Math.max(...alert.interval.map((value) =>
      Math.abs(metric.absolute ? value : Math.log1p(Math.max(value, -0.99))))))));

  const pill = (text, kind = "") => el("span", { class: `pill ${kind}` }, text);

  return { curve, interval, reach, pill };
})();
