// Jobs that failed for good.

import { many, post } from "/console/api.js";
import { bulk, mayBulk } from "/console/bulk.js";
import { el, fill } from "/console/dom.js";
import { askedFor, filterForm, spanField, textField } from "/console/jobs.js";
import { ago } from "/console/time.js";
import { button, confirmed, count, empty, jobLink, name, table } from "/console/ui.js";

const EVERY_MS = 15000;
const AT_ONCE = 200; // as many as one page of the API has, so that the groups are of many jobs
const HEADS = [{ text: "Job", class: "job" }, "Request type", "Tenant", { text: "Failed", class: "tight" }, { text: "What was said", class: "words" }];
const BOUND = ["failed", "failed_after", "failed_before"]; // jobs are not acted upon by when they failed
const TO_DO = { text: "What to do", hidden: true, class: "act" };

async function redrive(job) {
  const sure = await confirmed({ title: "Run this job again?", body: [el("p", {}, "A new job begins at the step that failed, with what the steps before it made."), el("p", { class: "id" }, job.jobId)], words: "Run again" });
  if (!sure) return;
  const made = await post(`/v1/admin/dlq/${encodeURIComponent(job.jobId)}:redrive`);
  location.hash = `#/jobs/${encodeURIComponent(made.jobId)}`;
}

// The jobs by what they failed with, the most frequent cause first.
function causesOf(items) {
  const causes = new Map();
  for (const job of items) {
    const code = job.error_code ?? "no code";
    if (!causes.has(code)) causes.set(code, { code, jobs: [] });
    causes.get(code).jobs.push(job);
  }
  return [...causes.values()].sort((one, other) => other.jobs.length - one.jobs.length);
}

// What all said alike is said once, above them.
const rowOf = (alike) => (job) => ({ key: job.jobId, cells: [
  jobLink(job.jobId), name(job.request_type), name(job.tenant_id), ago(job.completed_at), ...(alike ? [] : [job.error_message ?? ""]),
  button("Run again", () => redrive(job), { kind: "small", key: `redrive ${job.jobId}` })] });

const cause = (again) => ({ code, jobs }, at, all) => {
  const alike = jobs.every((job) => job.error_message === jobs[0].error_message);
  return el("details", { class: "cause", "data-key": code, open: at === 0 || all.length < 4 },
  el("summary", {}, el("span", { class: "many" }, count(jobs.length)), el("span", {}, el("strong", {}, code), " ", el("span", { class: "quiet" }, commonest(jobs))),
    el("span", { class: "quiet small-text" }, "latest ", ago(jobs[0].completed_at)),
    alike && jobs[0].error_message ? el("span", { class: "said" }, jobs[0].error_message) : ""),
  mayBulk("redrive") && jobs.length > 1 ? el("div", { class: "buttons" }, button(`Run all ${count(jobs.length)} again`, () => again(jobs), { kind: "small", key: `all ${code}` })) : "",
  table(`Jobs that failed with ${code}`, [...HEADS.slice(0, alike ? -1 : undefined), TO_DO], jobs.map(rowOf(alike))));
};

function commonest(jobs) {
  const types = new Map();
  for (const { request_type: type } of jobs) types.set(type, (types.get(type) ?? 0) + 1);
  return [...types].sort((one, other) => other[1] - one[1]).slice(0, 3).map(([type, many]) => `${type} ${count(many)}`).join(", ");
}

export function failedPage(query) {
  let asked = query;
  let wanted = AT_ONCE;
  const list = el("div");
  const filters = filterForm("failed", (now) => [
    textField("Tenant", "tenant_id", now.get("tenant_id")),
    textField("Request type", "request_type", now.get("request_type")),
    textField("Error code", "error_code", now.get("error_code")),
    spanField("Failed", "failed", now),
  ]);

  async function refresh() {
    const asking = asked;
    const { items, more } = await many("/v1/admin/dlq", askedFor(asking, "failed"), wanted, Math.ceil(wanted / AT_ONCE));
    if (asking !== asked) return;
    fill(list, [items.length ? el("div", { class: "stack-tight" }, causesOf(items).map(cause(again))) : none(more), more ? el("div", { class: "more" }, button("More", grow)) : "",
      mayBulk("redrive") && (items.length > 1 || more) && !BOUND.some((each) => asked.has(each)) ? el("div", { class: "buttons more" },
        el("span", { class: "quiet small-text" }, asked.size ? "All failed jobs that these filters find:" : "All failed jobs:"), button("Run all again", everything, { kind: "small" })) : ""]);
  }

  // Those that are not shown, too.
  async function everything() {
    if (await bulk("redrive", { filter: { ...Object.fromEntries(asked), state: ["FAILED_FINAL"] } }, asked.size ? "match the filters" : "failed for good")) await refresh();
  }

  async function again(jobs) {
    if (await bulk("redrive", { job_ids: jobs.map(({ jobId }) => jobId) }, "failed with this cause")) await refresh();
  }

  const none = (more) => (asked.size
    ? empty({ title: more ? "None among the latest." : "No failed job is like this.", text: more ? "More looks further back." : "Take a filter away." })
    : empty({ title: "No job has failed for good.", text: "Jobs whose last attempt failed come here, to be run again or left alone. The same from a terminal:", command: "lucius dlq list" }));

  const grow = () => {
    wanted += AT_ONCE;
    return refresh();
  };

  filters.draw(asked);
  const page = {
    title: "Failed jobs", body: el("div", {}, filters.form, list), refresh, every: EVERY_MS, refused: () => fill(list, []),
    moves: ({ name: event, data }) => event === "missed" || data.state === "FAILED_FINAL",
    update(fresh) {
      asked = fresh;
      wanted = AT_ONCE;
      filters.draw(asked);
      page.again?.abort();
    },
  };
  return page;
}
