// The list of jobs, the newest first. What is asked for is in the address.

import { get, many } from "/console/api.js";
import { ACTIONS, bulk, mayBulk, selection } from "/console/bulk.js";
import { el, fill } from "/console/dom.js";
import { may } from "/console/session.js";
import { ago, between, duration, instantOf, serverNow, typedOf, when, zone } from "/console/time.js";
import { ENDED, JOB_STATES, badge, button, count, empty, jobLink, name, stateWords, table } from "/console/ui.js";

export const PAGE = 50;
const EVERY_MS = 15000;
const BETWEEN = "between";
const BOUNDS = ["after", "before"];
const SPANS = [["", "any time"], ["15m", "last 15 min"], ["1h", "last hour"], ["24h", "last 24 h"], ["7d", "last 7 days"], [BETWEEN, "between …"]];
const took = (job) => (job.completed_at ? Date.parse(job.completed_at) : serverNow()) - Date.parse(job.created_at);
// By what the jobs that are shown can be sorted, and what of a job is compared.
const SORTED = {
  state: (job) => JOB_STATES.indexOf(job.state), type: (job) => job.request_type, tenant: (job) => job.tenant_id,
  step: (job) => stepOf(job), created: (job) => Date.parse(job.created_at), took,
};
const SORTS = [["", "newest first"], ["created", "oldest first"], ["-took", "longest first"], ["state", "by state"], ["type", "by request type"], ["tenant", "by tenant"]];
const HEADS = [{ text: "Job", class: "job" }, { text: "State", sort: "state" }, { text: "Request type", sort: "type" }, { text: "Tenant", sort: "tenant" },
  { text: "Step", sort: "step" }, { text: "Created", class: "tight", sort: "created" }, { text: "Took", class: "num", sort: "took" }];

function sorted(jobs, wanted) {
  const [, down, by] = /^(-?)(\w+)$/.exec(wanted ?? "") ?? [];
  const value = SORTED[by];
  if (!value) return jobs;
  const order = (one, other) => (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0);
  return [...jobs].sort((one, other) => (down ? -1 : 1) * order(one, other));
}

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
  const bounding = (key) => form.elements[key.replace(/_(after|before)$/, "")].value === BETWEEN;
  const go = () => {
    const said = (key, value) => (isInstant(form.elements[key]) ? bounding(key) && value && instantOf(value) : value.trim());
    const given = [...new FormData(form)].map(([key, value]) => [key, said(key, value)]).filter(([, value]) => value);
    const words = new URLSearchParams(given).toString();
    location.hash = words ? `#/${room}?${words}` : `#/${room}`;
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); go(); });
  form.addEventListener("change", ({ target }) => isInstant(target) || go());
  form.addEventListener("focusout", ({ target }) => isInstant(target) && target.value !== target.defaultValue && go()); // it changes with each digit
  const draw = (asked) => {
    const at = form.contains(document.activeElement) ? document.activeElement.name : "";
    form.replaceChildren(...fields(asked).flat(3), asked.size ? el("a", { class: "button", href: `#/${room}` }, "Clear") : "");
    if (at) form.elements[at]?.focus();
  };
  return { form, draw };
}

const isInstant = (field) => field?.type === "datetime-local";

// A span up to now, or one between two times.
export function spanField(words, field, now) {
  const chosen = BOUNDS.some((each) => now.has(`${field}_${each}`)) ? BETWEEN : now.get(field) ?? "";
  const bound = (text, key) => el("label", { class: "field" }, el("span", {}, `${words} ${text}`),
    el("input", { type: "datetime-local", name: key, value: now.has(key) ? typedOf(now.get(key)) : "", title: `in ${zone()}` }));
  return [el("label", { class: "field" }, el("span", {}, words), el("select", { name: field }, SPANS.map(([value, text]) => option(value, text, chosen)))),
    chosen === BETWEEN ? [bound("from", `${field}_after`), bound("until", `${field}_before`)] : ""];
}

// What the API is asked for: the filters of the address without what the page alone knows.
export function askedFor(asked, field) {
  const { sort, [field]: span, ...rest } = Object.fromEntries(asked);
  return span && span !== BETWEEN ? { ...rest, [`${field}_after`]: span } : rest;
}

// Which job of a stream a list may show: an event names no more than these.
const shows = (asked) => ({ name: event, data }) => event === "missed" || (event === "job"
  && ["tenant_id", "request_type"].every((key) => !asked.get(key) || asked.get(key).toLowerCase() === data[key].toLowerCase()));

// The same filters, as the API takes them in a body.
function filterOf(asked) {
  const { state, ...rest } = askedFor(asked, "created");
  return { ...rest, ...(state ? { state: state.split(",") } : {}) };
}

const FILTERED = ["pause", "resume", "cancel", "rerun"];
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
    spanField("Created", "created", now),
    el("label", { class: "field narrow" }, el("span", {}, "Sorted"), el("select", { name: "sort" }, SORTS.map(([value, text]) => option(value, text, now.get("sort") ?? "")),
      now.get("sort") && !SORTS.some(([value]) => value === now.get("sort")) ? option(now.get("sort"), now.get("sort"), now.get("sort")) : "")),
  ]);

  async function refresh() {
    const asking = asked;
    const [{ items, more, ...said }, figures] = await Promise.all([
      many("/v1/jobs", askedFor(asking, "created"), wanted, Math.ceil(wanted / PAGE)), get("/v1/jobs:counts", { tenant_id: asking.get("tenant_id") })]);
    if (asking !== asked) return;
    fill(counts, [stateStrip(figures)]);
    shown = sorted(items, asked.get("sort"));
    drawList(more, said);
  }

  function drawList(more, said) {
    redraw = () => drawList(more, said);
    const chooses = mayBulk("pause");
    const filtered = Object.keys(filterOf(asked)).length;
    const sorts = HEADS.map(({ sort, ...head }) => ({ ...head, ...(sort ? sorting(sort) : {}) }));
    const heads = chooses ? [{ text: "Choose", node: chosen.all(shown.map(({ jobId }) => jobId)), class: "choose" }, ...sorts] : sorts;
    const rows = shown.map((job) => ({ key: job.jobId, selected: chosen.has(job.jobId), cells: [...(chooses ? [chosen.box(job.jobId)] : []), ...jobCells(job)] }));
    fill(all, [chooses && filtered && shown.length ? el("div", { class: "buttons more" }, el("span", { class: "quiet small-text" }, "All jobs that these filters find:"),
      FILTERED.map((action) => button(ACTIONS[action].words, () => bulk(action, { filter: filterOf(asked) }, "match the filters"), { kind: ACTIONS[action].danger ? "small danger" : "small", key: action }))) : ""]);
    fill(list, [rows.length ? table("Jobs", heads, rows) : none(more),
      SORTED[asked.get("sort")?.replace("-", "")] && more ? el("p", { class: "quiet small-text more" }, `Sorted among the ${count(shown.length)} jobs that are shown, which are the newest.`) : "",
      said.looked_back_to && more ? el("p", { class: "quiet small-text more" }, "Looked back to ", when(said.looked_back_to), ". More looks further back.") : "",
      more ? el("div", { class: "more" }, button("More", grow)) : ""]);
  }

  // A head that sorts, at a second press the other way round. The newest come first where nothing else is said.
  function sorting(by) {
    const now = asked.get("sort") ?? "-created";
    const next = now === by ? `-${by}` : now === `-${by}` ? by : by === "created" || by === "took" ? `-${by}` : by;
    const to = new URLSearchParams(asked);
    if (next === "-created") to.delete("sort");
    else to.set("sort", next);
    return { href: to.size ? `#/jobs?${to}` : "#/jobs", sorted: now === by ? "ascending" : now === `-${by}` ? "descending" : null };
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
