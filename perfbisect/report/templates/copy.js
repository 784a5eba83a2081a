"use strict";
(() => {
  const select = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  };

  for (const text of document.querySelectorAll("pre.typed")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
      } catch {
        // A page from disk may have no clipboard of its own.
        select(text);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
    });
    text.before(button);
  }
})();
