// One job: why it is where it is, its steps, its events as they come, and what can be done about it.

import { call, get, jobPath } from "/console/api.js";
import { action, badge, clock, el, facts, fill, link, newest, row, span, table, time } from "/console/dom.js";

const ENDED = new Set(["SUCCEEDED", "FAILED_FINAL", "CANCELLED"]);
// Which control makes sense where; Lucius has the last word.
const CONTROLS = {
  pause: new Set(["QUEUED", "DISPATCHING", "IN_PROGRESS"]),
  resume: new Set(["PAUSING", "PAUSED"]),
  cancel: new Set(["QUEUED", "DISPATCHING", "IN_PROGRESS", "PAUSING", "PAUSED"]),
  rerun: ENDED,
};
const HEADS = ["Step", "State", "Type", "Service", "Attempt", "Progress", "Took", "Output or error"];
const EVENTS_AT_ONCE = 1000;
const EVENTS_SHOWN_MAX = 500;

const outcome = (step) =>
  step.last_error_code ? `${step.last_error_code}: ${step.last_error_message ?? ""}` : step.result_ref?.uri ?? "";

const stepRow = (step, events) => row(step.stepId, [
  step.stepId, badge(step.state), step.step_type, step.service, step.attempt_no || "",
  step.progress === null || ENDED.has(step.state) ? "" : `${step.progress} %`,
  span(events.find((event) => event.stepId === step.stepId)?.at, step.completed_at),
  outcome(step),
]);

const eventRow = (event) => row(event.seq, [
  event.seq, clock(event.at), event.type, event.stepId ?? "", event.attempt_no ?? "",
  el("code", {}, Object.keys(event.data ?? {}).length ? JSON.stringify(event.data) : ""),
]);

export function jobView(jobId) {
  const head = el("h1", {}, jobId);
  const controls = el("div", { class: "controls" });
  const why = el("div", { class: "why" });
  const about = el("div");
  const steps = el("div");
  const trail = el("div");
  const shown = el("section", {}, head, controls, why, about, el("h2", {}, "Steps"), steps, el("h2", {}, "Events"), trail);
  const events = [];

  async function control(name) {
    const answer = await call("POST", `${jobPath(jobId)}:${name}`, name === "rerun" ? "{}" : undefined);
    if (name === "rerun") location.hash = `#/jobs/${encodeURIComponent(answer.jobId)}`;
    else await refresh();
  }

  const latest = () => events.at(-1)?.seq ?? 0;

  async function readEvents() {
    for (let page = null; page === null || page.items.length === EVENTS_AT_ONCE; ) {
      page = await get(`${jobPath(jobId)}/events`, { after: latest(), limit: EVENTS_AT_ONCE });
      events.push(...page.items.filter((event) => event.seq > latest())); // a button may have read them, too
    }
  }

  async function read() {
    const [job, told] = await Promise.all([get(jobPath(jobId)), get(`${jobPath(jobId)}:explain`)]);
    await readEvents();
    return [job, told];
  }

  function draw([job, told]) {
    fill(head, [jobId, " ", badge(job.state)]);
    const fitting = Object.entries(CONTROLS).filter(([, states]) => states.has(job.state));
    fill(controls, fitting.map(([name]) => action(name, () => control(name))));
    const next = told.next && `Next: ${told.next.what}`;
    fill(why, [el("p", {}, told.summary), next ? el("p", {}, next) : "", el("ul", {}, told.hints.map((hint) => el("li", {}, hint)))]);
    fill(about, facts([
      ["Tenant", job.tenant_id], ["Request type", job.request_type], ["Protocol", job.protocol_id], ["Engine", job.engine],
      ["Document", job.doc_id], ["Mode", job.mode], ["Created", time(job.created_at)], ["Ended", time(job.completed_at)],
      ["Took", span(job.created_at, job.completed_at)], ["Result", job.final_output], ["Error", job.error_code && `${job.error_code}: ${job.error_message ?? ""}`],
      ["Rerun of", job.rerun_of && link(job.rerun_of)], ["Correlation id", job.correlation_id], ["Trace", job.traceparent],
    ]));
    fill(steps, table(HEADS, job.steps.map((step) => stepRow(step, events)), "No steps."));
    fill(trail, table(["", "At", "Event", "Step", "Attempt", ""], events.slice(-EVENTS_SHOWN_MAX).reverse().map(eventRow), "No events."));
  }

  const refresh = newest(read, draw);

  return { shown, refresh, everyMs: 1000, role: "read" };
}
