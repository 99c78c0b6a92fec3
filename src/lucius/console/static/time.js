// Times in one zone on every page, and how long ago they were by the server's clock.

import { el } from "/console/dom.js";

const ZONE = "lucius.zone";
const DAY_MS = 86400000;
const LOCAL = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
let ahead = 0; // how far the server's clock is ahead of the browser's

export const setServerTime = (now) => { ahead = new Date(now) - Date.now(); };

export const serverNow = () => Date.now() + ahead;

export const zones = () => [...new Set([LOCAL, "UTC"])];

export const zone = () => (zones().includes(localStorage.getItem(ZONE)) ? localStorage.getItem(ZONE) : LOCAL);

export const useZone = (name) => localStorage.setItem(ZONE, name);

function parts(at) {
  const format = new Intl.DateTimeFormat("en-GB", {
    timeZone: zone(), hourCycle: "h23", year: "numeric", month: "short", day: "numeric",
    hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3,
  });
  return Object.fromEntries(format.formatToParts(new Date(at)).map(({ type, value }) => [type, value]));
}

export const fullTime = (at) => {
  const p = parts(at);
  return `${p.day} ${p.month} ${p.year}, ${p.hour}:${p.minute}:${p.second} ${zone()}`;
};

// Without its day where that is today.
export function shortTime(at) {
  const [p, now] = [parts(at), parts(serverNow())];
  const clock = `${p.hour}:${p.minute}:${p.second}`;
  if (p.day === now.day && p.month === now.month && p.year === now.year) return clock;
  return `${p.day} ${p.month}${p.year === now.year ? "" : ` ${p.year}`} ${clock}`;
}

export const minuteTime = (at) => {
  const p = parts(at);
  return `${p.hour}:${p.minute}`;
};

// Minutes since midnight in the page's zone, with the seconds as a part of one.
export const dayMinute = (at) => {
  const p = parts(at);
  return Number(p.hour) * 60 + Number(p.minute) + Number(p.second) / 60;
};

export const exactTime = (at) => {
  const p = parts(at);
  return `${p.hour}:${p.minute}:${p.second}.${p.fractionalSecond}`;
};

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "";
  if (ms < 0) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms < 120000) return `${Math.round(ms / 1000)} s`;
  if (ms < 7200000) return `${Math.round(ms / 60000)} min`;
  return ms < 2 * DAY_MS ? `${(ms / 3600000).toFixed(1).replace(".0", "")} h` : `${Math.round(ms / DAY_MS)} d`;
}

// A mark on an axis of this length.
export function mark(ms, span) {
  const [minutes, whole] = [Math.floor(ms / 60000), Math.round(ms / 1000)];
  const two = (number) => String(number).padStart(2, "0");
  if (span < 1000) return `${Math.round(ms)} ms`;
  if (span < 4000) return `${(ms / 1000).toFixed(2)} s`;
  if (span < 40000) return `${(ms / 1000).toFixed(1)} s`;
  if (span < 120000) return `${whole} s`;
  return span < 7200000 ? `${Math.floor(whole / 60)}:${two(whole % 60)} min` : `${Math.floor(minutes / 60)}:${two(minutes % 60)} h`;
}

export const between = (from, to) => (from ? duration((to ? new Date(to) : serverNow()) - new Date(from)) : "");

function relative(at) {
  const ms = serverNow() - new Date(at);
  if (Math.abs(ms) < 2000) return "now";
  return ms > 0 ? `${coarse(ms)} ago` : `in ${coarse(-ms)}`;
}

function coarse(ms) {
  for (const [unit, size] of [["d", DAY_MS], ["h", 3600000], ["min", 60000]])
    if (ms >= 2 * size) return `${Math.floor(ms / size)} ${unit}`;
  return `${Math.floor(ms / 1000)} s`;
}

// How long ago; kept current by the page.
export const ago = (at) => (at ? el("time", { datetime: at, title: fullTime(at), "data-ago": true }, relative(at)) : "");

export const when = (at) => (at ? el("time", { datetime: at, title: fullTime(at) }, shortTime(at)) : "");

export const exact = (at) => el("time", { datetime: at, title: fullTime(at) }, exactTime(at));

// What is typed into a field of date and time is of the page's zone, too.
export const instantOf = (typed) => new Date(zone() === "UTC" ? `${typed}Z` : typed).toISOString();

export function typedOf(at) {
  const p = parts(at);
  const month = new Intl.DateTimeFormat("en-GB", { timeZone: zone(), month: "2-digit" }).format(new Date(at));
  return `${p.year}-${month}-${p.day.padStart(2, "0")}T${p.hour}:${p.minute}`;
}

const INSTANT = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;

// Instants in a sentence of Lucius, as times of the page's zone.
export const inZone = (text) => text.replace(INSTANT, (at) => shortTime(at));

setInterval(() => {
  for (const each of document.querySelectorAll("time[data-ago]")) {
    const words = relative(each.dateTime);
    if (each.textContent !== words) each.firstChild.nodeValue = words;
  }
}, 1000);
