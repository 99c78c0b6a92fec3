// Jobs that failed for good.

import { many, post } from "/console/api.js";
import { el, fill } from "/console/dom.js";
import { PAGE, filterForm, since, spanField, textField } from "/console/jobs.js";
import { ago } from "/console/time.js";
import { button, confirmed, empty, jobLink, name, table } from "/console/ui.js";

const EVERY_MS = 5000;
const HEADS = ["Job", "Request type", "Tenant", { text: "Failed", class: "tight" }, { text: "Error", class: "words" }, { text: "What to do", hidden: true }];

async function redrive(job) {
  const sure = await confirmed({ title: "Run this job again?", body: [el("p", {}, "A new job begins at the step that failed, with what the steps before it made."), el("p", { class: "id" }, job.jobId)], words: "Run again" });
  if (!sure) return;
  const made = await post(`/v1/admin/dlq/${encodeURIComponent(job.jobId)}:redrive`);
  location.hash = `#/jobs/${encodeURIComponent(made.jobId)}`;
}

export function failedPage(query) {
  let asked = query;
  let wanted = PAGE;
  const list = el("div");
  const filters = filterForm("failed", (now) => [
    textField("Tenant", "tenant_id", now.get("tenant_id")),
    textField("Request type", "request_type", now.get("request_type")),
    textField("Error code", "error_code", now.get("error_code")),
    spanField("Failed", "failed", now.get("failed")),
  ]);

  async function refresh() {
    const asking = asked;
    const { failed, ...rest } = Object.fromEntries(asking);
    const { items, more } = await many("/v1/admin/dlq", { ...rest, failed_after: since(failed) }, wanted, Math.ceil(wanted / PAGE));
    if (asking !== asked) return;
    const rows = items.map((job) => ({ key: job.jobId, cells: [
      jobLink(job.jobId), name(job.request_type), name(job.tenant_id), ago(job.completed_at),
      [el("strong", {}, job.error_code ?? "no code"), el("span", { class: "sub" }, job.error_message ?? "")],
      button("Run again", () => redrive(job), { kind: "small", key: `redrive ${job.jobId}` })] }));
    fill(list, [rows.length ? table("Failed jobs", HEADS, rows) : none(more), more ? el("div", { class: "more" }, button("More", grow)) : ""]);
  }

  const none = (more) => (asked.size
    ? empty({ title: more ? "None among the latest." : "No failed job is like this.", text: more ? "More looks further back." : "Take a filter away." })
    : empty({ title: "No job has failed for good.", text: "Jobs whose last attempt failed come here, to be run again or left alone. The same from a terminal:", command: "lucius dlq list" }));

  const grow = () => {
    wanted += PAGE;
    return refresh();
  };

  filters.draw(asked);
  const page = {
    title: "Failed jobs", body: el("div", {}, filters.form, list), refresh, every: EVERY_MS,
    update(fresh) {
      asked = fresh;
      wanted = PAGE;
      filters.draw(asked);
      page.again?.abort();
    },
  };
  return page;
}
