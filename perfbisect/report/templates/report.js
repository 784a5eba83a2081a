"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const draw = () => {
    for (const [name, plot] of Object.entries(figures)) drawPlot(document.getElementById(name), plot);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
