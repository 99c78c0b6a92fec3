// Elements. Everything that comes from a job goes in as text, never as markup.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child != null).map((child) => child instanceof Node ? child : String(child)));
  return made;
}

export const badge = (state) => el("span", { class: `state ${state.toLowerCase()}` }, state);

export const link = (jobId) => el("a", { href: `#/jobs/${encodeURIComponent(jobId)}`, class: "id" }, jobId);

export const time = (at) =>
  at ? el("time", { datetime: at, title: at }, new Date(at).toLocaleString()) : "";

export const clock = (at) => {
  const when = new Date(at);
  const words = `${when.toLocaleTimeString([], { hour12: false })}.${String(when.getMilliseconds()).padStart(3, "0")}`;
  return el("time", { datetime: at, title: at }, words);
};

export function span(from, to) {
  if (!from) return "";
  const seconds = Math.max(0, (new Date(to ?? Date.now()) - new Date(from)) / 1000);
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export function table(heads, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  const head = el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)));
  const body = rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell))));
  return el("div", { class: "wide" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

export function facts(pairs) {
  const kept = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", {}, kept.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
