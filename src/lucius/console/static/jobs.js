// The list of jobs, the newest first. What is asked for is in the address.

import { get, many } from "/console/api.js";
import { ACTIONS, bulk, mayBulk, selection } from "/console/bulk.js";
import { el, fill } from "/console/dom.js";
import { may } from "/console/session.js";
import { ago, between, duration, when } from "/console/time.js";
import { ENDED, JOB_STATES, badge, button, count, empty, jobLink, name, stateWords, table } from "/console/ui.js";

export const PAGE = 50;
const EVERY_MS = 15000;
const SPANS = [["", "any time"], ["15m", "last 15 min"], ["1h", "last hour"], ["24h", "last 24 h"], ["7d", "last 7 days"]];
const HEADS = [{ text: "Job", class: "job" }, "State", "Request type", "Tenant", "Step", { text: "Created", class: "tight" }, { text: "Took", class: "num" }];

export const stepOf = (job) => {
  const at = job.current_step_index;
  if (at === null || at === undefined) return "";
  const type = job.steps[at]?.step_type ?? "";
  return job.steps.length > 1 ? `${type}, ${at + 1} of ${job.steps.length}` : type;
};

export const jobCells = (job) => [
  jobLink(job.jobId), badge(job.state), name(job.request_type), name(job.tenant_id), name(stepOf(job)),
  ago(job.created_at), between(job.created_at, job.completed_at)];

export const option = (value, words, chosen) => el("option", { value, selected: value === chosen }, words);

export const textField = (words, field, value) =>
  el("label", { class: "field" }, el("span", {}, words), el("input", { name: field, value: value ?? "", spellcheck: "false", autocomplete: "off" }));

// A form of filters whose values are in the address. `fields` makes them from what is asked for now.
export function filterForm(room, fields) {
  const form = el("form", { class: "filters", role: "search", "aria-label": "Filters" });
  const go = () => {
    const given = [...new FormData(form)].map(([key, value]) => [key, value.trim()]).filter(([, value]) => value);
    const words = new URLSearchParams(given).toString();
    location.hash = words ? `#/${room}?${words}` : `#/${room}`;
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); go(); });
  form.addEventListener("change", go);
  const draw = (asked) => {
    form.replaceChildren(...fields(asked).flat(), asked.size ? el("a", { class: "button", href: `#/${room}` }, "Clear") : "");
  };
  return { form, draw };
}

export const spanField = (words, field, chosen) => el("label", { class: "field" }, el("span", {}, words),
  el("select", { name: field }, SPANS.map(([value, text]) => option(value, text, chosen ?? ""))));

// Which job of a stream a list may show: an event names no more than these.
const shows = (asked) => ({ name: event, data }) => event === "missed" || (event === "job"
  && ["tenant_id", "request_type"].every((key) => !asked.get(key) || asked.get(key).toLowerCase() === data[key].toLowerCase()));

// The same filters, as the API takes them in a body.
function filterOf(asked) {
  const { created, state, ...rest } = Object.fromEntries(asked);
  return { ...rest, ...(created ? { created_after: created } : {}), ...(state ? { state: state.split(",") } : {}) };
}

const OPEN = JOB_STATES.filter((state) => !ENDED.has(state)).join(",");

export function jobsPage(query) {
  let asked = query;
  let wanted = PAGE;
  let shown = [];
  let redraw = () => {};
  const list = el("div");
  const all = el("div");
  const counts = el("div");
  const chosen = selection({ actions: ["pause", "resume", "cancel", "rerun"], onChange: () => redraw() });
  const filters = filterForm("jobs", (now) => [
    el("label", { class: "field wide" }, el("span", {}, "Search"), el("input", { type: "search", name: "q", value: now.get("q") ?? "", spellcheck: "false", placeholder: "job, correlation or document id, key" })),
    el("label", { class: "field" }, el("span", {}, "State"),
      el("select", { name: "state" }, option("", "any state", now.get("state") ?? ""), option(OPEN, "in flight", now.get("state")), JOB_STATES.map((state) => option(state, stateWords(state), now.get("state"))))),
    textField("Tenant", "tenant_id", now.get("tenant_id")),
    textField("Request type", "request_type", now.get("request_type")),
    textField("Service", "service", now.get("service")),
    textField("Error code", "error_code", now.get("error_code")),
    spanField("Created", "created", now.get("created")),
  ]);

  async function refresh() {
    const asking = asked;
    const { created, ...rest } = Object.fromEntries(asking);
    const [{ items, more, ...said }, figures] = await Promise.all([
      many("/v1/jobs", { ...rest, created_after: created }, wanted, Math.ceil(wanted / PAGE)), get("/v1/jobs:counts", { tenant_id: asking.get("tenant_id") })]);
    if (asking !== asked) return;
    fill(counts, [stateStrip(figures)]);
    shown = items;
    drawList(more, said);
  }

  function drawList(more, said) {
    redraw = () => drawList(more, said);
    const chooses = mayBulk("pause");
    const heads = chooses ? [{ text: "Choose", node: chosen.all(shown.map(({ jobId }) => jobId)), class: "choose" }, ...HEADS] : HEADS;
    const rows = shown.map((job) => ({ key: job.jobId, selected: chosen.has(job.jobId), cells: [...(chooses ? [chosen.box(job.jobId)] : []), ...jobCells(job)] }));
    fill(all, [chooses && asked.size && shown.length ? el("div", { class: "buttons more" }, el("span", { class: "quiet small-text" }, "All jobs that these filters find:"),
      ["pause", "resume", "cancel", "rerun"].map((action) => button(ACTIONS[action].words, () => bulk(action, { filter: filterOf(asked) }, "match the filters"), { kind: ACTIONS[action].danger ? "small danger" : "small", key: action }))) : ""]);
    fill(list, [rows.length ? table("Jobs", heads, rows) : none(more),
      said.looked_back_to && more ? el("p", { class: "quiet small-text more" }, "Looked back to ", when(said.looked_back_to), ". More looks further back.") : "",
      more ? el("div", { class: "more" }, button("More", grow)) : ""]);
  }

  // How many jobs there are in each state, each a way to see them.
  function stateStrip({ states, window_seconds: seconds }) {
    const chosen = asked.get("state");
    return el("ul", { class: "strip", "aria-label": "Jobs by state" }, JOB_STATES.filter((state) => states[state] || state === chosen).map((state) => {
      const to = new URLSearchParams(asked);
      if (chosen === state) to.delete("state");
      else to.set("state", state);
      return el("li", { "data-key": state }, el("a", { href: `#/jobs?${to}`, "aria-current": chosen === state ? "true" : null, title: ENDED.has(state) ? `in the last ${duration(1000 * seconds)}` : "now" },
        badge(state), el("b", { class: "figure" }, count(states[state]))));
    }));
  }

  const none = (more) => (asked.size
    ? empty({ title: more ? "None among the latest jobs." : "No job is like this.", text: more ? "More looks further back." : "Take a filter away, or look at all jobs.", action: more ? "" : el("a", { class: "button", href: "#/jobs" }, "All jobs") })
    : empty({ title: "No job yet.", text: "Send one from the playground, or from a terminal:", command: "lucius run OCR letter.pdf --tenant acme",
      action: may("submit") ? el("a", { class: "button", href: "#/playground" }, "Open the playground") : "" }));

  const grow = () => {
    wanted += PAGE;
    return refresh();
  };

  filters.draw(asked);
  const page = {
    title: "Jobs", body: el("div", {}, counts, filters.form, list, all, chosen.bar), refresh, every: EVERY_MS, moves: (event) => shows(asked)(event), refused: () => fill(list, []),
    update(fresh) {
      asked = fresh;
      wanted = PAGE;
      filters.draw(asked);
      page.again?.abort();
    },
  };
  return page;
}
