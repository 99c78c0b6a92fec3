// Commands by the clock.

import { call, get, many, post } from "/console/api.js";
import { el, fill } from "/console/dom.js";
import { may } from "/console/session.js";
import { ago, duration, instantOf, when, zone } from "/console/time.js";
import { button, confirmed, copyButton, count, empty, facts, jobLink, json, name, panel, table, tag, toast } from "/console/ui.js";

const PAGE = 50;
const EVERY_MS = 15000;
const HEADS = ["Schedule", "State", "Command", "Tenant", "When", { text: "Next", class: "tight" }, { text: "Last job", class: "job" }, { text: "Runs", class: "num" }];
const EXAMPLE = {
  schedule_id: "invoices-of-the-night", cron: "0 3 * * MON-FRI", timezone: "Europe/Zurich", overlap: "skip",
  command: { schema_version: "1", tenant_id: "acme", request_type: "OCR", input_ref: { uri: "https://example.com/inbox.pdf" }, output_ref: { uri: "https://example.com/inbox.json" }, payload: {} },
};

const place = (id) => `/v1/schedules/${encodeURIComponent(id)}`;
const link = (id) => el("a", { href: `#/schedules/${encodeURIComponent(id)}` }, name(id));

// Of a span as the API writes it: 900s, 250ms.
const span = (text) => duration(parseInt(text, 10) * (text.endsWith("ms") ? 1 : 1000)).replace(".00", "");

const clockOf = (each) => (each.cron ? [el("code", {}, each.cron), " ", el("span", { class: "sub" }, each.timezone)] : each.every ? `every ${span(each.every)}` : each.at ? ["once, ", when(each.at)] : "");

function standing(each) {
  if (each.problem) return tag("Trouble", "bad");
  return each.paused ? tag("Paused", "warn") : each.next.length ? tag("Runs", "ok") : tag("Over", "idle");
}

export function schedulesPage() {
  let wanted = PAGE;
  const list = el("div");
  const text = el("textarea", { id: "schedule", class: "code", rows: 18, spellcheck: "false" });
  text.value = JSON.stringify(EXAMPLE, null, 2);
  const problem = el("div", { role: "alert" });
  const refused = (error) => fill(problem, [el("div", { class: "notice" }, el("div", {}, error.message))]);
  const form = panel("", el("details", {}, el("summary", {}, "Write a schedule"), el("div", { class: "stack-tight" },
    el("label", { class: "field" }, el("span", {}, "Definition"), text, el("span", { class: "help" }, "A schedule of the same id gets this definition.")), problem,
    el("div", { class: "buttons" }, button("Write it", write, { kind: "main", onFault: refused }),
      el("span", { class: "quiet small-text" }, "From a file: ", el("code", {}, "lucius schedules write"))))));

  async function write() {
    const made = await call("POST", "/v1/schedules", text.value);
    location.hash = `#/schedules/${encodeURIComponent(made.schedule_id)}`;
  }

  async function refresh() {
    const { items, more } = await many("/v1/schedules", {}, wanted, Math.ceil(wanted / PAGE));
    const rows = items.map((each) => ({ key: each.schedule_id, cells: [link(each.schedule_id), standing(each), name(each.command.request_type), name(each.command.tenant_id), clockOf(each),
      each.next.length ? ago(each.next[0]) : el("span", { class: "quiet" }, "none"), each.last_job_id ? jobLink(each.last_job_id) : el("span", { class: "quiet" }, "none yet"), count(each.runs)] }));
    fill(list, [rows.length ? table("Schedules", HEADS, rows)
      : empty({ title: "No schedule yet.", text: "A schedule gives a command by cron, by interval or once; each tick brings exactly one job.", command: "lucius schedules write nightly.yaml" }),
    more ? el("div", { class: "more" }, button("More", () => { wanted += PAGE; return refresh(); })) : ""]);
  }

  return { title: "Schedules", body: el("div", { class: "stack" }, list, may("submit") ? form : ""), refresh, every: EVERY_MS };
}

export function schedulePage(id) {
  const controls = el("div", { class: "buttons" });
  const body = el("div", { class: "stack" });
  const state = el("span");
  let schedule = null;

  async function change(verb, words) {
    await post(`${place(id)}:${verb}`);
    toast(words);
    await refresh();
  }

  async function run() {
    const made = await post(`${place(id)}:run`);
    location.hash = `#/jobs/${encodeURIComponent(made.jobId)}`;
  }

  async function backfill() {
    const from = el("input", { type: "datetime-local", required: true });
    const to = el("input", { type: "datetime-local", required: true });
    const field = (words, node) => el("label", { class: "field" }, el("span", {}, words), node);
    const sure = await confirmed({ title: "Run the ticks that were left out?", words: "Run them", body: [
      el("p", {}, `A tick that brought its job before brings no second one. Times are in ${zone()}.`), field("From", from), field("To", to)] });
    if (!sure) return;
    const instant = (node) => (node.value ? instantOf(node.value) : "");
    const done = await post(`${place(id)}:backfill`, { from: instant(from), to: instant(to) });
    toast(`${count(done.job_ids.length)} jobs made, ${count(done.duplicates)} there before${done.more_from ? "; the range was too long for one time" : ""}.`);
    await refresh();
  }

  async function remove() {
    const sure = await confirmed({ title: "Delete this schedule?", words: "Delete", danger: true, body: [el("p", {}, "Jobs that it gave stay. It cannot be taken back; it can be written again.")] });
    if (!sure) return;
    await post(`${place(id)}:delete`);
    location.hash = "#/schedules";
  }

  function draw() {
    fill(state, [standing(schedule)]);
    fill(controls, [
      may("control") && !schedule.paused ? button("Pause", () => change("pause", "Paused: no tick brings a job.")) : "",
      may("control") && schedule.paused ? button("Resume", () => change("resume", "Goes on with the next tick.")) : "",
      may("submit") ? [button("Run now", run), button("Run missed ticks", backfill), button("Delete", remove, { kind: "danger" })] : "",
      copyButton(`lucius schedules show ${id}`, "as CLI command", "CLI")]);
    const { command } = schedule;
    fill(body, [
      schedule.problem ? el("div", { class: "notice", "data-key": "problem" }, el("div", {}, `The last tick brought no job: ${schedule.problem}`)) : "",
      panel("", facts([["Command", command.request_type], ["Tenant", command.tenant_id], ["When", clockOf(schedule)], ["While the job before is open", schedule.overlap],
        ["Run late by at most", span(schedule.catch_up)], ["Last tick", when(schedule.last_tick)], ["Last job", schedule.last_job_id && jobLink(schedule.last_job_id)],
        ["Runs", count(schedule.runs)], ["Left out, a job was open", count(schedule.skipped)], ["Missed", count(schedule.missed)]]), { key: "facts" }),
      panel("Next", schedule.next.length ? el("ul", { class: "lines" }, schedule.next.map((at) => el("li", { "data-key": at }, when(at), el("span", { class: "quiet" }, ago(at)))))
        : el("p", { class: "quiet" }, schedule.paused ? "It is paused." : "It has no further tick."), { key: "next" }),
      panel("", el("details", {}, el("summary", {}, "The schedule as JSON"), json(schedule, "the schedule as JSON")), { key: "data" })]);
  }

  async function refresh() {
    schedule = await get(place(id));
    draw();
  }

  return { title: id, crumb: el("a", { href: "#/schedules" }, "Schedules"), heading: [el("h1", { tabindex: -1 }, id), state], aside: controls, body, refresh, every: EVERY_MS };
}
