// Which page is shown, kept current while it is looked at.

import { Refused, call, currentKey, useKey } from "/console/api.js";
import { el } from "/console/dom.js";
import { failedView, jobsView } from "/console/jobs.js";
import { jobView } from "/console/job.js";
import { submitView } from "/console/submit.js";
import { say, unsay } from "/console/trouble.js";

const view = document.getElementById("view");
const health = document.getElementById("health");
const keyForm = document.getElementById("key-form");
const HEALTH_EVERY_MS = 5000;
let turn = 0; // of pages: one that was left does not come back

const lost = (words) => (
  { shown: el("section", {}, el("h1", {}, "Nothing is here"), el("p", {}, words)), refresh: async () => {}, everyMs: 60000 });

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return null;
  }
}

function chosen() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  const [, room = "", part = ""] = path.split("/");
  const id = decoded(part);
  if (id === null) return lost("The address of this page names no job: a % in it is not followed by two digits that fit.");
  if (room === "jobs" && id) return jobView(id);
  if (room === "failed") return failedView();
  if (room === "submit") return submitView();
  if (room === "" || room === "jobs") return jobsView(new URLSearchParams(query));
  return lost("The address of this page leads nowhere.");
}

async function show() {
  const mine = ++turn;
  const page = chosen();
  unsay();
  view.replaceChildren(page.shown);
  while (mine === turn) {
    if (!document.hidden) {
      try {
        await page.refresh();
        if (mine === turn) unsay("refresh");
      } catch (error) {
        if (mine !== turn) return;
        say("refresh", error, page.role);
        if (!(error instanceof Refused)) reportError(error);
      }
    }
    await new Promise((done) => setTimeout(done, page.everyMs));
  }
}

async function look() {
  let words = "";
  try {
    words = (await call("GET", "/readyz")).status === "ok" ? "ready" : "not ready";
  } catch (error) {
    words = error.status ? "not ready" : "not reachable";
  }
  health.textContent = words;
  health.className = words === "ready" ? "well" : "ill";
  setTimeout(look, HEALTH_EVERY_MS);
}

keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const { key } = keyForm.elements;
  const typed = key.value.trim();
  key.value = "";
  if (!/^[\x21-\x7e]*$/.test(typed)) return say("button", new Error("This is no key: it has characters that keys do not have."));
  useKey(typed);
  key.placeholder = typed ? "API key in use" : "API key";
  show();
});
// A button whose call was refused. What it said before is settled by pressing one again.
window.addEventListener("unhandledrejection", (event) => {
  say("button", event.reason);
  if (event.reason instanceof Refused) event.preventDefault();
});
view.addEventListener("click", (event) => event.target.closest("button") && unsay("button"), true);
window.addEventListener("hashchange", show);
if (currentKey()) keyForm.elements.key.placeholder = "API key in use";
show();
look();
