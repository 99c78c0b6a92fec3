// Elements, and how they are kept. Everything that comes from a job goes in as text, never as markup.

const HANDLERS = ["onclick", "onsubmit", "onchange", "oninput"];
const OF_THE_READER = new Set(["open"]); // whether a <details> is open is not for a refresh to say

const nodes = (children) => [children].flat(Infinity).filter((child) => child != null && child !== "")
  .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (HANDLERS.includes(key)) made[key] = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...nodes(children));
  return made;
}

const keyOf = (node) => node.dataset?.key;
const alike = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

// Makes these the children of a node. Those that are there already and of the same kind stay, with the new words:
// so does what is focused, marked, opened or scrolled. What has a key is never taken for something else: a button
// under the reader's finger does not become that of another job.
export function fill(node, children) {
  const wanted = nodes(children);
  const keys = new Set(wanted.map(keyOf));
  for (const child of [...node.childNodes]) if (!keys.has(keyOf(child))) child.remove();
  const keyed = new Map([...node.childNodes].map((child) => [keyOf(child), child]));
  let at = node.firstChild;
  for (const fresh of wanted) {
    const kept = keyOf(fresh) === undefined ? at : keyed.get(keyOf(fresh));
    if (kept && alike(kept, fresh)) {
      if (kept === at) at = at.nextSibling;
      else node.insertBefore(kept, at);
      if (kept !== fresh) patch(kept, fresh);
    } else node.insertBefore(fresh, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function patch(kept, fresh) {
  if (!(kept instanceof Element)) {
    if (kept.nodeValue !== fresh.nodeValue) kept.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...kept.attributes])
    if (!fresh.hasAttribute(name) && !OF_THE_READER.has(name)) kept.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (kept.getAttribute(name) !== value) kept.setAttribute(name, value);
  for (const name of HANDLERS) kept[name] = fresh[name];
  fill(kept, [...fresh.childNodes]);
}

// Draws what was asked for last: an answer that was overtaken by a later one is old.
export function newest(read, draw) {
  let turn = 0;
  return async () => {
    const mine = ++turn;
    const found = await read();
    if (mine === turn) draw(found);
  };
}

const busy = new WeakSet();

// A button that does one thing at a time, however often it is pressed.
export const action = (words, run) => el("button", {
  "data-key": words,
  onclick: async ({ currentTarget: button }) => {
    if (busy.has(button)) return;
    busy.add(button);
    try {
      await run();
    } finally {
      busy.delete(button);
    }
  },
}, words);

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

export const row = (key, cells) => el("tr", { "data-key": key }, cells.map((cell) => el("td", {}, cell)));

export function table(heads, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  const head = el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)));
  return el("div", { class: "wide" }, el("table", {}, el("thead", {}, head), el("tbody", {}, rows)));
}

export function facts(pairs) {
  const kept = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", {}, kept.flatMap(([name, value]) => [el("dt", { "data-key": name }, name), el("dd", { "data-key": `${name}:` }, value)]));
}
