// The installation at a glance: what needs attention first, then how it does over time and now.

import { get } from "/console/api.js";
import { jobsChart, latencyChart, legend } from "/console/charts.js";
import { el, fill, svg } from "/console/dom.js";
import { may } from "/console/session.js";
import { ago, duration } from "/console/time.js";
import { choice, count, counted, empty, icon, meter, name, panel, share, tag } from "/console/ui.js";

const WINDOWS = [["15m", "15 min"], ["1h", "1 h"], ["6h", "6 h"], ["24h", "24 h"]];
const EVERY_MS = 15000;

// Where a line of what needs attention leads.
function addressOf({ page, ...rest }) {
  if (page === "jobs" && rest.state === "FAILED_FINAL" && may("admin")) return address("failed", rest, ["request_type", "error_code"]);
  if (page === "jobs") return address("jobs", rest, ["request_type", "state", "tenant_id"]);
  if (page === "tenants") return address("jobs", rest, ["tenant_id"]);
  if (page === "services") return "#/services";
  return null;
}

function address(room, values, names) {
  const given = names.filter((each) => values[each]).map((each) => [each, values[each]]);
  return `#/${room}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

function attention(items) {
  if (!items.length)
    return el("ul", { class: "attention" }, el("li", { class: "fine" }, el("div", { class: "row" }, icon("check"),
      el("span", {}, "Nothing needs you: every service keeps up, no tenant is at its limit, and all dependencies answer."))));
  return el("ul", { class: "attention" }, items.map(({ severity, code, text, link }) => {
    const leads = addressOf(link);
    const inside = [icon(severity === "error" ? "error" : "warning"), el("span", {}, text), leads ? icon("arrow") : ""];
    return el("li", { class: severity, "data-key": `${code} ${text}` }, leads ? el("a", { href: leads }, inside) : el("div", { class: "row" }, inside));
  }));
}

function figures(now) {
  const { totals } = now;
  const ended = totals.succeeded + totals.failed;
  const inFlight = now.in_flight.reduce((sum, each) => sum + each.jobs, 0);
  const perMinute = totals.accepted / (now.window_seconds / 60);
  const cell = (words, value, sub, tone = "") => el("div", { "data-key": words }, el("dt", {}, words), el("dd", {}, el("span", { class: tone }, value), el("span", { class: "sub" }, sub)));
  return el("dl", { class: "figures" },
    cell("Accepted", count(totals.accepted), `${perMinute < 10 ? perMinute.toFixed(1) : count(Math.round(perMinute))} a minute`),
    cell("Succeeded", share(totals.succeeded, ended), ended ? `${count(totals.failed)} of ${count(ended)} failed` : "no job has ended", totals.failed > ended / 5 ? "bad" : ""),
    cell("In flight", count(inFlight), counted(now.in_flight.length, "tenant")),
    cell("Waiting directives", count(now.outbox.pending), now.outbox.oldest_seconds === null ? "none waits" : `the oldest for ${duration(1000 * now.outbox.oldest_seconds)}`),
    now.dlq === null ? "" : cell("Failed for good", count(now.dlq), "not taken up again", now.dlq ? "bad" : ""));
}

export function laneStrip(lanes) {
  const deepest = Math.max(1, ...lanes.map(({ depth }) => depth));
  return el("ol", { class: "lanes", "aria-label": "Lanes" }, lanes.map(({ lane, depth, oldest_seconds: oldest, tenants }) => {
    const waits = oldest === null ? "none waits" : `the oldest for ${duration(1000 * oldest)}`;
    const whose = tenants.length ? `; tenants ${tenants.join(", ")}` : "";
    const words = `Lane ${lane}: ${counted(depth, "directive")}, ${waits}${whose}`;
    const high = 30 * depth / deepest;
    return el("li", { class: `lane ${oldest > 30 ? "slow" : ""}`, "data-key": lane, title: words },
      svg("svg", { viewBox: "0 0 20 30", preserveAspectRatio: "none", role: "img", "aria-label": words },
        svg("rect", { width: 20, height: 30, rx: 2 }),
        depth ? svg("rect", { class: "part", y: 30 - Math.max(2, high), width: 20, height: Math.max(2, high) }) : ""),
      el("b", {}, count(depth)), el("span", {}, lane));
  }));
}

export function overviewPage(asked) {
  let span = asked.get("window") ?? "1h";
  if (!WINDOWS.some(([value]) => value === span)) span = "1h";
  const windows = el("div");
  const needs = el("div");
  const top = el("div");
  const jobs = jobsChart("Jobs over time, by what became of them");
  const latencies = el("div", { class: "small-charts" });
  const charts = new Map();
  const lanes = el("div");
  const tenants = el("div");
  const dependencies = el("div");
  const quiet = el("div");
  const current = el("span", { class: "quiet small-text" });

  const body = el("div", { class: "stack" },
    panel("What needs you", needs, { kind: "flat" }), top, quiet,
    panel("Jobs", jobs.node, { aside: legend([["ok", "succeeded"], ["bad", "failed"], ["idle", "cancelled"], ["accepted", "accepted"]]) }),
    panel("Time at work, by service", latencies, { aside: legend([["p50", "p50"], ["p99", "p99"]]) }),
    panel("Lanes", lanes, { aside: el("span", { class: "quiet small-text" }, "directives that wait in each of the 16 lanes") }),
    el("div", { class: "columns" }, panel("In flight by tenant", tenants), panel("Dependencies", dependencies)));

  function drawWindows() {
    fill(windows, [choice("Window", WINDOWS, span, (value) => { location.hash = `#/?window=${value}`; })]);
  }

  function latencyOf(each, now) {
    if (!charts.has(each.service)) {
      const chart = latencyChart(`Time at work of ${each.service}`);
      const title = el("div", { class: "title" });
      charts.set(each.service, { chart, title, node: el("div", { "data-key": each.service }, title, chart.node) });
    }
    const { chart, title, node } = charts.get(each.service);
    const words = each.count ? `p50 ${duration(each.p50_ms)}, p99 ${duration(each.p99_ms)}` : "no attempts";
    fill(title, [el("h3", {}, name(each.service)), el("span", { class: "quiet small-text figure" }, words)]);
    chart.update({ startsAt: Date.parse(now.starts_at), stepMs: 1000 * now.step_seconds, steps: each.p50_series.length, p50: each.p50_series, p99: each.p99_series });
    return node;
  }

  async function refresh() {
    const asking = span;
    const now = await get("/v1/overview", { window: asking });
    if (asking !== span) return;
    fill(needs, [attention(now.attention)]);
    fill(top, [figures(now)]);
    jobs.update({ startsAt: Date.parse(now.starts_at), stepMs: 1000 * now.step_seconds, steps: now.series.accepted.length, series: now.series });
    const none = !now.totals.accepted && !now.in_flight.length;
    fill(quiet, none ? [empty({
      title: "No job was accepted in this window.", text: "Send one from the playground, or from a terminal:",
      command: "lucius run OCR letter.pdf --tenant acme",
      action: may("submit") ? el("a", { class: "button", href: "#/playground" }, "Open the playground") : "",
    })] : []);
    fill(latencies, now.latency.length ? now.latency.map((each) => latencyOf(each, now)) : [el("p", { class: "quiet" }, "No attempt has ended in this window.")]);
    fill(lanes, [laneStrip(now.lanes)]);
    fill(tenants, now.in_flight.length
      ? [el("div", { class: "stack-tight" }, now.in_flight.map(({ tenant_id: tenant, jobs: many, limit }) =>
        el("div", { class: "tenant-line", "data-key": tenant }, el("a", { href: address("jobs", { tenant_id: tenant }, ["tenant_id"]) }, name(tenant)), meter(many, limit, `${tenant}: ${many} of ${limit} jobs in flight`))))]
      : [el("p", { class: "quiet" }, "No job is in flight.")]);
    fill(dependencies, now.dependencies.length
      ? [el("ul", { class: "lines" }, now.dependencies.map((each) =>
        el("li", { "data-key": each.name }, el("span", {}, each.name.replaceAll("_", " ")), tag(each.ok ? "Answers" : "Not well", each.ok ? "ok" : "bad"), each.note ? el("span", { class: "quiet note" }, each.note) : "")))]
      : [el("p", { class: "quiet" }, "This installation depends on nothing outside its process.")]);
    fill(current, ["Updated ", ago(now.as_of)]);
  }

  drawWindows();
  const page = {
    title: "Overview", aside: [current, windows], body, refresh, every: EVERY_MS, moves: ({ name: event }) => event === "overview",
    update(query) {
      span = WINDOWS.some(([value]) => value === query.get("window")) ? query.get("window") : "1h";
      drawWindows();
      page.again?.abort();
    },
  };
  return page;
}
