// Which page is shown, kept current while somebody looks at it.

import { call, currentKey, useKey } from "/console/api.js";
import { failedView, jobsView } from "/console/jobs.js";
import { jobView } from "/console/job.js";
import { submitView } from "/console/submit.js";

const view = document.getElementById("view");
const trouble = document.getElementById("trouble");
const health = document.getElementById("health");
const keyForm = document.getElementById("key-form");
const HEALTH_EVERY_MS = 5000;
let turn = 0; // of pages: one that was left does not come back

function say(error) {
  const needsKey = error?.status === 401;
  trouble.textContent = error ? (needsKey ? "Lucius asks for an API key: type it in above." : error.message) : "";
  trouble.hidden = !error;
}

function chosen() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  const [, room, id] = (path || "/").split("/");
  if (room === "jobs" && id) return jobView(decodeURIComponent(id));
  if (room === "failed") return failedView();
  if (room === "submit") return submitView();
  return jobsView(new URLSearchParams(query));
}

async function show() {
  const mine = ++turn;
  const page = chosen();
  say(null);
  view.replaceChildren(page.shown);
  while (mine === turn) {
    if (!document.hidden) {
      try {
        await page.refresh();
        if (mine === turn && trouble.dataset.from === "refresh") say(null);
      } catch (error) {
        if (mine !== turn) return;
        say(error);
        trouble.dataset.from = "refresh";
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
  useKey(keyForm.elements.key.value.trim());
  keyForm.elements.key.value = "";
  keyForm.elements.key.placeholder = currentKey() ? "API key in use" : "API key";
  show();
});
// A button whose call was refused.
window.addEventListener("unhandledrejection", (event) => {
  say(event.reason);
  trouble.dataset.from = "button";
  event.preventDefault();
});
window.addEventListener("hashchange", show);
if (currentKey()) keyForm.elements.key.placeholder = "API key in use";
show();
look();
