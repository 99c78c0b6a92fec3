// The parts that pages are made of.

import { el, svg } from "/console/dom.js";

const ICONS = {
  overview: "M2 12.5h12M3.5 10V7M6.5 10V3.5M9.5 10V6M12.5 10V4.5",
  jobs: "M2.5 4h11M2.5 8h11M2.5 12h7",
  failed: "M8 2.5 14 13H2zM8 6.5v3M8 11.2v.3",
  services: "M3 3h10v4H3zM3 9h10v4H3zM5.5 5h.1M5.5 11h.1",
  lanes: "M2.5 3v10M6.2 3v10M9.9 3v10M13.5 3v10",
  tenants: "M5.5 7.5a2.2 2.2 0 1 0 0-4.4 2.2 2.2 0 0 0 0 4.4zM1.8 13c.4-2.3 1.8-3.5 3.7-3.5S8.8 10.7 9.2 13M10.5 3.5a2 2 0 0 1 0 3.9M11.5 9.6c1.5.4 2.4 1.5 2.7 3.4",
  protocols: "M2 5.5h3.5v5H2zM10.5 2.5H14v4h-3.5zM10.5 9.5H14v4h-3.5zM5.5 8h2.5M10.5 4.5H8v7h2.5",
  webhooks: "M2.5 8h8M7.5 4.5 11 8l-3.5 3.5M13.5 3v10",
  keys: "M5.5 10.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8.5 7.5H14v2.5M11.5 7.5V9.5",
  playground: "M4 2.8v10.4L13 8z",
  schedules: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.8V8l2.4 1.6",
  api: "M5.5 4 2 8l3.5 4M10.5 4 14 8l-3.5 4",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.4 10.4 14 14",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z",
  check: "M3 8.5 6.5 12 13 4.5",
  warning: "M8 2.5 14 13H2zM8 6.5v3M8 11.2v.3",
  error: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 5v3.8M8 10.8v.3",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5z",
  auto: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 2v12M8 4.5h4.5M8 8h6M8 11.5h4.5",
  arrow: "M3 8h9.5M9 4.5 12.5 8 9 11.5",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
};

export const icon = (name) =>
  svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));

// -- states ---------------------------------------------------------------------------------------------------------

const STATES = {
  QUEUED: ["Queued", "idle"], DISPATCHING: ["Dispatching", "run"], IN_PROGRESS: ["In progress", "run"],
  PAUSING: ["Pausing", "warn"], PAUSED: ["Paused", "warn"], CANCELLING: ["Cancelling", "warn"],
  SUCCEEDED: ["Succeeded", "ok"], FAILED_FINAL: ["Failed", "bad"], CANCELLED: ["Cancelled", "idle"],
  PENDING: ["Not begun", "idle"], INITIATED: ["Handed out", "run"], PROCESSING: ["At work", "run"],
  FAILED_RETRY: ["Waits to retry", "warn"],
};
export const JOB_STATES = [
  "QUEUED", "DISPATCHING", "IN_PROGRESS", "PAUSING", "PAUSED", "CANCELLING", "SUCCEEDED", "FAILED_FINAL", "CANCELLED"];
export const ENDED = new Set(["SUCCEEDED", "FAILED_FINAL", "CANCELLED"]);

export const stateWords = (state) => STATES[state]?.[0] ?? state;
export const stateTone = (state) => STATES[state]?.[1] ?? "idle";

export const badge = (state) =>
  el("span", { class: `badge ${stateTone(state)}`, "data-state": state, title: state }, stateWords(state));

export const tag = (words, tone = "idle") => el("span", { class: `badge ${tone}` }, words);

// -- buttons --------------------------------------------------------------------------------------------------------

const busy = new WeakSet();

// A button that does one thing at a time, however often it is pressed. What is refused is said by `onFault`.
export function button(words, run, { kind = "", label, picture, disabled, onFault = fault, key = words } = {}) {
  return el("button", {
    type: "button",
    class: `button ${kind}`,
    "data-key": key,
    "aria-label": label,
    title: label,
    disabled,
    onclick: async ({ currentTarget }) => {
      if (busy.has(currentTarget)) return;
      busy.add(currentTarget);
      currentTarget.setAttribute("aria-busy", "true");
      try {
        await run();
      } catch (error) {
        onFault(error);
      } finally {
        busy.delete(currentTarget);
        currentTarget.removeAttribute("aria-busy");
      }
    },
  }, picture ? icon(picture) : "", words);
}

async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el("textarea", { class: "offscreen" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy"); // the way that is left on a page without TLS
  area.remove();
}

export const copyButton = (text, what, words = "") =>
  button(words, async () => {
    await toClipboard(typeof text === "function" ? text() : text);
    toast(`Copied ${what}.`);
  }, { kind: words ? "small" : "small bare", picture: "copy", label: `Copy ${what}`, key: `copy ${what}` });

// One of a few, all in sight.
export const choice = (label, options, chosen, pick) =>
  el("div", { class: "choice", role: "group", "aria-label": label }, options.map(([value, words, picture]) =>
    el("button", {
      type: "button", "data-key": value, "aria-pressed": String(value === chosen), title: picture ? words : null,
      "aria-label": picture ? words : null, onclick: () => pick(value),
    }, picture ? icon(picture) : words)));

// -- messages -------------------------------------------------------------------------------------------------------

const TOAST_MS = 6000;
const TOASTS_MAX = 3;

export function toast(words, { tone = "", undo, ms = TOAST_MS } = {}) {
  const place = document.getElementById("toasts");
  const shown = el("div", { class: `toast ${tone}` }, el("p", {}, words));
  const gone = () => shown.remove();
  if (undo) shown.append(button("Undo", async () => { gone(); await undo(); }, { kind: "small" }));
  shown.append(button("", gone, { kind: "small bare", picture: "close", label: "Close this message" }));
  place.append(shown);
  while (place.children.length > TOASTS_MAX) place.firstChild.remove();
  setTimeout(gone, ms);
}

export const fault = (error) => toast(error.message, { tone: "bad", ms: 2 * TOAST_MS });

// Asks before something is done; resolves to whether it was confirmed.
export function confirmed({ title, body, words, danger = false }) {
  return new Promise((done) => {
    const dialog = el("dialog", { "aria-labelledby": "dialog-title" },
      el("h2", { id: "dialog-title" }, title), el("div", { class: "dialog-body" }, body),
      el("div", { class: "buttons" },
        el("button", { type: "button", class: "button", onclick: () => dialog.close("") }, "Leave it"),
        el("button", { type: "button", class: `button ${danger ? "danger" : "main"}`, onclick: () => dialog.close("yes") }, words)));
    dialog.addEventListener("close", () => { dialog.remove(); done(dialog.returnValue === "yes"); });
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector(".buttons .button:last-child").focus();
  });
}

export function empty({ title, text, command, action }) {
  return el("div", { class: "empty" }, el("p", { class: "empty-title" }, title), text ? el("p", {}, text) : "",
    command ? el("div", { class: "command" }, el("code", {}, command), copyButton(command, "the command")) : "", action ?? "");
}

// -- tables and facts -----------------------------------------------------------------------------------------------

// A row is `{ key, cells, selected }`; a head is a text, or `{ text, class }`, with `href` one that sorts. On a narrow screen each row is a card
// whose lines have the heads as labels.
export function table(label, heads, rows) {
  const given = heads.map((head) => (typeof head === "string" ? { text: head } : head));
  return el("table", { class: "table", "aria-label": label },
    el("thead", {}, el("tr", {}, given.map(({ text, class: kind, hidden, node, href, sorted }) =>
      (node ? el("td", { class: kind }, node) : el("th", { scope: "col", class: kind, "aria-sort": sorted },
        hidden ? el("span", { class: "offscreen" }, text) : href ? el("a", { href, title: `Sort by ${text.toLowerCase()}` }, text) : text))))),
    el("tbody", {}, rows.map(({ key, cells, selected }) =>
      el("tr", { "data-key": key, "data-row": true, class: selected ? "selected" : null }, cells.map((cell, at) =>
        el("td", { class: given[at].class, "data-label": given[at].hidden || given[at].node ? null : given[at].text },
          [cell].flat(3).some((each) => each !== "" && each != null) ? el("div", { class: "cell" }, cell) : ""))))));
}

export function facts(pairs) {
  const kept = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, kept.map(([name, value, kind]) =>
    el("div", { "data-key": name, class: kind }, el("dt", {}, name), el("dd", {}, value))));
}

export const jobLink = (jobId) => el("a", { href: `#/jobs/${encodeURIComponent(jobId)}`, class: "id" }, jobId);

// A name that may be long: cut where there is no room, whole in its title.
export const name = (text) => el("span", { class: "cut", title: text }, text);

export const panel = (title, body, { aside, key, kind = "" } = {}) =>
  el("section", { class: `panel ${kind}`, "data-key": key },
    title ? el("div", { class: "panel-head" }, el("h2", {}, title), aside ?? "") : "", body);

export const count = (value) => Number(value).toLocaleString("en-GB");

export const counted = (value, one, several = `${one}s`) => `${count(value)} ${value === 1 ? one : several}`;

export const share = (part, whole) => (whole ? `${(100 * part / whole).toFixed(part === whole ? 0 : 1)} %` : "–");

// How full something is, drawn and in words.
export function meter(value, max, label) {
  const part = max ? Math.min(1, value / max) : 0;
  const tone = part >= 1 ? "bad" : part >= 0.9 ? "warn" : "";
  return el("div", { class: `meter ${tone}` },
    svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label },
      svg("rect", { class: "track", width: 100, height: 6 }), svg("rect", { class: "part", width: 100 * part, height: 6 })),
    el("span", { class: "figure" }, `${count(value)} / ${count(max)}`));
}

export const skeleton = () => el("div", { class: "skeleton", "aria-label": "Loading", role: "status" },
  ["", "", "", "", ""].map(() => el("div")));

// -- JSON -----------------------------------------------------------------------------------------------------------

const TOKEN = /"(?:[^"\\]|\\.)*"(?=\s*:)|"(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

function coloured(text) {
  const shown = [];
  let at = 0;
  for (const { 0: token, index } of text.matchAll(TOKEN)) {
    const name = token.startsWith('"') && /^\s*:/.test(text.slice(index + token.length, index + token.length + 8));
    shown.push(text.slice(at, index), el("span", { class: name ? "j-name" : token.startsWith('"') ? "j-text" : "j-value" }, token));
    at = index + token.length;
  }
  return [...shown, text.slice(at)];
}

const COLOURED_MAX = 20000;

export function json(value, what) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return el("div", { class: "json" }, copyButton(text, what),
    el("pre", { tabindex: 0, "aria-label": what }, text.length > COLOURED_MAX ? text : coloured(text)));
}
