"use strict";
// Before anything is drawn: the theme that was chosen, where the browser keeps it for pages like this one.
(() => {
  try {
    const chosen = localStorage.getItem("perfbisect-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // A browser that keeps nothing follows the system.
  }
})();
