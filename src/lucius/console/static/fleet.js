// Who works and what waits: services, lanes, tenants.

import { get, post } from "/console/api.js";
import { el, fill } from "/console/dom.js";
import { laneStrip } from "/console/overview.js";
import { may } from "/console/session.js";
import { ago, duration, serverNow, when } from "/console/time.js";
import { button, confirmed, count, counted, empty, meter, name, panel, table, tag, toast } from "/console/ui.js";

const EVERY_MS = 15000;

const moves = ({ name: event }) => event === "overview";
const SEEN_LATELY_MS = 60000;

// -- pauses

const TO_DO = { text: "What to do", hidden: true, class: "act" };

// What is paused of one kind, by name.
async function pausesOf(kind) {
  const { items } = await get("/v1/pauses");
  return new Map(items.filter((each) => each.kind === kind).map((each) => [each.name, each]));
}

const pausedTag = (pause) => (pause ? el("span", { title: [pause.reason, pause.by].filter(Boolean).join(", by ") }, tag("Paused", "warn"), el("span", { class: "sub" }, "since ", ago(pause.since))) : "");

function pauseButton(kind, name, pause, again) {
  const label = pause ? "Resume" : "Pause";
  return button(label, async () => {
    if (pause) await post("/v1/pauses:resume", { kind, name });
    else {
      const reason = el("input", { maxlength: 200, "aria-label": "Why" });
      const sure = await confirmed({ title: `Pause the ${kind} ${name}?`, words: "Pause", body: [
        el("p", {}, "None of its directives leaves until it is resumed. What is under way goes on; what waits loses no attempt."), el("label", { class: "field" }, el("span", {}, "Why (others see it)"), reason)] });
      if (!sure) return;
      await post("/v1/pauses", { kind, name, reason: reason.value.trim() || null });
    }
    toast(pause ? `${name} goes on.` : `${name} is paused.`);
    await again();
  }, { kind: "small", key: `${label} ${name}`, label: `${label} ${name}` });
}

const spread = ({ p50_ms: half, p99_ms: most, count: many }) =>
  (many ? [el("span", {}, duration(half)), el("span", { class: "sub" }, `p99 ${duration(most)}`)] : el("span", { class: "quiet" }, "none"));

/** What of its limits a service has, and what keeps its directives from leaving. */
function flowing({ flow }) {
  const told = [];
  if (flow.in_use !== null && flow.concurrency !== null) told.push(`${count(flow.in_use)} of ${count(flow.concurrency)} places`);
  if (flow.rate) told.push(flow.rate + (flow.share < 1 ? `, ${Math.round(100 * flow.share)} % of it for now` : ""));
  if (flow.breaker) told.push(`${counted(flow.breaker.failures, "failure")} in a row: ${flow.breaker.error}`);
  if (flow.pause?.reason) told.push(flow.pause.reason);
  return told.map((line) => el("span", { class: "sub" }, line));
}

function standing(each) {
  if (each.flow.pause) return pausedTag(each.flow.pause);
  if (each.flow.breaker) return tag("Failing", "bad");
  const lately = each.last_seen_at && serverNow() - new Date(each.last_seen_at) < SEEN_LATELY_MS;
  if (each.in_process || each.waiting || lately) return tag("Working", "ok");
  return each.depth ? tag("No worker", "bad") : tag("No worker", "idle");
}

function workers(each) {
  const inside = each.in_process ? `${each.concurrency} at once, in this installation` : "";
  const polls = each.waiting ? `${counted(each.waiting, "call")} waiting` : "";
  const clients = each.clients.map((client, at) => [at ? ", " : "", name(client)]);
  if (!clients.length) return inside || polls ? el("span", {}, inside || polls) : el("span", { class: "quiet" }, "none");
  return [el("span", {}, clients), inside || polls ? el("span", { class: "sub" }, inside || polls) : ""];
}

const queued = ({ depth, oldest_seconds: oldest }) =>
  [el("span", {}, count(depth)), oldest === null ? "" : el("span", { class: "sub" }, `oldest ${duration(1000 * oldest)}`)];

export function servicesPage() {
  const body = el("div", { class: "stack" });
  const heads = ["Service", "State", "Workers", { text: "Seen", class: "tight" }, { text: "Waiting", class: "num" }, { text: "ACK", class: "num" },
    { text: "Work", class: "num" }, { text: "Done", class: "num" }, { text: "Failed", class: "num" }, { text: "Retried", class: "num" }, ...(may("control") ? [TO_DO] : [])];

  async function refresh() {
    const { items, window_seconds: seconds } = await get("/v1/services");
    const rows = items.map((each) => ({ key: each.service, cells: [
      [el("strong", {}, name(each.service)), each.step_type ? el("span", { class: "sub" }, name(each.step_type)) : ""],
      [standing(each), ...flowing(each)], workers(each), each.last_seen_at ? ago(each.last_seen_at) : el("span", { class: "quiet" }, "never"), queued(each), spread(each.ack), spread(each.work),
      count(each.succeeded), count(each.failed), count(each.retried),
      ...(may("control") ? [pauseButton("service", each.service, each.flow.pause, refresh)] : [])] }));
    fill(body, items.length
      ? [el("p", { class: "quiet" }, `Times and counts are of the last ${duration(1000 * seconds)}. ACK is the time from hand-out to ACK, work from hand-out to result.`), table("Services", heads, rows)]
      : [empty({ title: "No service is known.", text: "Services are those that protocols name. To see whether one keeps its contract:", command: "lucius certify --help" })]);
  }

  return { title: "Services", body, refresh, every: EVERY_MS, moves };
}

export function lanesPage() {
  const strip = el("div");
  const list = el("div");
  const heads = ["Lane", "Topic", { text: "Waiting", class: "num" }, { text: "Oldest", class: "num" }, { text: "Services", class: "words" }, { text: "Tenants in flight", class: "words" }];

  async function refresh() {
    const { items } = await get("/v1/lanes");
    fill(strip, [laneStrip(items)]);
    const busy = items.filter((each) => each.depth || each.tenants.length);
    const rest = items.length - busy.length;
    fill(list, [busy.length ? table("Lanes", heads, busy.map((each) => ({ key: each.lane, cells: [
      el("strong", {}, each.lane), el("span", { class: "id" }, each.topic), count(each.depth),
      each.oldest_seconds === null ? el("span", { class: "quiet" }, "none") : duration(1000 * each.oldest_seconds),
      Object.entries(each.services).map(([service, depth]) => `${service} ${count(depth)}`).join(", "),
      each.tenants.map((tenant, at) => [at ? ", " : "", el("a", { href: `#/jobs?${new URLSearchParams({ tenant_id: tenant })}` }, tenant)])] }))) : "",
    rest ? el("p", { class: "quiet small-text more" }, busy.length ? `The other ${counted(rest, "lane")}: no job in flight, nothing waits.` : "No lane has a job in flight.") : ""]);
  }

  const text = "A tenant's jobs share one of 16 lanes, so that one tenant cannot hold up all others; BURST jobs are spread by document.";
  return { title: "Lanes", body: el("div", { class: "stack" }, el("p", { class: "quiet" }, text), panel("", strip), list), refresh, every: EVERY_MS, moves };
}

function budgetLine({ name: what, period, used, max }) {
  return el("div", { class: "sub" }, `${count(used)} of ${count(max)} ${what} this ${period}${used >= max ? ": used up" : ""}`);
}

export function tenantsPage() {
  const all = el("div");
  const list = el("div");
  const heads = ["Tenant", "In flight", { text: "Lane", class: "num" }, "Mode", { text: "Accepted", class: "num" }, { text: "Succeeded", class: "num" }, { text: "Failed", class: "num" }, { text: "Cancelled", class: "num" }, ...(may("control") ? [TO_DO] : [])];

  async function refresh() {
    const [{ items, more, limits, counted_since: since }, paused] = await Promise.all([get("/v1/tenants"), pausesOf("tenant")]);
    fill(all, [el("div", { class: "stack-tight" },
      el("div", { class: "tenant-line" }, el("span", {}, "All tenants"), meter(limits.total_in_flight, limits.total_max, "Jobs in flight of all tenants")),
      el("div", { class: "tenant-line" }, el("span", {}, "BURST"), meter(limits.burst_in_flight, limits.burst_max, "BURST jobs in flight")),
      el("p", { class: "quiet small-text" }, "At a limit new commands are refused with 429 and told when to come back; jobs in flight go on."))]);
    fill(list, items.length
      ? [table("Tenants", heads, items.map((each) => ({ key: each.tenant_id, cells: [
        [el("a", { href: `#/jobs?${new URLSearchParams({ tenant_id: each.tenant_id })}` }, name(each.tenant_id)), paused.has(each.tenant_id) ? el("div", {}, pausedTag(paused.get(each.tenant_id))) : ""], [meter(each.in_flight, each.limit, `${each.tenant_id}: ${each.in_flight} of ${each.limit}`), each.budgets.map(budgetLine)],
        each.lane, [each.mode, each.burst_denied ? el("span", { class: "sub" }, "BURST denied") : ""], count(each.accepted), count(each.succeeded), count(each.failed), count(each.cancelled), ...(may("control") ? [pauseButton("tenant", each.tenant_id, paused.get(each.tenant_id), refresh)] : [])] }))),
      el("p", { class: "quiet small-text more" }, "Counted since ", when(since), more ? "; only the fullest tenants are shown." : ".")]
      : [empty({ title: "No tenant is known yet.", text: "A tenant is known from its first job on.", command: "lucius run OCR letter.pdf --tenant acme" })]);
  }

  return { title: "Tenants", body: el("div", { class: "stack" }, panel("Limits", all), list), refresh, every: EVERY_MS, moves };
}
