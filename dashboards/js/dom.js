"use strict";
// Elements, made without markup: whatever is text stays text.
perfbisect.dom = (() => {
  // Addresses within the site, and those of the web.
  const safe = (address) => /^(#|bisections\/[\w.-]+\.html$|https?:\/\/)/.test(address);

  const filled = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "href") {
        if (!safe(value)) continue;
        node.setAttribute("href", value);
        if (/^http/.test(value)) node.setAttribute("rel", "noopener noreferrer");
      } else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false) node.append(child);
    }
    return node;
  };

  const el = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

  const svg = (tag, attributes = {}, ...children) => {
    const space = document.getElementById("svg").namespaceURI;
    return filled(document.createElementNS(space, tag), attributes, children);
  };

  const option = (value, label, chosen) => el("option", { value, selected: value === chosen }, label);

  const select = (id, label, options, chosen, change) =>
    el("label", { class: "field", for: id }, el("span", {}, label),
      el("select", { id, onchange: (event) => change(event.target.value) },
        options.map(([value, text]) => option(value, text, chosen))));

  const table = (head, rows, attributes = {}) =>
    el("div", { class: "wide" },
      el("table", attributes,
        el("thead", {}, el("tr", {}, head.map((cell) => (cell instanceof Node ? cell : el("th", { scope: "col" }, cell))))),
        el("tbody", {}, rows)));

  const say = (text) => {
    document.getElementById("said").textContent = text;
  };

  const copied = async (text, button) => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Selected: copy it";
    }
  };

  const command = (text) => {
    const button = el("button", { type: "button", onclick: () => copied(text, button) }, "Copy");
    return el("div", { class: "command" }, el("pre", { tabindex: "0" }, text), button);
  };

  return { el, svg, select, table, say, command };
})();
