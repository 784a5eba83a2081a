"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const colours = new Set([
    "color", "gridcolor", "linecolor", "zerolinecolor", "bgcolor", "bordercolor", "fillcolor", "activecolor",
  ]);
  // The buttons are named one by one: among the default ones is one that sends the figure to a server.
  const buttons = [["zoom2d", "pan2d", "resetScale2d", "toImage"]];
  const config = { responsive: true, displaylogo: false, modeBarButtons: buttons };
  const style = () => getComputedStyle(document.documentElement);

  // "@end" stands for the theme's colour of that name, and only where a colour is meant.
  const themed = (value, key, theme) => {
    if (Array.isArray(value)) return value.map((item) => themed(item, key, theme));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, themed(item, name, theme)]));
    }
    if (typeof value === "string" && colours.has(key) && value.startsWith("@")) {
      return theme.getPropertyValue("--c-" + value.slice(1)).trim();
    }
    return value;
  };

  // Labels that would overlap in a narrow window are left out, every second, every third, ...
  const thinned = (axis, width) => {
    const every = Math.ceil((axis.tickvals.length * 26) / Math.max(width, 1));
    const kept = (items) => items.filter((_, at) => at % every === 0);
    return { ...axis, tickvals: kept(axis.tickvals), ticktext: kept(axis.ticktext) };
  };

  const draw = () => {
    const theme = style();
    for (const [name, figure] of Object.entries(figures)) {
      const node = document.getElementById(name);
      const layout = themed(figure.layout, "", theme);
      if (layout.xaxis.ticktext) layout.xaxis = thinned(layout.xaxis, node.clientWidth - 90);
      Plotly.react(node, themed(figure.data, "", theme), layout, config);
    }
  };

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
