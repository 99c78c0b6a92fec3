// The list of jobs, the newest first, and the list of those that failed for good.

import { call, get } from "/console/api.js";
import { badge, el, link, span, table, time } from "/console/dom.js";

const STATES = ["QUEUED", "DISPATCHING", "IN_PROGRESS", "PAUSING", "PAUSED", "CANCELLING", "SUCCEEDED", "FAILED_FINAL", "CANCELLED"];
const PAGE = 50;
const HEADS = ["Job", "State", "Request type", "Tenant", "Step", "Created", "Took"];

const cells = (job) => [
  link(job.jobId),
  badge(job.state),
  job.request_type,
  job.tenant_id,
  job.current_step_id ?? "",
  time(job.created_at),
  span(job.created_at, job.completed_at),
];

function filters(asked) {
  const states = ["", ...STATES].map((state) =>
    el("option", { value: state, selected: state === (asked.get("state") ?? "") }, state || "any state"));
  const form = el("form", { class: "filters" },
    el("select", { name: "state", "aria-label": "State" }, states),
    el("input", { name: "tenant_id", placeholder: "tenant", "aria-label": "Tenant", value: asked.get("tenant_id") ?? "" }),
    el("input", { name: "request_type", placeholder: "request type", "aria-label": "Request type", value: asked.get("request_type") ?? "" }),
    el("button", {}, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = [...new FormData(form)].filter(([, value]) => value);
    location.hash = `#/?${new URLSearchParams(given)}`;
  });
  form.elements.state.addEventListener("change", () => form.requestSubmit());
  return form;
}

export function jobsView(asked) {
  const list = el("div");
  const shown = el("section", {}, el("h1", {}, "Jobs"), filters(asked), list);
  let further = []; // pages that were asked for, below the one that is kept current
  let seen = "";

  async function refresh() {
    const first = await get("/v1/jobs", { ...Object.fromEntries(asked), limit: PAGE });
    const last = further.at(-1) ?? first;
    const items = [first, ...further].flatMap((page) => page.items);
    const known = new Set();
    const jobs = items.filter((job) => !known.has(job.jobId) && known.add(job.jobId));
    const clock = jobs.some((job) => !job.completed_at) ? Math.floor(Date.now() / 2000) : 0;
    if (seen === (seen = JSON.stringify([jobs, last.next_cursor, clock]))) return; // what is marked stays marked
    const more = last.next_cursor && el("button", { onclick: () => next(last.next_cursor) }, "More");
    list.replaceChildren(table(HEADS, jobs.map(cells), "No jobs."), more || "");
  }

  async function next(cursor) {
    further = [...further, await get("/v1/jobs", { ...Object.fromEntries(asked), limit: PAGE, cursor })];
    await refresh();
  }

  return { shown, refresh, everyMs: 2000 };
}

export function failedView() {
  const list = el("div");
  const shown = el("section", {}, el("h1", {}, "Jobs that failed for good"), list);

  async function refresh() {
    const page = await get("/v1/admin/dlq", { limit: 200 });
    const rows = page.items.map((job) => [...cells(job), job.error_code ?? "", redrive(job)]);
    list.replaceChildren(table([...HEADS, "Error", ""], rows, "None."));
  }

  const redrive = (job) => el("button", {
    onclick: async () => {
      const again = await call("POST", `/v1/admin/dlq/${encodeURIComponent(job.jobId)}:redrive`, "{}");
      location.hash = `#/jobs/${encodeURIComponent(again.jobId)}`;
    },
  }, "Redrive");

  return { shown, refresh, everyMs: 5000 };
}
