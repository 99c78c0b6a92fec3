// The list of jobs, the newest first, and the list of those that failed for good.

import { call, many } from "/console/api.js";
import { action, badge, el, fill, link, newest, row, span, table, time } from "/console/dom.js";

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

// A list that grows when asked to, and is kept current from its beginning to where it has grown.
function growing(path, query, heads, cellsOf, empty) {
  const shown = el("div");
  let wanted = PAGE;
  let pages = 1;

  const grow = () => {
    wanted += PAGE;
    pages += 1;
    return refresh();
  };

  const refresh = newest(
    () => many(path, query, wanted, pages),
    ({ items, more }) => {
      const rows = items.map((job) => row(job.jobId, cellsOf(job)));
      const none = more ? "None among the latest. More looks further back." : empty;
      fill(shown, [table(heads, rows, none), more ? action("More", grow) : ""]);
    });

  return { shown, refresh };
}

export function jobsView(asked) {
  const list = growing("/v1/jobs", Object.fromEntries(asked), HEADS, cells, "No jobs.");
  const shown = el("section", {}, el("h1", {}, "Jobs"), filters(asked), list.shown);
  return { shown, refresh: list.refresh, everyMs: 2000, role: "read" };
}

async function redrive(job) {
  const again = await call("POST", `/v1/admin/dlq/${encodeURIComponent(job.jobId)}:redrive`, "{}");
  location.hash = `#/jobs/${encodeURIComponent(again.jobId)}`;
}

export function failedView() {
  const failedCells = (job) => [...cells(job), job.error_code ?? "", action("Redrive", () => redrive(job))];
  const list = growing("/v1/admin/dlq", {}, [...HEADS, "Error", ""], failedCells, "None.");
  const shown = el("section", {}, el("h1", {}, "Jobs that failed for good"), list.shown);
  return { shown, refresh: list.refresh, everyMs: 5000, role: "admin" };
}
