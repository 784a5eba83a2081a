"use strict";
// The site's own data, and its state, which is the address: "#/cell/NAME?metric=ttft&days=90".
const perfbisect = (() => {
  const kept = new Map();
  const under = new Map();

  const put = (key, payload) => {
    kept.set(key, key === "site" ? unpacked(payload) : payload);
  };

  const script = (source) => {
    if (!under.has(source)) {
      under.set(source, new Promise((resolve, reject) => {
        const node = document.createElement("script");
        node.src = source;
        node.addEventListener("load", () => resolve());
        node.addEventListener("error", () => {
          under.delete(source);
          node.remove();
          reject(new Error(`${source} cannot be read: it belongs beside this page. Load the page again, or build the site again.`));
        });
        document.head.append(node);
      }));
    }
    return under.get(source);
  };

  // Lists of objects that are written as tables: the names of the fields, and a row for each object.
  const unpacked = (value) => {
    if (Array.isArray(value)) return value.map(unpacked);
    if (value === null || typeof value !== "object") return value;
    if (Object.keys(value).join() === "names,rows") {
      return value.rows.map((row) => Object.fromEntries(value.names.map((name, at) => [name, unpacked(row[at])])));
    }
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, unpacked(item)]));
  };

  // The payload of a data file, read once.
  const load = async (file) => {
    if (!kept.has(file)) await script(`data/${file}`);
    if (!kept.has(file)) throw new Error(`data/${file} holds something else`);
    return kept.get(file);
  };

  // Read with the first figure.
  const plots = async () => {
    await script("plots.js");
    return drawPlot;
  };

  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };

  const parse = (hash) => {
    const at = hash.indexOf("?");
    const path = at < 0 ? hash : hash.slice(0, at);
    const [view, ...rest] = path.replace(/^#?\/?/, "").split("/");
    return {
      view: view || "overview",
      name: decoded(rest.join("/")),
      params: new URLSearchParams(at < 0 ? "" : hash.slice(at + 1)),
    };
  };

  const address = (view, name = "", params = "") => {
    const query = new URLSearchParams(params).toString();
    const path = view === "overview" ? "#/" : `#/${view}${name ? "/" + encodeURIComponent(name) : ""}`;
    return query ? `${path}?${query}` : path;
  };

  const now = () => parse(location.hash);

  // The same page with other parameters; an empty value takes one away.
  const changed = (values) => {
    const state = now();
    for (const [key, value] of Object.entries(values)) {
      if (value === "" || value === null) state.params.delete(key);
      else state.params.set(key, value);
    }
    return address(state.view, state.name, state.params);
  };

  const set = (values) => {
    const wanted = changed(values);
    if (wanted !== location.hash) location.replace(wanted);
  };

  const narrow = matchMedia("(max-width: 720px)");

  return { put, load, plots, parse, address, now, changed, set, narrow, unpacked, site: () => kept.get("site") };
})();
