// The frame: which page is shown, kept current while it is looked at; navigation, theme, zone and keys of the keyboard.

import { keysPage, webhooksPage } from "/console/admin.js";
import { Refused, call, currentKey, isToken, listen, pause, useKey } from "/console/api.js";
import { el, fill } from "/console/dom.js";
import { failedPage } from "/console/failed.js";
import { lanesPage, servicesPage, tenantsPage } from "/console/fleet.js";
import { jobPage } from "/console/job.js";
import { jobsPage } from "/console/jobs.js";
import { loginPage } from "/console/login.js";
import { endLogin, hostOf } from "/console/oidc.js";
import { overviewPage } from "/console/overview.js";
import { playgroundPage } from "/console/playground.js";
import { protocolPage, protocolsPage } from "/console/protocols.js";
import { schedulePage, schedulesPage } from "/console/schedules.js";
import { loadSession, may, session } from "/console/session.js";
import { useZone, zone, zones } from "/console/time.js";
import { button, choice, empty, fault, icon, name, skeleton, toast } from "/console/ui.js";

const view = document.getElementById("view");
const side = document.getElementById("side");
const menu = document.getElementById("menu");
const HEALTH_EVERY_MS = 5000;
const FIGURES_MS = 6000; // what ended is in the figures so long after it did at the latest
const AFTER_MOVES_MS = 1000; // however many jobs move, a list is read once in that time

// -- pages ----------------------------------------------------------------------------------------------------------

// `key`: pressed after g. `open(id, query)` makes the page.
const PAGES = [
  { path: "", words: "Overview", key: "o", picture: "overview", role: "read", open: overviewPage },
  { path: "jobs", words: "Jobs", key: "j", picture: "jobs", role: "read", open: jobsPage, one: jobPage },
  { path: "failed", words: "Failed jobs", key: "f", picture: "failed", role: "admin", open: failedPage },
  { path: "playground", words: "Playground", key: "y", picture: "playground", role: "submit", open: playgroundPage },
  { path: "schedules", words: "Schedules", key: "c", picture: "schedules", role: "read", open: schedulesPage, one: schedulePage },
  { path: "services", words: "Services", key: "s", picture: "services", role: "read", open: servicesPage, group: "Installation" },
  { path: "lanes", words: "Lanes", key: "l", picture: "lanes", role: "read", open: lanesPage },
  { path: "tenants", words: "Tenants", key: "t", picture: "tenants", role: "read", open: tenantsPage },
  { path: "protocols", words: "Protocols", key: "p", picture: "protocols", role: "read", open: protocolsPage, one: protocolPage },
  { path: "webhooks", words: "Webhooks", key: "w", picture: "webhooks", role: "admin", open: webhooksPage, group: "Administration" },
  { path: "keys", words: "Keys", key: "k", picture: "keys", role: "admin", open: keysPage },
];

let current = null; // { page, place, stop }

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return null;
  }
}

function place() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  const [, room = "", part = ""] = path.split("/");
  return { room: room === "submit" ? "playground" : room, id: part ? decoded(part) : "", query: new URLSearchParams(query) };
}

const lost = (words) => ({
  title: "Nothing is here",
  body: empty({ title: words, text: "Choose a page from the navigation, or look for a job by its id." }),
});

function chosen({ room, id, query }) {
  const found = PAGES.find(({ path }) => path === room);
  if (id === null) return lost("The address of this page names no job: a % in it is not followed by two digits that fit.");
  if (!found || (id && !found.one)) return lost("The address of this page leads nowhere.");
  if (!session.authenticated && session.auth === "open")
    return { title: "Not under this address", body: empty({ title: "Lucius does not answer to this name.", text: session.problem }) };
  if (!session.authenticated) return loginPage(found.role, session.login, start);
  if (!may(found.role))
    return {
      title: found.words,
      body: empty({ title: `This page needs the role ${found.role}.`, text: session.auth === "required"
        ? isToken(currentKey())
          ? `You are logged in as ${session.name}, who does not have it. An administrator of ${hostOf(session.login.oidc.issuer)} gives it; or log in with a key that has it.`
          : `The key in use, ${session.name}, does not have it. Log in with one that does, or ask an administrator for one: \`lucius keys create NAME --role ${found.role}\`.`
        : "" , action: session.auth === "required" ? button(isToken(currentKey()) ? "Log in as someone else" : "Log in with another key", logOut) : "" }),
    };
  return id ? found.one(id, query) : found.open(query);
}

function show() {
  const to = place();
  closeMenu();
  if (current && current.page.update && current.to.room === to.room && current.to.id === to.id) {
    current.to = to;
    current.page.update(to.query);
    return;
  }
  current?.stop();
  const page = chosen(to);
  const stopped = new AbortController();
  const heading = el("h1", { tabindex: -1 }, page.title);
  const notice = el("div", { class: "notice", role: "alert", hidden: true });
  const loading = skeleton();
  const live = el("span", { class: "live", hidden: true });
  const shown = current !== null;
  current = { page, to, stop: () => { stopped.abort(); page.stop?.(); } };
  document.title = page.title === "Overview" ? "Lucius" : `${page.title} · Lucius`;
  view.className = `page-${to.room || "overview"}`;
  view.replaceChildren(
    el("div", { class: "head" }, page.crumb ? el("p", { class: "crumb" }, page.crumb) : "", page.heading ?? [heading, live], page.aside ? el("div", { class: "aside" }, page.aside) : ""),
    notice, page.refresh ? loading : "", page.body);
  drawNav();
  scrollTo(0, 0);
  if (shown && document.activeElement === document.body) view.focus({ preventScroll: true });
  if (page.refresh) keep(page, { notice, loading, live, signal: stopped.signal });
}

// Refreshes a page until it is left: when jobs moved that it shows, and now and then. What was read before stays in
// sight when a refresh fails.
async function keep(page, { notice, loading, live, signal }) {
  let known = false;
  let moved = new AbortController();
  page.body.hidden = true;
  page.again = new AbortController();
  if (page.moves) follow(page, { live, signal, onMove: () => moved.abort() });
  while (!signal.aborted) {
    if (!document.hidden || !known) {
      try {
        await page.refresh(signal);
        if (signal.aborted) return;
        known = true;
        notice.hidden = true;
        loading.remove();
        page.body.hidden = false;
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 401) return start();
        loading.remove();
        const wrong = error.status >= 400 && error.status < 500;
        if (wrong) page.refused?.();
        page.body.hidden = !known && !wrong;
        const stale = known && !wrong ? "What is shown may be old. " : "";
        fill(notice, [icon("error"), el("div", {}, `${stale}${error.message}${error.status === 0 ? " Is it running? The page tries again by itself." : ""}`)]);
        notice.hidden = false;
        if (!(error instanceof Refused)) reportError(error);
      }
    }
    if (!page.every && known) return;
    const readAt = Date.now();
    await pause(page.every ?? 3000, AbortSignal.any([signal, page.again.signal, moved.signal]));
    if (moved.signal.aborted) await pause(readAt + AFTER_MOVES_MS - Date.now(), AbortSignal.any([signal, page.again.signal]));
    moved = new AbortController();
    page.again = new AbortController();
  }
}

// Tells of jobs as they move. Where there is no room for one more stream, the page still looks now and then.
async function follow(page, { live, signal, onMove }) {
  const say = (kind, words) => {
    live.className = `live ${kind}`;
    live.textContent = words;
    live.hidden = false;
  };
  let later = 0;
  try {
    await listen(() => "/v1/jobs:stream", {
      signal,
      onEvent: (event) => {
        if (!page.moves(event)) return;
        onMove();
        clearTimeout(later);
        later = setTimeout(onMove, FIGURES_MS);
      },
      onState: (now) => { say(now === "live" ? "" : "waiting", now === "live" ? "Live" : "Connecting again"); if (now === "live") onMove(); },
    });
  } catch {
    say("waiting", "Not live");
  }
}

// -- the side -------------------------------------------------------------------------------------------------------

const health = el("span", { class: "health", role: "status" }, "…");
const nav = el("nav", { class: "nav", "aria-label": "Pages" });
const foot = el("div", { class: "foot" });
const search = el("input", { type: "search", placeholder: "Find a job", "aria-label": "Find a job by its id, correlation id, document or key", spellcheck: "false" });
const find = el("form", { class: "find", role: "search" }, icon("search"), search, el("kbd", { "aria-hidden": "true" }, "/"));

find.addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = search.value.trim();
  if (!wanted) return;
  location.hash = /^job_\w{20,}$/.test(wanted) ? `#/jobs/${encodeURIComponent(wanted)}` : `#/jobs?${new URLSearchParams({ q: wanted })}`;
  search.value = "";
  search.blur();
});

function drawNav() {
  const { room } = place();
  const links = PAGES.filter(({ role }) => may(role)).map(({ path, words, picture, group }) => [
    group ? el("h2", { "data-key": group }, group) : "",
    el("a", { href: `#/${path}`, "data-key": path || "overview", "aria-current": path === room ? "page" : null }, icon(picture), words),
  ]);
  fill(nav, [links, el("a", { href: "/docs", "data-key": "docs" }, icon("api"), "API reference")]);
}

const theme = () => document.documentElement.dataset.theme;

function useTheme(wanted) {
  document.documentElement.dataset.theme = wanted;
  localStorage.setItem("lucius.theme", wanted);
  drawFoot();
}

function drawFoot() {
  const themes = [["light", "Light", "sun"], ["auto", "As the system", "auto"], ["dark", "Dark", "moon"]];
  const zoned = zones().length > 1
    ? choice("Time zone", zones().map((each) => [each, each === "UTC" ? "UTC" : "Local"]), zone(), (wanted) => { useZone(wanted); location.reload(); })
    : "";
  fill(foot, [
    el("div", { class: "foot-row", "data-key": "health" }, health, el("span", { class: "figure" }, session.version ?? "")),
    el("div", { class: "foot-row", "data-key": "zone" }, el("span", { title: "All times on these pages are in this zone" }, `Times in ${zone()}`), zoned),
    el("div", { class: "foot-row", "data-key": "theme" }, choice("Theme", themes, theme(), useTheme),
      button("?", shortcuts, { kind: "small", label: "Keys of the keyboard", key: "keys" })),
    session.auth === "required" && session.authenticated
      ? el("div", { class: "foot-row", "data-key": "who" }, name(session.name ?? ""), button("Log out", logOut, { kind: "small" })) : "",
  ]);
}

async function logOut() {
  useKey("");
  await start();
}

function closeMenu() {
  document.body.classList.remove("menu-open");
  menu.setAttribute("aria-expanded", "false");
}

menu.append(icon("menu"));
menu.addEventListener("click", () => {
  menu.setAttribute("aria-expanded", String(document.body.classList.toggle("menu-open")));
});

// -- the keyboard ---------------------------------------------------------------------------------------------------

function shortcuts() {
  const lines = [["j", "next row"], ["k", "row before"], ["Enter", "open the row"], ["/", "find a job"], ["?", "this list"],
    ...PAGES.filter(({ role }) => may(role)).map(({ key, words }) => [`g ${key}`, words])];
  const dialog = el("dialog", { "aria-labelledby": "keys-title" }, el("h2", { id: "keys-title" }, "Keys of the keyboard"),
    el("div", { class: "dialog-body shortcuts" }, lines.map(([keys, words]) => [el("kbd", {}, keys), el("span", {}, words)])),
    el("div", { class: "buttons" }, el("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function step(by) {
  const rows = [...view.querySelectorAll("[data-row]")];
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))];
  (next?.querySelector("a") ?? next?.querySelector("button"))?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

let leading = 0; // when g was pressed
const LEAD_MS = 1500;

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, dialog, [contenteditable]");
  if (event.key === "Escape" && event.target === search) search.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const page = Date.now() - leading < LEAD_MS && PAGES.find(({ key, role }) => key === event.key && may(role));
  leading = 0;
  if (page) location.hash = `#/${page.path}`;
  else if (event.key === "g") leading = Date.now();
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "?") shortcuts();
  else if (event.key === "/") {
    if (getComputedStyle(menu).display !== "none" && !document.body.classList.contains("menu-open")) menu.click();
    search.focus();
  } else return;
  event.preventDefault();
});

// -- the beginning --------------------------------------------------------------------------------------------------

async function look() {
  for (;;) {
    let [words, tone] = ["Not ready", "ill"];
    try {
      if ((await call("GET", "/readyz")).status === "ok") [words, tone] = ["Ready", "well"];
    } catch (error) {
      if (!error.status) words = "Not reachable";
    }
    health.textContent = words;
    health.className = `health ${tone}`;
    await pause(HEALTH_EVERY_MS);
  }
}

async function start() {
  try {
    await loadSession();
    if (session.auth === "required" && !session.authenticated && currentKey()) {
      toast(`${isToken(currentKey()) ? "You are logged out" : "The key in use opens nothing"}: ${session.problem}.`, { tone: "bad" });
      useKey("");
    }
  } catch (error) {
    fill(view, [el("div", { class: "notice", role: "alert" }, icon("error"), el("div", {}, error.message))]);
    await pause(3000);
    return start();
  }
  fill(side, [find, nav, foot]);
  drawFoot();
  current?.stop();
  current = null;
  show();
}

window.addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => document.hidden || current?.page.again?.abort());
endLogin().catch(fault).then(start);
look();
